"""Where the commands look for specifications, and how they say what is wrong there."""

import os
from collections.abc import Iterator
from pathlib import Path

import click

from gpuplane.core.containers.cdi.registry import DIRECTORIES, Registry, registry
from gpuplane.host.specfiles import found

ENVIRONMENT = "NVIDIA_CTK_CDI_SPEC_DIRS"  # with commas between, as NVIDIA's command has it


def _named(context: click.Context, parameter: click.Parameter, given: tuple[Path, ...]) -> tuple[Path, ...]:
    if given:
        return given
    named = [each.strip() for each in os.environ.get(ENVIRONMENT, "").split(",")]
    return tuple(map(Path, filter(None, named))) or tuple(map(Path, DIRECTORIES))


spec_dir = click.option(
    "--spec-dir",
    "directories",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    callback=_named,
    help=f"Where specifications lie; of several the last has priority. Default: ${ENVIRONMENT} (with commas), else "
    f"{' and '.join(DIRECTORIES)}.",
)


def known(directories: tuple[Path, ...]) -> Registry:
    """What the files there define now."""
    return registry(found(directories))


def troubles(known: Registry) -> Iterator[str]:
    """What is wrong with the files, a line each: those that count for nothing, and who defines a device twice."""
    yield from known.problems.values()
    for name, files in known.conflicts.items():
        yield f"{name}: no runtime can resolve it: {' and '.join(files)} define it, with equal priority"
