"""`gpuplane inspect`: what a running agent knows, and what it makes the node advertise."""

import sys
from pathlib import Path

import click
import msgspec

from gpuplane.cli.connection import ask, state_dir
from gpuplane.model.control import Picture, Show


@click.command()
@state_dir
@click.option("--json", "as_json", is_flag=True, help="The whole picture as one JSON document.")
def command(state_dir: Path, as_json: bool) -> None:
    """Show the node as its agent sees it: devices, who holds them, and how every part stands."""
    picture = ask(state_dir, Show()).picture
    assert picture is not None
    if as_json:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(picture), indent=2) + b"\n")
    else:
        show(picture)


def show(picture: Picture) -> None:
    """Print the picture for a person."""
    from rich.console import Console
    from rich.table import Table

    console = Console(soft_wrap=not sys.stdout.isatty(), highlight=False)
    devices = Table("device", "resource", "state", "held by", box=None, header_style="bold", pad_edge=False)
    holders = {
        (allocation.resource, device): allocation.pod or "a pod that is being admitted"
        for allocation in picture.snapshot.allocations or ()
        for device in allocation.devices
    }
    for resource in picture.offer.resources:
        for device in resource.devices:
            state = f"[red]unhealthy[/red]: {device.trouble}" if device.trouble else "[green]healthy[/green]"
            devices.add_row(device.id, resource.name, state, holders.get((resource.name, device.id), ""))
    for left in picture.offer.left:
        devices.add_row(left.unit, "-", f"[yellow]not offered[/yellow]: {left.reason}", "")
    if picture.offer.waiting:
        console.print(f"[yellow]Nothing is advertised yet:[/yellow] {picture.offer.waiting}")
    console.print(devices)
    parts = Table("part", "stands", "for", "reason", box=None, header_style="bold", pad_edge=False)
    for part, condition in sorted(picture.snapshot.conditions.items()):
        parts.add_row(part, condition.standing, f"{picture.now - condition.since:.0f} s", condition.reason)
    console.print(parts)
