"""`gpuplane choose`: which devices a node would advise, and why."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_args

import click

from gpuplane.base.text import format_count, tab_separated
from gpuplane.cli.kit.messages import escape_markup
from gpuplane.cli.kit.observed import observed_snapshot
from gpuplane.cli.kit.options import FILE_PATH, Machine, OneOf, json_option, usage_error
from gpuplane.cli.kit.presenter import Block, Table, print_json, print_result, unbroken
from gpuplane.node.core.advertising import offer
from gpuplane.node.core.choice.explanation import ChoiceExplanation, explain_choice
from gpuplane.node.core.choice.linkscores import Policy
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.views import OfferedDevice, Resource

HEADINGS = ("link score", "best 8 of the rest", "best 4", "best 2", "sets", "set with the lowest indices")
DEVICES_HELP = "Devices, separated by commas: an index (0, 0:1 for MIG), one share of it (0::2), or an id."


@click.command()
@click.option("--machine", required=True, type=Machine(), help="A machine file, or the name of a profile.")
@click.option("--config", type=FILE_PATH, help="A configuration. Default: whole GPUs, no MIG.")
@click.option("--resource", help="The resource. Default: the first that this node would advertise.")
@click.option("--available", metavar="DEVICES", help=f"The free devices. {DEVICES_HELP} Default: all healthy devices.")
@click.option(
    "--required",
    metavar="DEVICES",
    default="",
    help="The devices that the answer must include, in the format of --available.",
)
@click.option("--size", required=True, type=click.IntRange(1), help="How many devices to choose.")
@click.option(
    "--policy", type=OneOf(get_args(Policy)), help="The allocation policy. Default: the one of the configuration."
)
@json_option("The whole answer as one JSON document.")
def command(
    machine: str,
    config: Path | None,
    resource: str | None,
    available: str | None,
    required: str,
    size: int,
    policy: Policy | None,
    as_json: bool,
) -> None:
    """Show which devices kubelet would be advised to allocate, and why: how well they are connected, what stays free.

    A pair of GPUs is worth 100 for each NVLink lane between them, plus 10 to 50 for how close they are on PCIe; a set
    is worth the sum of its pairs. Without a terminal the output has one item on each line, and tabs between columns.

    Exit status 1 if a container that requests so many devices would not start; --json shows the advice even then.
    """
    snapshot = observed_snapshot(machine, config, Path("/"))
    offered = _find_resource(snapshot, resource)
    free, must = None if available is None else _device_ids(offered, available), _device_ids(offered, required)
    if free is not None and (missing := [id for id in must if id not in free]):
        raise usage_error(f"--required has devices that are not in --available: {', '.join(missing)}")
    if len(must) > size:
        raise usage_error(f"--required has {format_count(len(must), 'device')}, more than --size {size}")
    choice = explain_choice(snapshot, offered.name, free, must, size, policy)
    if choice.refusal_text:
        if as_json:
            print_json(choice)
        raise click.ClickException(choice.refusal_text)
    print_result(choice, _lines(choice), _page(choice), as_json=as_json)


def _lines(choice: ChoiceExplanation) -> Iterator[str]:
    """The answer for programs that read lines."""
    yield tab_separated("gpus", _gpu_list(choice))
    yield from (tab_separated("id", id) for id in choice.ids)
    yield f"link_score\t{choice.link_score}" + (
        f"\tat most {choice.link_score_bound}" if choice.link_score_bound is not None else ""
    )
    if choice.remaining_link_scores:
        yield "\t".join(("remaining_link_scores", *map(_link_score_text, choice.remaining_link_scores)))
    yield tab_separated("why", choice.choice_reason)
    for kind in choice.best_sets:
        yield "\t".join(
            (
                "sets",
                str(kind.set_count),
                str(kind.link_score),
                *map(_link_score_text, kind.remaining_link_scores),
                _comma_separated(kind.example_gpu_indices),
            )
        )
    if choice.assumption:
        yield tab_separated("note", choice.assumption)


def _page(choice: ChoiceExplanation) -> Iterator[Block]:
    """The answer for a person."""
    chosen = f"{escape_markup(choice.resource)}: GPU {_gpu_list(choice) or 'none'}"
    yield f"[bold]{chosen}[/bold]  {escape_markup(choice.choice_reason)}"
    for id in choice.ids:
        yield unbroken(f"  {escape_markup(id)}")
    if choice.link_score_bound:
        gap = 100 * (1 - choice.link_score / choice.link_score_bound)
        yield (
            f"link score {choice.link_score}; the best set has {choice.link_score_bound} or less, so this set is at "
            f"most {gap:.0f} % below the best"
        )
    elif not choice.best_sets:
        yield f"link score {choice.link_score}"
    if choice.best_sets:
        rows = tuple(
            (
                str(each.link_score),
                *map(_link_score_text, each.remaining_link_scores),
                str(each.set_count),
                _comma_separated(each.example_gpu_indices),
            )
            for each in choice.best_sets
        )
        yield Table(HEADINGS, rows, give_way=HEADINGS[-1:], best_row=0)
    if choice.assumption:
        yield f"[yellow]note[/yellow] {escape_markup(choice.assumption)}"


def _gpu_list(choice: ChoiceExplanation) -> str:
    return _comma_separated(f"{gpu} ×{count}" if count > 1 else gpu for gpu, count in choice.gpus.items())


def _comma_separated(each: Sequence[object] | Iterator[object]) -> str:
    return ",".join(map(str, each))


def _link_score_text(worth: int | None) -> str:
    return "-" if worth is None else str(worth)


def _find_resource(snapshot: Snapshot, name: str | None) -> Resource:
    offered = offer(snapshot)
    found = next(iter(offered.resources), None) if name is None else offered.resource(name)
    if found is None:
        names = ", ".join(each.name for each in offered.resources)
        instead = f"it would advertise: {names}" if names else offered.waiting_reason or "it has no device to advertise"
        raise click.ClickException(f"this node would advertise no GPU as {name or 'any resource'}; {instead}")
    return found


def _device_ids(resource: Resource, names: str) -> list[str]:
    """The ids that a person names."""
    found: list[str] = []
    for name in filter(None, (each.strip() for each in names.split(","))):
        ids = [device.id for device in resource.devices if name in _device_names(device)]
        if not ids:
            there = ", ".join(dict.fromkeys(device.unit.index for device in resource.devices))
            raise click.ClickException(f"{resource.name} has no device {name!r}; it has the indices {there}")
        found += ids
    return [*dict.fromkeys(found)]


def _device_names(device: OfferedDevice) -> tuple[str, ...]:
    share = device.id.removeprefix(device.unit.id)
    return device.id, device.unit.id, device.unit.index, f"{device.unit.index}{share}"
