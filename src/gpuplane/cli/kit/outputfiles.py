"""Files that a command writes where its user says. All commands use these two functions for it.

A file is replaced as a whole (`files.replace`). That would put a file in the place of a device or of a link: as root
`--csv /dev/null` would take /dev/null from everybody. So only a regular file is replaced. That is checked before the
work, which may take minutes, and again before the file is written.
"""

import os
import secrets
from pathlib import Path

import click

from gpuplane.base import files
from gpuplane.cli.kit import signals


def check_output(path: Path, *others: Path | None) -> None:
    """Raises ClickException where it is plain that this file cannot be written, or is one of the others, which are read
    or written, too."""
    _check_regular(path)
    if any(each is not None and each.resolve() == path.resolve() for each in others):
        raise click.ClickException(f"{path}: this command has another use for this file: name another one")
    directory = path.absolute().parent
    if not directory.is_dir():
        raise click.ClickException(f"{path}: its directory is not there")
    if not os.access(directory, os.W_OK | os.X_OK):
        raise click.ClickException(f"{path}: its directory cannot be written to")


def write_output(path: Path, content: bytes) -> None:
    """Give the file this content, readable by everybody, or leave it as it was. Raises ClickException."""
    _check_regular(path)
    try:
        with signals.uninterrupted():
            files.replace(path, content, mode=0o644, aside=path.with_name(f".gpuplane-{secrets.token_hex(8)}.new"))
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror}") from None


def _check_regular(path: Path) -> None:
    """Raises ClickException where something else is there."""
    try:
        found = path.lstat()
    except OSError:
        return  # nothing is there, or writing says why not
    if reason := files.not_regular_reason(found):
        raise click.ClickException(f"{path}: {reason}")
