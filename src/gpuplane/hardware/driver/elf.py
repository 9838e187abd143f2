"""The SONAME of a shared library: the one thing that is wanted of an ELF file here.

A reader of its own, because pyelftools costs 6 MB in the driver's process and 2 ms a library; this costs neither.
Layout: System V ABI, "Object Files" and "Dynamic Linking".
"""

import os
import struct

LOAD, DYNAMIC = 1, 2  # p_type
NULL, STRTAB, SONAME = 0, 5, 14  # d_tag
HEADER, MOST_SEGMENTS, MOST_DYNAMIC, MOST_NAME = 64, 64, 1 << 16, 256
FORMS = {1: ("IIIIII", "iI"), 2: ("IIQQQQ", "qQ")}  # class → a segment up to p_filesz, an entry of the dynamic section


class _Broken(Exception):
    """It is no ELF file, or not a whole one."""


def soname(file: int) -> str:
    """The SONAME of the library that is open as this descriptor; "" where it has none, or is no library."""
    try:
        return _soname(file)
    except (_Broken, OSError, struct.error, UnicodeDecodeError):
        return ""


def _soname(file: int) -> str:
    head = os.pread(file, HEADER, 0)
    if head[:4] != b"\x7fELF" or len(head) < HEADER or head[4] not in FORMS:
        raise _Broken
    order = "<" if head[5] == 1 else ">"
    wide = head[4] == 2
    (table,) = struct.unpack_from(order + ("Q" if wide else "I"), head, 32 if wide else 28)
    size, count = struct.unpack_from(order + "HH", head, 54 if wide else 42)
    segment, entry = (order + form for form in FORMS[head[4]])
    loaded, dynamic = [], b""
    segments = _read(file, table, size * min(count, MOST_SEGMENTS))
    for at in range(0, len(segments), size or 1):
        kind, *rest = struct.unpack_from(segment, segments, at)
        # 64 bits: flags, offset, address, physical, size. 32 bits: offset, address, physical, size, …
        offset, address, length = (rest[1], rest[2], rest[4]) if wide else (rest[0], rest[1], rest[3])
        if kind == LOAD:
            loaded.append((address, offset, length))
        elif kind == DYNAMIC:
            dynamic = _read(file, offset, min(length, MOST_DYNAMIC))
    said: dict[int, int] = {}
    for tag, value in struct.iter_unpack(
        entry, dynamic[: len(dynamic) // struct.calcsize(entry) * struct.calcsize(entry)]
    ):
        if tag == NULL:
            break
        said.setdefault(tag, value)
    if SONAME not in said or STRTAB not in said:
        raise _Broken
    where = next(
        (offset + said[STRTAB] - at for at, offset, length in loaded if at <= said[STRTAB] < at + length), None
    )
    if where is None:
        raise _Broken
    name, end, _ = os.pread(file, MOST_NAME, where + said[SONAME]).partition(b"\0")
    return name.decode() if end else ""


def _read(file: int, offset: int, length: int) -> bytes:
    data = os.pread(file, length, offset)
    if len(data) < length:
        raise _Broken
    return data
