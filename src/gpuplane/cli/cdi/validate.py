"""`gpuplane cdi validate`: is a specification good."""

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from gpuplane.core.containers.cdi.check import check, read, refused
from gpuplane.core.containers.cdi.version import lowest
from gpuplane.core.document import LONGEST
from gpuplane.core.strict import Invalid
from gpuplane.host.specfiles import content
from gpuplane.model.cdi import Spec

WRONG, UNREADABLE = 1, 2


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))
def command(files: tuple[Path, ...]) -> None:
    """Hold CDI specifications, YAML or JSON, against the rules of CDI; - is standard input.

    Every mistake is told with file and line, on standard error: what makes container runtimes refuse a whole file, and
    what they let pass but stumble over when a container starts. Exit status: 0 where all files are good, 1 where one is
    wrong, 2 where one cannot be read.
    """
    raise SystemExit(max(map(_judge, files)))


def _judge(file: Path) -> int:
    """Say how a file stands; the exit status for it."""
    data = sys.stdin.buffer.read(LONGEST + 1) if str(file) == "-" else content(file)
    if isinstance(data, OSError):
        click.echo(f"{file}: {data.strerror or data}", err=True)
        return UNREADABLE
    try:
        click.echo(f"{file}: good: {_summary(read(data, str(file), check))}")
    except Invalid as invalid:
        for line in _told(data, str(file), invalid):
            click.echo(line, err=True)
        return WRONG
    return 0


def _summary(spec: Spec) -> str:
    count, least = len(spec.devices), lowest(spec)
    enough = "" if least == spec.cdi_version else f"; {least} would be enough"
    return f"{count} {'device' if count == 1 else 'devices'} of {spec.kind}, version {spec.cdi_version}{enough}"


def _told(data: bytes, file: str, invalid: Invalid) -> Iterator[str]:
    yield from invalid.errors
    try:
        read(data, file, refused)
        yield f"{file}: container runtimes read it all the same, and may fail at that when a container starts"
    except Invalid:
        yield f"{file}: container runtimes refuse it: none of its devices can be used"
