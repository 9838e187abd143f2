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

LDCONFIG_PATHS = ("/sbin/ldconfig.real", "/sbin/ldconfig", "/usr/local/glibc/sbin/ldconfig")
MAX_PROGRAM_SIZE = 64 << 20  # bytes of a program that the hook copies

ELF64_LITTLE_ENDIAN = b"\x7fELF\x02\x01"
FILE_HEADER = Struct("<32xQ14xHH6x")  # where the segments are, the size of a segment's header, how many there are
PROGRAM_HEADER = Struct("<I52x")  # its type
PT_INTERP = 3
MAX_SEGMENTS = 4096


def has_usable_ldconfig(root: Path) -> bool:
    """Whether the host, whose root is seen at `root`, has one. Links lead where they lead on the host."""
    for path in LDCONFIG_PATHS:
        way = _way(root, path)
        if way.real is None:
            continue
        try:
            with files.open_regular_file(f"{root}{way.real}", follow=False) as file:
                if os.fstat(file).st_size > MAX_PROGRAM_SIZE:
                    return False  # the hook looks no further
                if _static(file):
                    return way.weak is None
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.EIO):
                return False  # nor for what is no file, or cannot be read
    return False


def _way(root: Path, path: str) -> files.ResolvedPath:
    """Where a path of the host leads, as this process sees it."""

    def lstat(at: str) -> os.stat_result | None:
        with suppress(OSError):
            return os.lstat(f"{root}{at or '/'}")
        return None

    return files.resolve_path(path, lstat, lambda at: os.readlink(f"{root}{at}"))  # noqa: PTH115 (as it stands)


def _static(file: int) -> bool:
    """Whether it is a program for which the kernel starts no other one."""
    head = os.pread(file, FILE_HEADER.size, 0)
    if len(head) < FILE_HEADER.size or not head.startswith(ELF64_LITTLE_ENDIAN):
        return False
    table, size, count = FILE_HEADER.unpack(head)
    if size != PROGRAM_HEADER.size or count > MAX_SEGMENTS or table > MAX_PROGRAM_SIZE:
        return False
    segments = os.pread(file, size * count, table)
    if len(segments) < size * count:
        return False
    return all(kind != PT_INTERP for (kind,) in PROGRAM_HEADER.iter_unpack(segments))
