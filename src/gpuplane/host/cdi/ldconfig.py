"""Whether the host has an ldconfig that our hook calls. The rules are the hook's (`host/hook/ldconfig.c`).

It has to be a static program. Where the host has none, or a script alone, the hook ends with an error in every
container of glibc: so it must not be named then.
"""

import errno
import os
from pathlib import Path
from struct import Struct

from gpuplane import files

PATHS = ("/sbin/ldconfig.real", "/sbin/ldconfig", "/usr/local/glibc/sbin/ldconfig")
LARGEST = 64 << 20  # bytes of a program that the hook copies
LINKS = 40
"""Links that one path may lead over, as for the kernel."""

IDENTITY = b"\x7fELF\x02\x01"
HEADER = Struct("<32xQ14xHH6x")  # where the segments are, the size of a segment's header, how many there are
SEGMENT = Struct("<I52x")  # its type
INTERPRETER = 3
MOST_SEGMENTS = 4096


def usable(root: Path) -> bool:
    """Whether the host, whose root is seen at `root`, has one. Links lead where they lead on the host."""
    for path in PATHS:
        real = _real(root, path)
        try:
            with files.opened(real, follow=False) as file:
                if os.fstat(file).st_size > LARGEST:
                    return False  # the hook looks no further
                if _static(file):
                    return True
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.EIO):
                return False  # nor for what is no file, or cannot be read
    return False


def _real(root: Path, path: str) -> Path:
    """Where a path of the host leads, as this process sees it."""
    at, rest = root, path.split("/")[::-1]
    links = 0
    while rest:
        part = rest.pop()
        if part == "..":
            at = at if at == root else at.parent
        elif part not in ("", "."):
            step = at / part
            try:
                target = str(step.readlink())
            except OSError:
                at = step
                continue
            links += 1
            if links > LINKS:
                return step  # a link, which is not opened
            at = root if target.startswith("/") else at
            rest += target.split("/")[::-1]
    return at


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
