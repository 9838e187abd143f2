"""What `apply`, `restore` and `plan` have in common: a request is resolved, shown or followed, and its end told."""

import sys
from collections.abc import Callable
from pathlib import Path

import click
from click.core import ParameterSource

from gpuplane.base.text import join_first_names
from gpuplane.base.value import Value
from gpuplane.cli.commands.mig.follow import Followed, Layouts, WaitLimit, request_and_follow, resolve_layouts
from gpuplane.cli.commands.mig.hooks import Hooks
from gpuplane.cli.commands.mig.planned import plan_lines, plan_request
from gpuplane.cli.commands.mig.site import open_site
from gpuplane.cli.kit import options, signals
from gpuplane.cli.kit.durations import Duration
from gpuplane.cli.kit.machine import NVML
from gpuplane.cli.kit.messages import print_error, say
from gpuplane.cli.kit.options import FILE_PATH
from gpuplane.cli.kit.presenter import print_json, print_result
from gpuplane.node.core.commands import WITHDRAW, command_line, unusual_state_dir
from gpuplane.node.model.machine import Gpu
from gpuplane.node.model.partitions import LayoutRequest

EVICTION_SECONDS = 300.0
"""Seconds that evicted pods may take to end, where nobody says otherwise."""

kubelet_root = click.option(
    "--kubelet-root",
    type=FILE_PATH,
    default=Path("/var/lib/kubelet"),
    show_default=True,
    help="Without an agent: kubelet's directory, where it says what containers hold.",
)
dry_run = click.option("--dry-run", is_flag=True, help="Show what would be done, and change nothing.")
wait = click.option(
    "--wait",
    type=Duration(),
    help="How long to wait for what holds devices that have to go: 90s, 10m. Default: not at all, or 5m with --evict.",
)
evict = click.option("--evict", is_flag=True, help="Evict the pods that hold devices that have to go.")
kubeconfig = options.kubeconfig("With --evict: whose rights evict. Default: those of this pod.")


class Where(Value):
    """Which node is meant, and how its answer is shown."""

    machine: str | None
    state_dir: Path
    kubelet_root: Path
    as_json: bool
    debug: bool


def where(machine: str | None, state_dir: Path, kubelet_root: Path, *, as_json: bool) -> Where:
    """The same as one value, with what was said before the command."""
    debug = bool(click.get_current_context().obj)
    return Where(machine, state_dir, kubelet_root, as_json, debug)


def show_plan(there: Where, layouts_of: Callable[[tuple[Gpu, ...]], Layouts], request: LayoutRequest) -> None:
    """Print what would be done. Exit status 1 where a GPU cannot have its layout."""

    async def planned() -> None:
        async with open_site(there.machine, there.state_dir, there.kubelet_root, keeps=False) as site:
            snapshot, layouts = await resolve_layouts(site, layouts_of)
            plan = plan_request(snapshot, request.but(layouts=layouts))
        print_result(plan, plan_lines(plan), as_json=there.as_json)
        sys.exit(not plan.possible)

    signals.run(planned())


def follow(
    there: Where,
    layouts_of: Callable[[tuple[Gpu, ...]], Layouts],
    request: LayoutRequest,
    hooks: Hooks,
    patience: WaitLimit,
) -> None:
    """Request the layouts, and follow them. Exit status 1 where a GPU does not come to have its layout."""
    source = click.get_current_context().get_parameter_source("state_dir")
    keeps = there.machine in (None, NVML) or source is not ParameterSource.DEFAULT

    async def followed() -> Followed:
        async with open_site(there.machine, there.state_dir, there.kubelet_root, keeps=keeps) as site:
            snapshot, layouts = await resolve_layouts(site, layouts_of)
            return await request_and_follow(
                site, snapshot, request.but(layouts=layouts), hooks, patience, debug=there.debug
            )

    outcome = signals.run(followed())
    if there.as_json:
        print_json(outcome)
    elif outcome.done:
        named = join_first_names([str(gpu.index) for gpu in outcome.gpus], 16)
        say(f"{outcome.config} is applied" + (f" to GPU {named}" if named else ": there is nothing to do"))
    else:
        for gpu in outcome.gpus:
            if gpu.state != "done":
                say(f"{gpu.reason}", err=True)
        withdraw = command_line(WITHDRAW, unusual_state_dir(str(there.state_dir)))
        more = f"; the agent goes on, until {withdraw}" if outcome.agent_continues else ""
        print_error(f"{outcome.problem or f'{outcome.config} is not applied to all GPUs'}{more}")
    sys.exit(not outcome.done)


def wait_limit(wait: float | None, *, evict: bool, kubeconfig: Path | None) -> WaitLimit:
    """How long is waited for what holds devices."""
    seconds = wait if wait is not None else EVICTION_SECONDS if evict else 0.0
    return WaitLimit(seconds=seconds, evicts=evict, kubeconfig=kubeconfig)
