"""`gpuplane cdi explain`: what a container gets with a device, and why."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path

import click
import msgspec

from gpuplane.base.text import Text, clip, group_by_key, join_first_names
from gpuplane.cli.commands.cdi.specdirs import read_registry, spec_dir
from gpuplane.cli.kit import agent
from gpuplane.cli.kit.agent import state_dir
from gpuplane.cli.kit.messages import say, terminal_width, wrap_line
from gpuplane.cli.kit.options import json_option
from gpuplane.cli.kit.presenter import Block, print_result, unbroken
from gpuplane.node.core.containers.cdi.explanation import (
    DeviceResolution,
    EditExplanation,
    EditKind,
    Explanation,
    explain_devices,
)
from gpuplane.node.core.containers.cdi.hookactions import HookAction
from gpuplane.node.core.containers.cdi.names import CDI_KINDS
from gpuplane.node.core.containers.cdi.registry import Registry
from gpuplane.node.model.cdi import Mount

TITLE_BY_KIND: dict[EditKind, str] = {
    "node": "device nodes",
    "env": "environment",
    "mount": "mounts",
    "hook": "hooks",
    "interface": "network interfaces",
    "group": "supplementary groups",
    "rdt": "Intel RDT, class of service",
}
MAX_NAMED = 4
"""So many things of a step are shown to a person one by one."""


Left = Mapping[str, Text] | None
"""Files and sockets that the agent gives to no container, and why; None where it cannot be asked."""


@click.command()
@click.argument("devices", nargs=-1, required=True, metavar="DEVICE...")
@spec_dir
@json_option("One JSON document.")
@state_dir
def command(devices: tuple[str, ...], directories: tuple[Path, ...], as_json: bool, state_dir: Path) -> None:
    """Show what a container gets with these devices, which have qualified names such as nvidia.com/gpu=0.

    It shows the file that defines each device, or why a device cannot be used and what to do; device nodes,
    environment, mounts and hooks; what belongs to one device, and what to all devices of its kind; for devices of the
    agent also what it leaves out because others than root could change it. Exit status: 0 if all devices can be used,
    1 if one cannot, so that no container with it can be created. Without a terminal the output has one item on each
    line, and tabs between columns.
    """
    there = read_registry(directories)
    explanation = explain_devices(there, devices)
    unresolvable = any(device.problem for device in explanation.devices)  # which tells of wrong files where they matter
    left, unknown = _left_out([name for name in devices if name in there.devices], state_dir)
    if not as_json:
        for problem in filter(None, (*(() if unresolvable else there.problem_by_file.values()), unknown)):
            say(problem, err=True)
    print_result(
        document(explanation, there, left),
        _lines(explanation, left or {}),
        _page(explanation, left or {}),
        as_json=as_json,
    )
    if unresolvable:
        raise SystemExit(1)


def _left_out(devices: Iterable[str], state_dir: Path) -> tuple[Left, str]:
    """What the agent leaves out of the files of its devices; or why that is not known."""
    if not any(each.partition("=")[0] in CDI_KINDS for each in devices):
        return {}, ""
    try:
        machine = agent.fetch_node_state(state_dir).snapshot.machine
    except click.ClickException as error:
        return None, f"Cannot find out what the agent leaves out: {error.message}"
    return (
        ({}, "")
        if machine is None
        else ({path: machine.insecure_files[path] for path in sorted(machine.insecure_files)}, "")
    )


def document(explanation: Explanation, there: Registry, left: Left) -> dict[str, object]:
    """For machines: every key is always there. `edits` is as CDI has it."""
    pieces = [
        msgspec.structs.asdict(piece)
        | {"hook_actions": [msgspec.structs.asdict(action) for action in piece.hook_actions]}
        for piece in explanation.edit_explanations
    ]
    return {
        "devices": [msgspec.structs.asdict(device) for device in explanation.devices],
        "edit_explanations": pieces,
        "edits": explanation.edits,
        "insecure_files": left,
        "problems": there.problem_by_file,
    }


def _lines(explanation: Explanation, left: Mapping[str, Text]) -> Iterator[str]:
    """The answer for programs that read lines."""
    for device in explanation.devices:
        if device.problem:
            yield _line("unresolvable", device.name, device.problem)
        else:
            yield _line("device", device.name, device.file, _version(device), *device.overridden_files)
    for piece in explanation.edit_explanations:
        yield _line(
            piece.kind,
            piece.edit_text,
            piece.edit_options_text,
            ", ".join(piece.devices_or_kinds),
            "; ".join(piece.notes),
        )
        for step in piece.hook_actions:
            yield _line("step", step.description, *step.targets)
    for path, why in left.items():
        yield _line("left out", path, f"{why}")


def _line(*cells: str) -> str:
    return "\t".join(map(_printable, cells)).rstrip("\t")


def _printable(text: str) -> str:
    """On one line, with nothing that a terminal would obey."""
    return clip(text, len(text))


def _version(device: DeviceResolution) -> str:
    return f"CDI {device.version}" + (
        f", needed for {', '.join(device.version_features)}" if device.version_features else ""
    )


def _defined(device: DeviceResolution) -> str:
    before = f", which has priority over {' and '.join(device.overridden_files)}" if device.overridden_files else ""
    return f"{device.file} ({_version(device)}){before}"


def _page(explanation: Explanation, left: Mapping[str, Text]) -> Iterator[Block]:
    """The answer for a person."""
    from rich.markup import escape

    width = terminal_width(sys.stdout.fileno())
    for device in explanation.devices:
        how, style = (f"cannot be used: {device.problem}", "red") if device.problem else (_defined(device), "")
        whole = escape(wrap_line(f"{device.name}  {how}", width).removeprefix(device.name))
        painted = f"[{style}]{whole}[/]" if style else whole
        yield unbroken(f"[bold]{escape(device.name)}[/bold]{painted}")
    if any(device.problem for device in explanation.devices):
        yield "[red]A container that requests all of this cannot be created.[/red]"
    mounts = {mount.container_path: mount for mount in explanation.edits.mounts}
    for kind, pieces in groupby(explanation.edit_explanations, key=lambda piece: piece.kind):
        yield f"[bold]{TITLE_BY_KIND[kind]}[/bold]"
        for whose, alike in groupby(pieces, key=lambda piece: piece.devices_or_kinds):
            head = wrap_line(f"  with {_whose(whose, explanation)}", width)
            yield unbroken(f"[dim]{escape(head)}[/dim]")
            for line in _mounts(mounts[each.edit_text] for each in alike) if kind == "mount" else _all(alike):
                yield unbroken(escape(wrap_line(f"    {line}", width)))
    if left:
        yield "[bold]left out[/bold], because users other than root could change these paths"
    for why, paths in group_by_key((why, path) for path, why in left.items()):
        yield unbroken(escape(wrap_line(f"    {_printable(f'{join_first_names(paths, MAX_NAMED)}: {why}')}", width)))


def _whose(origin: tuple[str, ...], explanation: Explanation) -> str:
    names = {device.name for device in explanation.devices}
    return ", ".join(each if each in names else f"any device of {each}" for each in origin)


def _all(pieces: Iterable[EditExplanation]) -> Iterator[str]:
    """Each with what it does, step by step."""
    for piece in pieces:
        yield "  ".join(
            filter(None, map(_printable, (piece.edit_text, piece.edit_options_text, "; ".join(piece.notes))))
        )
        yield from (f"  {_step(step)}" for step in piece.hook_actions)


def _step(step: HookAction) -> str:
    return step.description + (f": {_printable(join_first_names(step.targets, MAX_NAMED))}" if step.targets else "")


def _mounts(mounts: Iterable[Mount]) -> Iterator[str]:
    """Mounts by the folders where they appear: what is in them, where that comes from, and how it is mounted."""
    for (folder, source, options), each in groupby(mounts, key=_place):
        names = [_parts(mount.container_path)[1] for mount in each]
        host = "" if source == folder else f"from {source}"
        how = f"({','.join(options)})" if options else ""
        yield "  ".join(filter(None, map(_printable, (folder, join_first_names(names, MAX_NAMED), host, how))))


def _place(mount: Mount) -> tuple[str, str, tuple[str, ...]]:
    return _parts(mount.container_path)[0], _parts(mount.host_path)[0], mount.options


def _parts(path: str) -> tuple[str, str]:
    """(folder, name)."""
    folder, slash, name = path.rpartition("/")
    return folder or slash or path, name
