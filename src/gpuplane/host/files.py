"""Files that people edit while we run.

Watched by looking at them: a `stat` twice a second costs less than can be measured, and unlike inotify it sees
through atomic replacement, ConfigMap symlinks, overlay mounts and exhausted watch limits alike.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path


async def contents(path: Path, every: float = 0.5) -> AsyncIterator[bytes | OSError]:
    """The file's bytes now and after each change; an OSError where it cannot be read, once for each reason."""
    last: object = None
    while True:
        found: bytes | OSError
        try:
            stat = path.stat()
            state: object = (stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size)
            if state != last:
                found = path.read_bytes()
        except OSError as error:
            state, found = str(error), error
        if state != last:
            last = state
            yield found
        await asyncio.sleep(every)


async def folder(path: Path, every: float = 0.5) -> AsyncIterator[dict[str, bytes] | OSError]:
    """The files of a mounted ConfigMap by name, now and after each change; what begins with a dot is kubelet's."""
    last: object = None
    while True:
        found: dict[str, bytes] | OSError
        try:
            files = sorted(each for each in path.iterdir() if not each.name.startswith(".") and each.is_file())
            found = {each.name: each.read_bytes() for each in files}
            state: object = found
        except OSError as error:
            state, found = str(error), error
        if state != last:
            last = state
            yield found
        await asyncio.sleep(every)
