"""`gpuplane inspect`: what a running agent knows, and what it makes the node advertise.

Ids are never cut or broken: they differ at their ends, and people copy them. Reasons give way where room is short.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

from gpuplane.cli.connection import ask, state_dir
from gpuplane.core.health.diagnose import released
from gpuplane.model.control import Picture, Show


@click.command()
@state_dir
@click.option("--json", "as_json", is_flag=True, help="The whole picture as one JSON document.")
def command(state_dir: Path, as_json: bool) -> None:
    """Show the node as its agent sees it: devices, who holds them, and how every part stands.

    Away from a terminal: one line a thing, columns apart by tabs.
    """
    picture = ask(state_dir, Show()).picture
    assert picture is not None
    if as_json:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(picture), indent=2) + b"\n")
    elif sys.stdout.isatty():
        draw(picture)
    else:
        for line in lines(picture):
            click.echo(line)


def lines(picture: Picture) -> Iterator[str]:
    """The picture for programs that read lines."""
    if picture.offer.waiting:
        yield _line("waiting", picture.offer.waiting)
    if why := released(picture.snapshot):
        yield _line("release", _until(picture), why)
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
    found = list(_devices(picture))
    ids = Column("device", no_wrap=True, min_width=max((len(id) for id, *_ in found), default=0))
    devices = Table(ids, "resource", "state", "held by", box=None, header_style="bold", pad_edge=False)
    for id, resource, state, reason, holder in found:
        told = f"[{COLOURS[state]}]{state}[/{COLOURS[state]}]" + (f": {escape(reason)}" if reason else "")
        devices.add_row(escape(id), escape(resource), told, escape(holder))
    console.print(devices, crop=False)
    parts = Table("part", "stands", "for", "reason", box=None, header_style="bold", pad_edge=False)
    for part in _parts(picture):
        parts.add_row(*map(escape, part))
    console.print(parts, crop=False)


COLOURS = {"healthy": "green", "unhealthy": "red", "not offered": "yellow"}


def _devices(picture: Picture) -> Iterator[tuple[str, str, str, str, str]]:
    """Id, resource, state, its reason and who holds it, of each device and of what is not offered."""
    holders = {
        (allocation.resource, device): allocation.pod or "a pod that is being admitted"
        for allocation in picture.snapshot.allocations or ()
        for device in allocation.devices
    }
    for resource in picture.offer.resources:
        for device in resource.devices:
            state, holder = "unhealthy" if device.trouble else "healthy", holders.get((resource.name, device.id), "")
            yield device.id, resource.name, state, device.trouble, holder
    for left in picture.offer.left:
        yield left.unit, "-", "not offered", left.reason, ""


def _parts(picture: Picture) -> Iterator[tuple[str, str, str, str]]:
    """Name, standing, for how long, and why."""
    for part, condition in sorted(picture.snapshot.conditions.items()):
        yield part, condition.standing, f"{picture.now - condition.since:.0f} s", condition.reason


def _until(picture: Picture) -> str:
    """How long the driver is still let go of."""
    release = picture.snapshot.ledger.release
    if release is None:
        return "as long as the Node object asks for it"
    return f"for another {max(0.0, release.until - picture.now):.0f} s"
