"""`gpuplane cdi list`: the devices that a container runtime would know here."""

import sys
from pathlib import Path

import click

from gpuplane.base.text import tab_separated
from gpuplane.cli.commands.cdi.specdirs import known, looked_into, spec_dir, troubles
from gpuplane.cli.kit.messages import marked, say
from gpuplane.node.core.containers.cdi.registry import Registry
from gpuplane.node.model.encoding import format_json


@click.command(name="list")
@spec_dir
@click.option("--json", "as_json", is_flag=True, help="One JSON document, with the file of each device.")
def command(directories: tuple[Path, ...], as_json: bool) -> None:
    """List the devices that a container runtime finds here, by their qualified names.

    Errors in the files come first, on standard error. A runtime ignores such files, so the exit status is 0 even then.
    If there is no device, standard error lists the searched directories. Without a terminal the output has one name on
    each line.
    """
    there = known(directories)
    if as_json:
        sys.stdout.buffer.write(format_json(document(there, directories)))
        return
    for line in troubles(there):
        say(line, err=True)
    if not there.devices:
        none = f"No device {'can be used' if there.conflicting_files_by_device else 'is defined'}."
        say(f"{none} {'; '.join(map(looked_into, directories))}.", err=True)
    elif sys.stdout.isatty():
        draw(there)
    else:
        for name in there.devices:
            click.echo(tab_separated(name))


def document(there: Registry, directories: tuple[Path, ...]) -> dict[str, object]:
    """For machines: every key is always there."""
    return {
        "directories": list(map(str, directories)),
        "devices": {name: defined.file.path for name, defined in there.devices.items()},
        "conflicts": there.conflicting_files_by_device,
        "problems": there.problem_by_file,
    }


def draw(there: Registry) -> None:
    """Print them for a person."""
    from rich.console import Console
    from rich.table import Column, Table

    console = Console(highlight=False)
    rows = [(name, defined.file.path) for name, defined in there.devices.items()]
    heads = zip(("device", "defined in"), *rows, strict=True)
    columns = [Column(head, no_wrap=True, min_width=max(map(len, (head, *cells)))) for head, *cells in heads]
    table = Table(*columns, box=None, header_style="bold", pad_edge=False)
    for row in rows:
        table.add_row(*map(marked, row))
    console.print(table, crop=False)
