"""ELF files with the note that CUDA's compatibility libraries carry, made byte by byte."""

import json
import struct
from collections.abc import Callable

SECTION, OWNER = b".note.cuda.fwd_compatibility", b"NVIDIA Corporation\0"


def library(text: bytes, align: int = 4) -> bytes:
    """A library of nothing but a note, its text aligned as one of the tools does it."""
    named = 12 + len(OWNER)
    start = -(-named // align) * align if align == 8 else 12 + -(-len(OWNER) // align) * align
    note = (struct.pack("<III", len(OWNER), len(text), 1) + OWNER).ljust(start, b"\0") + text
    names = b"\0" + SECTION + b"\0.shstrtab\0"
    at = 64 + len(note)
    sections = (
        bytes(64),
        struct.pack("<IIQQQQIIQQ", 1, 7, 2, 0, 64, len(note), 0, 0, align, 0),
        struct.pack("<IIQQQQIIQQ", 2 + len(SECTION), 3, 0, 0, at, len(names), 0, 0, 1, 0),
    )
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    header = ident + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, at + len(names), 0, 64, 56, 0, 64, len(sections), 2)
    return header + note + names + b"".join(sections)


def compatible(
    cuda: str | None, drivers: list[int] | None, align: int = 4, spelled: Callable[[str], str] = str
) -> bytes:
    """As NVIDIA's libraries say for which drivers they are, with the keys that these libraries have."""
    said: dict[str, object] = {"Format": 1, "Device": [1, 2, 7, 8, 9]}
    if cuda is not None:
        said["CUDA version"] = cuda
    if drivers is not None:
        said["driver"] = drivers
    return library(json.dumps({spelled(key): value for key, value in said.items()}).encode() + b"\0", align)
