"""The two files by which agent and supervisor meet, and the one in which the supervisor remembers compute modes.

They lie in a directory of their own below the MPS root, closed to everybody but root. Each is replaced as a whole.
"""

from pathlib import Path
from typing import TypeVar

import msgspec

from gpuplane.base import files
from gpuplane.base.value import Value

FILE_VERSION = 1
FILES_FOLDER, WANTED_FILE, MODES_FILE = "gpuplane", "wanted.json", "compute-modes.json"
STATUS_FILE = "daemon-status.json"

T = TypeVar("T")


class _File(Value):
    version: int
    value: msgspec.Raw


def write_file(path: Path, value: object, *, sync: bool = False) -> None:
    """Replace a file; with `sync` it is on disk then. Raises OSError."""
    files.replace(path, msgspec.json.encode({"version": FILE_VERSION, "value": value}), sync=sync)


def decode_file(data: bytes, kind: type[T]) -> T:
    """A file's value. Raises msgspec.DecodeError, also where another version of us wrote it."""
    file = msgspec.json.decode(data, type=_File)
    if file.version != FILE_VERSION:
        raise msgspec.ValidationError(f"version {file.version} is not supported, only {FILE_VERSION}")
    return msgspec.json.decode(file.value, type=kind)
