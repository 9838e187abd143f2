"""Where the commands look for specifications, and how they say what is wrong there."""

import os
from collections.abc import Iterator
from pathlib import Path

import click

from gpuplane.base.text import format_count, join_first_names
from gpuplane.cli.kit.options import FILE_PATH
from gpuplane.node.core.containers.cdi.registry import DEFAULT_SPEC_DIRECTORIES, Registry, build_registry
from gpuplane.node.host.specfiles import read_spec_files, spec_file_paths

MAX_NAMED_DEVICES = 3
"""So many names of those that files have in common are told."""

SPEC_DIRS_VARIABLE = "NVIDIA_CTK_CDI_SPEC_DIRS"  # with commas between, as NVIDIA's command has it


def _given_or_default(context: click.Context, parameter: click.Parameter, given: tuple[Path, ...]) -> tuple[Path, ...]:
    if given:
        return given
    named = [each.strip() for each in os.environ.get(SPEC_DIRS_VARIABLE, "").split(",")]
    return tuple(map(Path, filter(None, named))) or tuple(map(Path, DEFAULT_SPEC_DIRECTORIES))


spec_dir = click.option(
    "--spec-dir",
    "directories",
    multiple=True,
    type=FILE_PATH,
    metavar="DIR",
    callback=_given_or_default,
    help="A directory of specifications; if there are several, the last has priority. Default: "
    f"${SPEC_DIRS_VARIABLE} (with commas), else {' and '.join(DEFAULT_SPEC_DIRECTORIES)}.",
)


def read_registry(directories: tuple[Path, ...]) -> Registry:
    """What the files there define now."""
    return build_registry(read_spec_files(directories))


def describe_directory(directory: Path) -> str:
    """What was found in a directory, in a sentence without its end."""
    try:
        count = len(spec_file_paths(directory))
    except OSError as error:
        return f"{directory} cannot be read: {error.strerror}"
    if not count:
        return f"{directory} {'has no specification' if directory.exists() else 'does not exist'}"
    return f"{directory} has {format_count(count, 'specification')}"


def problem_lines(registry: Registry) -> Iterator[str]:
    """What is wrong with the files, a line each: those that count for nothing, and those that define the same."""
    yield from registry.problem_by_file.values()
    together: dict[tuple[str, ...], list[str]] = {}
    for name, files in registry.conflicting_files_by_device.items():
        together.setdefault(files, []).append(name)
    for files, names in together.items():
        devices = join_first_names(names, MAX_NAMED_DEVICES)
        yield f"{' and '.join(files)} define these devices with equal priority, so no runtime uses them: {devices}"
