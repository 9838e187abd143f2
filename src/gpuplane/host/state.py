"""The state directory: the ledger on disk, and the lock that keeps a second agent away from it.

One small versioned file for each part of the ledger, written to the side, synced and renamed: after a crash at any
point the file holds the old value or the new one. An unreadable file costs only itself: it is set aside under a name
that says so, and its part starts empty; one that the disk does not give is left as it is. What was not read is never
taken for what is not there: a file is written over or removed only for a value that this agent came to have.
Syncing to disk happens in a thread, never on the event loop.
"""

import asyncio
import fcntl
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from gpuplane.core.ledger import carry, digest
from gpuplane.model.facts import Stood
from gpuplane.model.node import Node
from gpuplane.model.snapshot import Condition, Ledger

VERSION = 1
PARTS = {field.name: field.type for field in msgspec.structs.fields(Ledger) if field.name != "boot_id"}


class _File(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    boot_id: str
    value: msgspec.Raw


def boot_id(root: Path = Path("/")) -> str:
    """The kernel's name for this boot; "" where it does not tell."""
    with suppress(OSError):
        return (root / "proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def load(directory: Path, boot: str, *, ours: bool = True) -> tuple[Ledger, list[str]]:
    """The ledger as it holds in this boot, and what could not be read and what became of it. Raises nothing.

    `ours`: whether we have the directory's lock. Otherwise nothing in it is changed.
    """
    ledger, problems = Ledger(boot_id=boot), []
    for part in PARTS:
        path = _path(directory, part)
        try:
            written_in, value = _read(path, part)
        except FileNotFoundError:
            continue
        except OSError as error:
            problems.append(f"{path}: {error.strerror}; left as it is, and {part} starts empty")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            left = _set_aside(path) if ours else "left as it is"
            problems.append(f"{path}: {error}; {left}, and {part} starts empty")
        else:
            now = time.clock_gettime(time.CLOCK_BOOTTIME)
            carried = carry(Ledger(boot_id=written_in, **{part: value}), boot, time.time(), now)
            ledger = ledger.but(**{part: getattr(carried, part)})
    return ledger, problems


def _read(path: Path, part: str) -> tuple[str, Any]:
    """The boot that a part was written in, and its value."""
    file = msgspec.json.decode(path.read_bytes(), type=_File)
    if file.version != VERSION:
        raise msgspec.ValidationError(f"version {file.version} is not {VERSION}, the one known here")
    return file.boot_id, msgspec.json.decode(file.value, type=PARTS[part])


def _set_aside(path: Path) -> str:
    aside = path.with_suffix(".unreadable")
    try:
        path.replace(aside)
    except OSError as error:
        return f"it could not be set aside as {aside.name}: {error.strerror}"
    return f"set aside as {aside.name}"


async def keep_stored(node: Node, directory: Path, every: float = 1.0) -> None:
    """Reconcile the directory with the ledger, for ever. The condition `state` says which ledger the disk holds.

    A disk that refuses is asked again `every` seconds; what one file is refused costs the others nothing.
    """
    written: dict[str, Any] = dict.fromkeys(PARTS)
    held: Ledger | None = None
    async for _ in node.changes():
        while held != node.snapshot.ledger:
            ledger, stands = node.snapshot.ledger, node.snapshot.conditions.get("state")
            if stands is not None and stands.detail:
                node.tell(Stood("state", stands.but(detail="")))  # while it is written, no promise counts as kept
            problem = await asyncio.to_thread(_store, directory, ledger, written)
            if problem is None:
                held = ledger
                node.tell(Stood("state", Condition(standing="ok", reason=str(directory), detail=digest(ledger))))
            else:
                reason = f"{problem.filename2 or problem.filename or directory}: {problem.strerror}"
                forgotten = "what this agent promises is forgotten when it ends"
                node.tell(Stood("state", Condition(standing="failing", reason=f"{reason}: {forgotten}")))
                await asyncio.sleep(every)


def _store(directory: Path, ledger: Ledger, written: dict[str, Any]) -> OSError | None:
    """Write the parts that are not `written`, and note them there; the first problem, None where all is on disk."""
    try:
        _sync(directory)
    except OSError as error:
        return error
    problem = None
    for part in PARTS:
        value = getattr(ledger, part)
        if written[part] != value:
            try:
                _write(directory, part, value, ledger.boot_id)
            except OSError as error:
                problem = problem or error
            else:
                written[part] = value
    return problem


def _write(directory: Path, part: str, value: Any, boot: str) -> None:
    path = _path(directory, part)
    if value is None:
        path.unlink(missing_ok=True)
    else:
        aside = path.with_suffix(".new")
        data = msgspec.json.encode({"version": VERSION, "boot_id": boot, "value": value})
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    _sync(directory)


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _path(directory: Path, part: str) -> Path:
    return directory / f"{part.replace('_', '-')}.json"


@asynccontextmanager
async def locked(directory: Path, every: float = 0.5) -> AsyncIterator[AsyncIterator[str]]:
    """The directory's lock. Gives an iterator that yields who holds it, again and again, and ends once it is ours.

    Makes the directory where it is missing, closed to others. Raises OSError.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.chmod(0o700)
    fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    async def waiting() -> AsyncIterator[str]:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield os.pread(fd, 64, 0).decode(errors="replace").strip() or "an unknown process"
                await asyncio.sleep(every)
            else:
                os.ftruncate(fd, 0)
                os.pwrite(fd, f"process {os.getpid()}\n".encode(), 0)
                return

    try:
        yield waiting()
    finally:
        os.close(fd)
