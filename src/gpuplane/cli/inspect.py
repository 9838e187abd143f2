"""`gpuplane inspect`: what a running agent knows, and what it makes the node advertise.

Ids and resources are never cut or broken: they differ at their ends, and people copy them. Reasons give way where
room is short.
"""

import sys
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

import click
import msgspec

from gpuplane.cli.connection import show, state_dir
from gpuplane.cli.options import OneOf
from gpuplane.cli.times import span
from gpuplane.core.containers.strategy import counting
from gpuplane.core.health.diagnose import overall, released
from gpuplane.core.resources.sharing import base
from gpuplane.core.text import indented
from gpuplane.model.control import Picture
from gpuplane.model.health import Diagnosis
from gpuplane.model.views import Offered


@click.command()
@click.argument("what", required=False, type=OneOf(["health"]))
@state_dir
@click.option("--json", "as_json", is_flag=True, help="One JSON document: all that is known of it.")
def command(what: str | None, state_dir: Path, as_json: bool) -> None:
    """Show the node as its agent sees it: devices, who holds them, and how every part stands.

    With the word health: how each device stands, since when and why, what ends it and what to do.

    Away from a terminal: one line a thing, columns apart by tabs.
    """
    picture = show(state_dir)
    if as_json:
        document = health_document(picture) if what else picture
        sys.stdout.buffer.write(indented(document))
    elif sys.stdout.isatty():
        (draw_health if what else draw)(picture)
    else:
        for line in (health_lines if what else lines)(picture):
            click.echo(line)


def lines(picture: Picture) -> Iterator[str]:
    """The picture for programs that read lines."""
    if picture.offer.waiting:
        yield _line("waiting", picture.offer.waiting)
    if why := released(picture.snapshot):
        yield _line("release", _until(picture), why)
    if (strategy := counting(picture.snapshot)) is not None:
        yield _line("strategy", ",".join(strategy.strategies), strategy.why)
    for device in _devices(picture):
        yield _line("device", *device)
    for part in _parts(picture):
        yield _line("part", *part)


def _line(*cells: str) -> str:
    return "\t".join(" ".join(cell.split()) for cell in cells).rstrip("\t")


def draw(picture: Picture) -> None:
    """Print the picture for a person."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Column, Table

    console = Console(highlight=False)
    if picture.offer.waiting:
        console.print(f"[yellow]Nothing is advertised yet:[/yellow] {escape(picture.offer.waiting)}")
    if why := released(picture.snapshot):
        console.print(f"[yellow]The driver is let go of {escape(_until(picture))}:[/yellow] {escape(why)}")
    if (strategy := counting(picture.snapshot)) is not None:
        console.print(f"Containers are given devices by {escape(str(strategy))}")
    found = list(_together(_devices(picture)))
    ids, names = (
        Column(head, no_wrap=True, min_width=max((len(row[at]) for row in found), default=0))
        for at, head in enumerate(("device", "resource"))
    )
    states = Column("state", min_width=len("unhealthy:"))
    holders = Column("held by", overflow="fold", min_width=len("held by"))
    devices = Table(ids, names, states, holders, box=None, header_style="bold", pad_edge=False)
    for id, resource, state, reason, holder in found:
        told = f"[{COLOURS[state]}]{state}[/{COLOURS[state]}]" + (f": {escape(reason)}" if reason else "")
        devices.add_row(escape(id), escape(resource), told, escape(holder))
    console.print(devices, crop=False)
    parts = Table("part", "stands", "for", "reason", box=None, header_style="bold", pad_edge=False)
    for part in _parts(picture):
        parts.add_row(*map(escape, part))
    console.print(parts, crop=False)


def health_document(picture: Picture) -> dict[str, object]:
    """How the devices stand, for machines: every key is always there. Times are CLOCK_BOOTTIME, as `now` is."""
    return {"now": picture.now, "devices": [msgspec.structs.asdict(each) for each in overall(picture.snapshot)]}


def health_lines(picture: Picture) -> Iterator[str]:
    """How the devices stand, for programs that read lines: index, device, state, since, reason, ends, advice."""
    if picture.snapshot.machine is None:
        yield _line("waiting", picture.offer.waiting)
    for each in overall(picture.snapshot):
        index, device = _named(each)
        yield _line(index, device, each.state, _since(each, picture), each.reason, _ends(each, picture), each.advice)


def draw_health(picture: Picture) -> None:
    """Print for a person how the devices stand."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Column, Table

    console, found = Console(highlight=False), overall(picture.snapshot)
    if picture.snapshot.machine is None:
        console.print(f"[yellow]Little is known yet:[/yellow] {escape(picture.offer.waiting)}")
    ids = Column("device", no_wrap=True, min_width=max((len(each.device) for each in found), default=0))
    table = Table("", ids, "state", "for", "reason", box=None, header_style="bold", pad_edge=False)
    for each in found:
        told = [
            escape(each.reason),
            *([f"[dim]what ends it:[/dim] {escape(_ends(each, picture))}"] if each.ends else []),
            *([f"[dim]what to do:[/dim] {escape(each.advice)}"] if each.advice else []),
        ]
        state = f"[{COLOURS[each.state]}]{each.state}[/{COLOURS[each.state]}]"
        table.add_row(*map(escape, _named(each)), state, _since(each, picture), "\n".join(told))
    console.print(table, crop=False)


def _named(diagnosis: Diagnosis) -> tuple[str, str]:
    """(index, UUID), as far as there are any."""
    return (diagnosis.index or "-", diagnosis.device) if diagnosis.device else ("node", "-")


def _since(diagnosis: Diagnosis, picture: Picture) -> str:
    return "" if diagnosis.since is None else span(picture.now - diagnosis.since)


def _ends(diagnosis: Diagnosis, picture: Picture) -> str:
    if not diagnosis.ends or diagnosis.until is None:  # of what it shares its GPU says that, or the node
        return diagnosis.ends
    return f"{diagnosis.ends}, in {span(diagnosis.until - picture.now)}"


COLOURS = {
    "healthy": "green",
    "suspect": "yellow",
    "degraded": "yellow",
    "drained": "yellow",
    "probing": "yellow",
    "unhealthy": "red",
    "not offered": "yellow",
}


Row = tuple[str, str, str, str, str]


def _devices(picture: Picture) -> Iterator[Row]:
    """Id, resource, state, its reason and who holds it, of each device and of what is not offered."""
    holders = {
        (allocation.resource, device): allocation.pod or "a pod that is being admitted"
        for allocation in picture.snapshot.allocations or ()
        for device in allocation.devices
    }
    stands = {each.device: each for each in overall(picture.snapshot)}
    for resource in picture.offer.resources:
        for device in resource.devices:
            state, reason = _state(device, stands.get(device.unit.id))
            yield device.id, resource.name, state, reason, holders.get((resource.name, device.id), "")
    for left in picture.offer.left:
        yield left.unit, "-", "not offered", left.reason, ""


def _together(devices: Iterable[Row]) -> Iterator[Row]:
    """Shares of one device that stand alike, in one row: there may be thousands of them."""
    for (unit, *alike), rows in groupby(devices, key=lambda row: (base(row[0]), *row[1:])):
        ids = [id for id, *_ in rows]
        resource, state, reason, holder = alike
        yield ids[0] + f"…{ids[-1].removeprefix(f'{unit}::')}" * (len(ids) > 1), resource, state, reason, holder


def _state(device: Offered, diagnosis: Diagnosis | None) -> tuple[str, str]:
    """(state, reason): as kubelet is told, in health's own words where they say more."""
    state = diagnosis.state if diagnosis else "healthy"
    if device.trouble:
        known = state if state in ("drained", "probing") else "unhealthy"
        return known, device.trouble.removeprefix("drained: ") if state == "drained" else device.trouble
    if diagnosis is not None and state in ("suspect", "degraded"):
        return state, diagnosis.reason
    return "healthy", ""


def _parts(picture: Picture) -> Iterator[tuple[str, str, str, str]]:
    """Name, standing, for how long, and why."""
    for part, condition in sorted(picture.snapshot.conditions.items()):
        yield part, condition.standing, span(picture.now - condition.since), condition.reason


def _until(picture: Picture) -> str:
    """How long the driver is still let go of."""
    release = picture.snapshot.ledger.release
    if release is None:
        return "as long as the Node object asks for it"
    return f"for another {span(release.until - picture.now)}"
