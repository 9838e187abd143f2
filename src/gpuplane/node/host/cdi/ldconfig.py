"""Whether the host has an ldconfig that our hook calls. The rules are the hook's (`host/hook/ldconfig.c`).

It has to be a static program. Where the host has none, or a script alone, the hook ends with an error in every
container of glibc: so it must not be named then. Nor where somebody else than root could change the program, for the
hook runs it for every container.
"""

import errno
import os
from contextlib import suppress
from pathlib import Path
from struct import Struct

from gpuplane.base import files

PATHS = ("/sbin/ldconfig.real", "/sbin/ldconfig", "/usr/local/glibc/sbin/ldconfig")
LARGEST = 64 << 20  # bytes of a program that the hook copies

IDENTITY = b"\x7fELF\x02\x01"
HEADER = Struct("<32xQ14xHH6x")  # where the segments are, the size of a segment's header, how many there are
SEGMENT = Struct("<I52x")  # its type
INTERPRETER = 3
MOST_SEGMENTS = 4096


def usable(root: Path) -> bool:
    """Whether the host, whose root is seen at `root`, has one. Links lead where they lead on the host."""
    for path in PATHS:
        way = _way(root, path)
        if way.real is None:
            continue
        try:
            with files.opened(f"{root}{way.real}", follow=False) as file:
                if os.fstat(file).st_size > LARGEST:
                    return False  # the hook looks no further
                if _static(file):
                    return way.weak is None
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.EIO):
                return False  # nor for what is no file, or cannot be read
    return False


def _way(root: Path, path: str) -> files.Way:
    """Where a path of the host leads, as this process sees it."""

    def lstat(at: str) -> os.stat_result | None:
        with suppress(OSError):
            return os.lstat(f"{root}{at or '/'}")
        return None

    return files.walk(path, lstat, lambda at: os.readlink(f"{root}{at}"))  # noqa: PTH115 (as it stands)


def _static(file: int) -> bool:
    """Whether it is a program for which the kernel starts no other one."""
    head = os.pread(file, HEADER.size, 0)
    if len(head) < HEADER.size or not head.startswith(IDENTITY):
        return False
    table, size, count = HEADER.unpack(head)
    if size != SEGMENT.size or count > MOST_SEGMENTS or table > LARGEST:
        return False
    segments = os.pread(file, size * count, table)
    if len(segments) < size * count:
        return False
    return all(kind != INTERPRETER for (kind,) in SEGMENT.iter_unpack(segments))
