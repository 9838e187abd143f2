"""`gpuplane cdi remove`: take away the specifications that stay when the agent ends."""

import os
import sys
from collections.abc import Iterable
from pathlib import Path

import click
import msgspec

from gpuplane.cli.kit import signals
from gpuplane.cli.kit.agent import NoAgent, fetch_node_state, state_dir
from gpuplane.cli.kit.messages import os_error_text, say
from gpuplane.cli.kit.options import FILE_PATH, json_option
from gpuplane.kubernetes.podref import ADMITTED_TEXT
from gpuplane.node.core.allocations import held_allocations
from gpuplane.node.core.commands import USUAL_CDI_DIR
from gpuplane.node.core.containers.cdi.desiredspecs import desired_specs
from gpuplane.node.host.cdi.directory import OUR_FILE_NAMES, remove_our_files
from gpuplane.node.kubelet.podresources import read_allocations
from gpuplane.node.model.snapshot import Allocation


@click.command()
@click.option(
    "--cdi-dir",
    type=FILE_PATH,
    default=Path(USUAL_CDI_DIR),
    show_default=True,
    envvar="CDI_DIR",
    help="The directory of the specifications. It is the agent's --cdi-dir.",
)
@click.option(
    "--kubelet-root",
    type=FILE_PATH,
    default=Path("/var/lib/kubelet"),
    show_default=True,
    help="Kubelet's directory. If no agent runs, this command asks kubelet which devices containers hold.",
)
@click.option(
    "--force",
    is_flag=True,
    help=(
        "Remove the specifications even if containers need them: a container that holds a device then cannot "
        "start again."
    ),
)
@json_option("One JSON document: what was removed.")
@state_dir
def command(cdi_dir: Path, kubelet_root: Path, force: bool, as_json: bool, state_dir: Path) -> None:
    """Remove the specifications of this agent, and those that NVIDIA's device plugin has left.

    Containers need them at every start, also when kubelet restarts them. So stop the agent first, and run this when no
    container holds a device any more. The agent or kubelet is asked about that; if neither answers, nothing is
    removed. Files of other programs stay.
    """
    there = any(os.path.lexists(cdi_dir / name) for name in OUR_FILE_NAMES)
    if there and not force and (problem := _why_needed(state_dir, kubelet_root)):
        raise click.ClickException(f"{problem}; or use --force")
    removed: list[str] = []
    try:
        for path in remove_our_files(cdi_dir):
            removed.append(str(path))
            if not as_json:
                say(f"removed {path}")
    except OSError as error:
        raise click.ClickException(os_error_text(error)) from None
    if as_json:
        sys.stdout.buffer.write(msgspec.json.encode({"removed": removed}) + b"\n")
    elif not removed:
        say(f"{cdi_dir} has no specifications of gpuplane.")


def _why_needed(state_dir: Path, kubelet_root: Path) -> str:
    """Why the specifications have to stay, as an agent or kubelet tells, and what to do; "" where they need not."""
    try:
        snapshot = fetch_node_state(state_dir).snapshot
    except NoAgent:
        held = signals.run(read_allocations(kubelet_root))
        if held is None:
            unknown = f"no agent runs here, and no file below {kubelet_root} shows which devices containers hold"
            return f"{unknown}: set --kubelet-root to kubelet's directory"
        return _held_problem(held)
    holding = held_allocations(snapshot)
    if holding is None:
        return "the agent that runs here does not know yet which devices containers hold: try again later"
    if desired_specs(snapshot) and not holding:
        return (
            "the running agent would write the specifications again: stop the agent first, or configure "
            "another deviceListStrategy"
        )
    return _held_problem(holding)


def _held_problem(allocations: Iterable[Allocation]) -> str:
    pods = sorted({each.holder.pod_name_or_uid or ADMITTED_TEXT for each in allocations})
    return (
        (
            "containers hold devices and could not restart without the specifications: end these pods first: "
            f"{', '.join(pods)}"
        )
        if pods
        else ""
    )
