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

from gpuplane.base.files import read, sync_directory, untrusted_reason
from gpuplane.node.core.runtimes.plan import (
    ChangeRecord,
    FileChange,
    RevertedFile,
    content_digest,
    record_change,
    revert_change,
)
from gpuplane.node.host.runtimes.sources import NodeAccessFailed, as_node_access_failure

FILE_VERSION = 1
FOLDER_NAME = "runtimes"


class _File(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    memory: ChangeRecord


@contextmanager
def lock_memories(state: Path) -> Iterator[None]:
    """Alone with the memories; makes their directory where it is missing. Raises NodeAccessFailed."""
    folder = state / FOLDER_NAME
    with as_node_access_failure(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if reason := untrusted_reason(folder, follow=True):
            raise NodeAccessFailed(
                f"{folder}: {reason}: root restores files from it, so only root must be able to change it"
            )
        fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise NodeAccessFailed(f"{folder}: another gpuplane runtime configure is running") from None
    finally:
        os.close(fd)


def remembered_changes(state: Path, runtime: str) -> list[ChangeRecord]:
    """What is remembered of a runtime's files. Raises NodeAccessFailed."""
    folder = state / FOLDER_NAME
    with as_node_access_failure(folder):
        try:
            names = sorted(os.listdir(folder))  # noqa: PTH208 (glob says nothing of a folder that it may not read)
        except FileNotFoundError:
            return []
    return [_read_record(folder / name) for name in names if name.startswith(f"{runtime}-") and name.endswith(".json")]


def apply_change(state: Path, runtime: str, change: FileChange, restart: str) -> str:
    """Change a file and remember it; the path that was written, behind links. Raises NodeAccessFailed, Invalid."""
    target = os.path.realpath(change.path)
    kept = _record_path(state, runtime, target)
    with as_node_access_failure(target):
        current = read(target) if Path(target).exists() else None
    if current != change.before:
        raise NodeAccessFailed(f"{change.path}: another program has just changed it: run this again")
    memory = record_change(runtime, target, restart, change, _read_record(kept) if kept.exists() else None)
    _replace_file(kept, msgspec.json.encode(_File(FILE_VERSION, memory)))
    _replace_file(Path(target), change.after)
    return target


def undo_change(memory: ChangeRecord) -> tuple[bytes | None, RevertedFile]:
    """What a changed file is now, and becomes when the change is taken back. Raises NodeAccessFailed, Invalid."""
    path = Path(memory.path)
    with as_node_access_failure(path):
        current = read(path) if path.exists() else None
    return current, revert_change(memory, current)


def restore_file(state: Path, memory: ChangeRecord, current: bytes | None, result: RevertedFile) -> None:
    """Put a file back and forget that it was changed. Raises NodeAccessFailed."""
    path = Path(memory.path)
    if result.data is None:
        with as_node_access_failure(path):
            path.unlink(missing_ok=True)
    elif result.data != current:
        _replace_file(path, result.data)
    with as_node_access_failure(state):
        _record_path(state, memory.runtime, memory.path).unlink(missing_ok=True)


def _record_path(state: Path, runtime: str, target: str) -> Path:
    return state / FOLDER_NAME / f"{runtime}-{content_digest(target.encode())[:16]}.json"


def _read_record(path: Path) -> ChangeRecord:
    try:
        with as_node_access_failure(path):
            file = msgspec.json.decode(read(path), type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NodeAccessFailed(
            f"{path}: this record of a change cannot be read: {error}; revert the change by hand, and remove this file"
        ) from None
    if file.version != FILE_VERSION:
        raise NodeAccessFailed(
            f"{path}: version {file.version} is not supported, only {FILE_VERSION}: use the gpuplane version "
            "that wrote this file"
        )
    return file.memory


def _replace_file(path: Path, data: bytes) -> None:
    """Write a file whole or not at all. Raises NodeAccessFailed."""
    aside = path.with_name(f".{path.name}.gpuplane")
    with as_node_access_failure(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            mode = 0o600 if path.parent.name == FOLDER_NAME else 0o644
            aside.unlink(missing_ok=True)  # of a run that died; somebody else's would be written through
            with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
                file.write(data)
                _copy_owner_and_labels(path, file.fileno(), mode)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(path)
        except OSError:
            with suppress(OSError):
                aside.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)


def _copy_owner_and_labels(path: Path, fd: int, mode: int) -> None:
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
