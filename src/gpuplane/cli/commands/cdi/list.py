"""`gpuplane cdi list`: the devices that a container runtime would know here."""

from pathlib import Path

import click

from gpuplane.cli.commands.cdi.specdirs import describe_directory, problem_lines, read_registry, spec_dir
from gpuplane.cli.kit.messages import say
from gpuplane.cli.kit.options import json_option
from gpuplane.cli.kit.presenter import Table, print_result, rows_as_lines
from gpuplane.node.core.containers.cdi.registry import Registry

HEADINGS = ("device", "defined in")


@click.command(name="list")
@spec_dir
@json_option("One JSON document, with the file of each device.")
def command(directories: tuple[Path, ...], as_json: bool) -> None:
    """List the devices that a container runtime finds here, by their qualified names.

    Errors in the files come first, on standard error. A runtime ignores such files, so the exit status is 0 even then.
    If there is no device, standard error lists the searched directories. Without a terminal the output has one name on
    each line.
    """
    there = read_registry(directories)
    if not as_json:
        for line in problem_lines(there):
            say(line, err=True)
    none = f"No device {'can be used' if there.conflicting_files_by_device else 'is defined'}."
    print_result(
        document(there, directories),
        rows_as_lines((name,) for name in there.devices),
        [Table(HEADINGS, tuple((name, defined.file.path) for name, defined in there.devices.items()))],
        as_json=as_json,
        nothing_found="" if there.devices else f"{none} {'; '.join(map(describe_directory, directories))}.",
    )


def document(there: Registry, directories: tuple[Path, ...]) -> dict[str, object]:
    """For machines: every key is always there."""
    return {
        "directories": list(map(str, directories)),
        "devices": {name: defined.file.path for name, defined in there.devices.items()},
        "conflicts": there.conflicting_files_by_device,
        "problems": there.problem_by_file,
    }
