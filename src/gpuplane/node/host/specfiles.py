"""The files of CDI directories, found as container runtimes find them (CNCF, pkg/cdi/spec-dirs.go).

Every `.json` and `.yaml` file counts, in no directory but those that are named; one that is missing holds nothing. A
directory that is a symbolic link is not followed: runtimes see nothing in it, which is worth a word. What is no regular
file is not read, so that nobody waits for a FIFO.
"""

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpuplane.base import files
from gpuplane.base.document import MAX_BYTES
from gpuplane.base.text import escape_unprintable
from gpuplane.node.core.containers.cdi.registry import SPEC_FILE_SUFFIXES, SpecFile, parse_spec_file


def read_spec_files(directories: Sequence[Path]) -> Iterator[SpecFile]:
    """Each file as it is read, the directory's number being its priority; a directory that cannot be read is a problem
    of its own."""
    for priority, directory in enumerate(directories):
        try:
            there = spec_file_paths(directory)
        except OSError as error:
            yield parse_spec_file(os.fspath(directory), error, priority)
        else:
            yield from (
                parse_spec_file(escape_unprintable(os.fspath(path)), read_spec_file(path), priority) for path in there
            )


def read_spec_file(path: Path) -> bytes | OSError:
    """A specification's bytes, or why they cannot be read."""
    try:
        return files.read(path, MAX_BYTES)
    except OSError as error:
        return error


def spec_file_paths(directory: Path) -> list[Path]:
    """The files that count. Raises OSError where the directory cannot be read."""
    if directory.is_symlink():
        raise OSError(errno.ELOOP, "a symbolic link, which container runtimes do not follow", os.fspath(directory))
    try:
        return sorted(
            path for path in directory.iterdir() if path.name.endswith(SPEC_FILE_SUFFIXES) and not _directory(path)
        )
    except FileNotFoundError:
        return []


def _directory(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()
