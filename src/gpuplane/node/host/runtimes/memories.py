"""What we have changed on this node, remembered so that it can be taken back; and the changing itself.

One small versioned file for each changed file, in the state directory, on disk before the change is: whatever happens
between the two, the next run sees that the file is as it was. A file is written to the side and renamed, with the mode,
the owner and the labels of the one before; where it is a link, that to which it leads is changed.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from gpuplane.base.files import read, sync_directory, untrusted
from gpuplane.node.core.runtimes.plan import (
    ChangeRecord,
    FileChange,
    RevertedFile,
    content_digest,
    record_change,
    revert_change,
)
from gpuplane.node.host.runtimes.sources import Failed, told

VERSION = 1
FOLDER = "runtimes"


class _File(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    memory: ChangeRecord


@contextmanager
def locked(state: Path) -> Iterator[None]:
    """Alone with the memories; makes their directory where it is missing. Raises Failed."""
    folder = state / FOLDER
    with told(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if reason := untrusted(folder, follow=True):
            raise Failed(f"{folder}: {reason}: root restores files from it, so only root must be able to change it")
        fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise Failed(f"{folder}: another gpuplane runtime configure is running") from None
    finally:
        os.close(fd)


def remembered(state: Path, runtime: str) -> list[ChangeRecord]:
    """What is remembered of a runtime's files. Raises Failed."""
    folder = state / FOLDER
    with told(folder):
        try:
            names = sorted(os.listdir(folder))  # noqa: PTH208 (glob says nothing of a folder that it may not read)
        except FileNotFoundError:
            return []
    return [_load(folder / name) for name in names if name.startswith(f"{runtime}-") and name.endswith(".json")]


def apply(state: Path, runtime: str, change: FileChange, restart: str) -> str:
    """Change a file and remember it; gives the path that was written, behind links. Raises Failed and Invalid."""
    target = os.path.realpath(change.path)
    kept = _kept(state, runtime, target)
    with told(target):
        current = read(target) if Path(target).exists() else None
    if current != change.before:
        raise Failed(f"{change.path}: another program has just changed it: run this again")
    memory = record_change(runtime, target, restart, change, _load(kept) if kept.exists() else None)
    _write(kept, msgspec.json.encode(_File(VERSION, memory)))
    _write(Path(target), change.after)
    return target


def undone(memory: ChangeRecord) -> tuple[bytes | None, RevertedFile]:
    """What a changed file is now, and what it becomes when the change is taken back. Raises Failed and Invalid."""
    path = Path(memory.path)
    with told(path):
        current = read(path) if path.exists() else None
    return current, revert_change(memory, current)


def take_back(state: Path, memory: ChangeRecord, current: bytes | None, result: RevertedFile) -> None:
    """Put a file back and forget that it was changed. Raises Failed."""
    path = Path(memory.path)
    if result.data is None:
        with told(path):
            path.unlink(missing_ok=True)
    elif result.data != current:
        _write(path, result.data)
    with told(state):
        _kept(state, memory.runtime, memory.path).unlink(missing_ok=True)


def _kept(state: Path, runtime: str, target: str) -> Path:
    return state / FOLDER / f"{runtime}-{content_digest(target.encode())[:16]}.json"


def _load(path: Path) -> ChangeRecord:
    try:
        with told(path):
            file = msgspec.json.decode(read(path), type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Failed(
            f"{path}: this record of a change cannot be read: {error}; revert the change by hand, and remove this file"
        ) from None
    if file.version != VERSION:
        raise Failed(
            f"{path}: version {file.version} is not supported, only {VERSION}: use the gpuplane version "
            "that wrote this file"
        )
    return file.memory


def _write(path: Path, data: bytes) -> None:
    """Write a file whole or not at all. Raises Failed."""
    aside = path.with_name(f".{path.name}.gpuplane")
    with told(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            mode = 0o600 if path.parent.name == FOLDER else 0o644
            aside.unlink(missing_ok=True)  # of a run that died; somebody else's would be written through
            with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
                file.write(data)
                _like(path, file.fileno(), mode)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(path)
        except OSError:
            with suppress(OSError):
                aside.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)


def _like(path: Path, fd: int, mode: int) -> None:
    """Give an open file the owner, mode and labels (SELinux) of the file at the path; the mode where there is none."""
    if not path.exists():
        os.fchmod(fd, mode)
        return
    was = path.stat()
    os.fchown(fd, was.st_uid, was.st_gid)
    os.fchmod(fd, was.st_mode & 0o7777)
    for name in os.listxattr(path):
        with suppress(OSError):  # a label that the kernel sets by itself, or that this file system does not have
            os.setxattr(fd, name, os.getxattr(path, name))
