"""What somebody may put in the place of a file that the agent reads or writes."""

import os
import shutil
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

SPARSE = 2 << 30  # bytes


def _device(path: Path) -> None:
    """/dev/zero itself where that may be made, else a link to it."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))
    except PermissionError:
        path.symlink_to("/dev/zero")


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, SPARSE)


KINDS: Mapping[str, Callable[[Path], None]] = {
    "a FIFO": os.mkfifo,
    "a device": _device,
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a file without an end": _sparse,
    "a directory": Path.mkdir,
}


def put(path: Path, kind: str) -> None:
    """Let that stand at the path, whatever stood there."""
    aside = path.with_name(f".hostile-{path.name}")
    KINDS[kind](aside)
    clear(path)
    aside.rename(path)


def write(path: Path, content: bytes, owner: int = -1) -> None:
    """Let a good file stand there."""
    aside = path.with_name(f".good-{path.name}")
    aside.write_bytes(content)
    os.chown(aside, owner, owner)
    if path.is_dir() and not path.is_symlink():
        clear(path)
    aside.replace(path)


def clear(path: Path) -> None:
    """Let nothing stand there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
