"""Files that people edit while we run.

Watched by looking at them: a `stat` each second costs less than can be measured, and unlike inotify it sees
through atomic replacement, ConfigMap symlinks, overlay mounts and exhausted watch limits alike. What is no regular file
is not read, nor what is larger than any document: it is said as an error.
"""

import errno
import stat
from collections.abc import AsyncIterator, Callable
from itertools import islice
from pathlib import Path
from typing import TypeVar

from gpuplane.base import files
from gpuplane.base.document import MAX_BYTES
from gpuplane.base.pauses import sleep_until_next

T = TypeVar("T")

FolderContents = dict[str, bytes | OSError]
"""The files of a directory by name; one that cannot be read costs itself."""

MAX_FILES = 1000
"""Files of a directory, all of them together of `files.MAX_FILE_BYTES` bytes. A ConfigMap holds at most 1 MiB."""

MAX_SWAPS = 3
"""Times in a row that a directory may be swapped while it is read."""


async def watch_file(path: Path, every: float = 1.0) -> AsyncIterator[bytes | OSError]:
    """The file's bytes now and after each change; an OSError where it cannot be read, once for each reason."""
    async for found in _changes(lambda: _file(path), every):
        yield found


async def watch_file_or_folder(path: Path, every: float = 1.0) -> AsyncIterator[bytes | FolderContents | OSError]:
    """What `watch_file` gives, or the files of a directory (a mounted ConfigMap): which of them is seen each time."""
    async for found in _changes(lambda: _file_or_folder(path), every):
        yield found


async def _changes(look: Callable[[], tuple[object, Callable[[], T]]], every: float) -> AsyncIterator[T | OSError]:
    """What is read now and whenever its state is another. `look` gives the state, and how to read."""
    last: object = None
    while True:
        found: T | OSError | None = None
        try:
            state, read = look()
            if state != last:
                found = read()
        except OSError as error:
            state, found = str(error), error
        if state != last and found is not None:
            last = state
            yield found
        await sleep_until_next(every)


def _file(path: Path) -> tuple[object, Callable[[], bytes]]:
    seen = path.stat()
    return (seen.st_dev, seen.st_ino, seen.st_mtime_ns, seen.st_size), lambda: files.read(path, MAX_BYTES)


def _file_or_folder(path: Path) -> tuple[object, Callable[[], bytes | FolderContents]]:
    return _folder(path) if path.is_dir() else _file(path)


def _folder(path: Path) -> tuple[object, Callable[[], FolderContents]]:
    found = _read(path)
    for _ in range(MAX_SWAPS):
        if not any(isinstance(content, FileNotFoundError) for content in found.values()):
            break
        found = _read(path)  # kubelet has swapped a ConfigMap's files, all at once
    state = {name: content if isinstance(content, bytes) else str(content) for name, content in found.items()}
    return state, lambda: found


def _read(path: Path) -> FolderContents:
    """The files of a directory; what begins with a dot is kubelet's own. Raises OSError, also for too many."""
    found = [each for each in islice(path.iterdir(), MAX_FILES + 1) if not each.name.startswith(".")]
    if len(found) > MAX_FILES:
        raise OSError(errno.EFBIG, f"the directory has more than the limit of {MAX_FILES} files", str(path))
    read: FolderContents = {}
    left = files.MAX_FILE_BYTES
    for each in sorted(found):
        content = _content(each, min(left, MAX_BYTES))
        if content is not None:
            read[each.name] = content
            left -= len(content) if isinstance(content, bytes) else 0
    return read


def _content(path: Path, most: int = MAX_BYTES) -> bytes | OSError | None:
    """None for what is no file."""
    try:
        return files.read(path, most) if stat.S_ISREG(path.stat().st_mode) else None
    except OSError as error:
        return error
