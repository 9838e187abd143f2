"""The state directory: the ledger on disk.

One small versioned file for each part of the ledger, written to the side, synced and renamed: after a crash at any
point the file holds the old value or the new one. An unreadable file costs only itself: it is set aside under a name
that says so, and its part starts empty; one that the disk does not give is left as it is. What was not read is never
taken for what is not there: a file is written over or removed only for a value that this agent came to have.
Syncing to disk happens in a thread, never on the event loop.

The directory is ours alone: on a path that somebody else could change, nothing is believed and nothing is written.
Where it is removed while we run, it is made again and gets all that the ledger says.
"""

import asyncio
import errno
import logging
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Any

from gpuplane.base import files
from gpuplane.base.logsubject import LogSubject
from gpuplane.base.pauses import sleep_until_next
from gpuplane.node.core.ledger import (
    CLAIMS_DIRECTORY,
    FIELDS_WITH_FILE,
    adapt_to_new_boot,
    decode_part,
    encode_part,
    ledger_of_part,
    ledger_parts,
)
from gpuplane.node.host.lock import lock_file, open_lock, try_lock
from gpuplane.node.model.facts import LedgerStored, StatusChanged
from gpuplane.node.model.node import Node
from gpuplane.node.model.snapshot import Ledger, StoredLedger
from gpuplane.node.model.status import STATE_DIRECTORY_PART, TurnStatus

MAX_PART_SIZE = 16 * 1024 * 1024
"""Bytes of one part: a record of a device has some hundred."""
DIRECTORY_CHECK_INTERVAL = 2.0
"""Seconds between two looks whether the directory is still there."""
log = logging.getLogger(__name__)

MAYBE_STORED = object()
"""In the place of a value that the disk may hold or not."""

NOTHING_STORED_TEXT = "nothing is stored, so a restart forgets drains and faults"


def boot_id(root: Path = Path("/")) -> str:
    """The kernel's name for this boot; "" where it does not tell."""
    with suppress(OSError, UnicodeDecodeError):
        return files.read(root / "proc/sys/kernel/random/boot_id", 4096).decode().strip()
    return ""


def load_ledger(directory: Path, boot: str, *, ours: bool = True) -> tuple[Ledger, list[str]]:
    """The ledger as it holds in this boot, and what could not be read and what became of it. Raises nothing.

    `ours`: whether we have the directory's lock. Otherwise nothing in it is changed.
    """
    ledger = Ledger(boot_id=boot)
    problems: list[str] = []
    for part in (*FIELDS_WITH_FILE, *_stored_claims(directory, problems)):
        path = _path(directory, part)
        try:
            content = files.read(path, MAX_PART_SIZE, follow=False)
            read = decode_part(part, content)
            stored = ledger_of_part(part, read)
        except FileNotFoundError:
            continue
        except OSError as error:
            problems.append(
                f"{path}: {error.strerror}; the agent does not change the file, and starts without its data"
            )
        except (ValueError, RecursionError) as error:  # msgspec.DecodeError is a ValueError
            left = _set_aside(path) if ours else "the agent does not change the file"
            problems.append(f"{path}: {error}; {left}, and the agent starts without its data")
        else:
            if read.problem:
                kept = _keep_copy(path, content) if ours else "the agent does not change the file"
                problems.append(f"{path}: {read.problem}; {kept}")
            now = time.clock_gettime(time.CLOCK_BOOTTIME)
            ledger = _with_part(ledger, part, adapt_to_new_boot(stored, boot, time.time(), now))
    return ledger, problems


def _stored_claims(directory: Path, problems: list[str]) -> list[str]:
    """The parts that are claims. What cannot be listed is a problem."""
    try:
        names = sorted(os.listdir(directory / CLAIMS_DIRECTORY))  # noqa: PTH208 (half the time)
    except FileNotFoundError:
        return []
    except OSError as error:
        problems.append(f"{directory / CLAIMS_DIRECTORY}: {error.strerror}; the agent starts without the claims there")
        return []
    return [f"{CLAIMS_DIRECTORY}/{name.removesuffix('.json')}" for name in names if name.endswith(".json")]


def _with_part(ledger: Ledger, part: str, stored: Ledger) -> Ledger:
    """The ledger with one part of a stored one."""
    if part in FIELDS_WITH_FILE:
        return ledger.but(**{part: getattr(stored, part)})
    return ledger.but(claims={**(ledger.claims or {}), **(stored.claims or {})} or None)


def _set_aside(path: Path) -> str:
    aside = path.with_suffix(".unreadable")
    try:
        path.replace(aside)
    except OSError as error:
        return f"it could not be renamed to {aside.name}: {error.strerror}"
    return f"it is renamed to {aside.name}"


def _keep_copy(path: Path, content: bytes) -> str:
    """A file of another version is written over soon: it is kept for whoever can read all of it."""
    kept = path.with_suffix(".other-version")
    try:
        files.replace(kept, content)
    except OSError as error:
        return f"a copy could not be kept as {kept.name}: {error.strerror}"
    return f"a copy is kept as {kept.name}"


async def keep_ledger_stored(
    node: Node, directory: Path, every: float = 1.0, glance: float = DIRECTORY_CHECK_INTERVAL
) -> None:
    """Reconcile the directory with the ledger, for ever; report what it holds, and the status of the state directory.

    A disk that refuses is asked again `every` seconds; what one file is refused costs the others nothing. Each `glance`
    seconds it is looked whether the directory is still there.
    """
    loaded = ledger_parts(node.snapshot.ledger).keys() - set(FIELDS_WITH_FILE)
    writer = LedgerWriter(directory, node.snapshot.stored_ledger.possible_share_layouts, loaded)
    async with asyncio.TaskGroup() as group:
        group.create_task(_watch(node, writer, glance))
        async for _ in node.changes(attrgetter("ledger", "stored_ledger")):
            while (ledger := node.snapshot.ledger) != node.snapshot.stored_ledger.ledger:
                node.apply(LedgerStored(StoredLedger(possible_share_layouts=writer.layouts_while_writing(ledger))))
                problem = await asyncio.to_thread(writer.write, ledger)
                if problem is None:
                    node.apply(LedgerStored(StoredLedger(ledger=ledger, possible_share_layouts=writer.share_layouts)))
                    node.apply(StatusChanged(STATE_DIRECTORY_PART, TurnStatus("ok", str(directory))))
                else:
                    node.apply(LedgerStored(StoredLedger(possible_share_layouts=writer.share_layouts)))
                    place = problem.filename2 or problem.filename or directory
                    reason = f"{place}: {problem.strerror}: {NOTHING_STORED_TEXT}"
                    node.apply(StatusChanged(STATE_DIRECTORY_PART, TurnStatus("failing", reason)))
                    await asyncio.sleep(every)


async def _watch(node: Node, writer: "LedgerWriter", glance: float) -> None:
    """Have everything written again where the directory was removed."""
    while True:
        await sleep_until_next(glance)
        if node.snapshot.stored_ledger.ledger is not None and not writer.intact():
            about = LogSubject(part=STATE_DIRECTORY_PART.name)
            log.error(
                "%s or some of its files were removed: they are created again", writer.directory, extra=about.extra
            )
            node.apply(LedgerStored(StoredLedger()))


class LedgerWriter:
    """Writes the parts of the ledger that the directory does not hold yet.

    `share_layouts`: the values that its part of that name may have on disk. `claims`: the parts that are claims which
    this agent loaded.
    """

    def __init__(self, directory: Path, share_layouts: tuple[Any, ...] = (), claims: Iterable[str] = ()) -> None:
        self.share_layouts = share_layouts
        self.directory = directory
        # What the disk holds, by part: None: nothing of ours; DOUBT: perhaps another value.
        self._written: dict[str, Any] = {**dict.fromkeys(FIELDS_WITH_FILE), **dict.fromkeys(claims, MAYBE_STORED)}
        self._known = self._identity()  # which directory is written to
        self._wrote = False
        self._locked = lock_file(directory).exists()
        self._first_lock = _lock_identity(directory)  # we hold it until we end, wherever the directory is moved
        self._lock: int | None = None  # where the directory was made again

    def layouts_while_writing(self, ledger: Ledger) -> tuple[Any, ...]:
        """What the disk may hold of the share layouts until the ledger is known to be written."""
        new = ledger.share_layouts or {}
        self.share_layouts = self.share_layouts if new in self.share_layouts else (*self.share_layouts, new)
        return self.share_layouts

    def intact(self) -> bool:
        """Whether the directory is the same, with all that was written and with its lock."""
        there = [
            _path(self.directory, part) for part, value in self._written.items() if value not in (None, MAYBE_STORED)
        ]
        there += [lock_file(self.directory)] if self._locked else []
        return self._identity() == self._known and all(map(os.path.lexists, there))

    def write(self, ledger: Ledger) -> OSError | None:
        """Write what is not written yet; the first problem, None where all is on disk.

        Claims that are over go first, and before they are gone nothing is promised: their devices may be in a new one.
        """
        try:
            if not self.intact():
                self._make_again()
            if any(value is MAYBE_STORED for value in self._written.values()) or not self._wrote:
                files.sync_directory(self.directory)  # what was renamed, and perhaps not synced
        except OSError as error:
            return error
        problem, parts, self._wrote = None, ledger_parts(ledger), True
        for part in self._written.keys() - parts.keys():
            try:
                _write(self.directory, part, None, ledger.boot_id)
            except OSError as error:
                return error
            del self._written[part]
        for part, value in parts.items():
            if self._written.get(part, MAYBE_STORED) != value:
                self._written[part] = MAYBE_STORED
                try:
                    _write(self.directory, part, value, ledger.boot_id)
                except OSError as error:
                    problem = problem or error
                else:
                    self._written[part] = value
                    self.share_layouts = (value or {},) if part == "share_layouts" else self.share_layouts
        return problem

    def _make_again(self) -> None:
        """Make the directory, and hold its lock until we end. What it holds, as one that was away, is written over."""
        self._written = dict.fromkeys((*FIELDS_WITH_FILE, *_stored_claims(self.directory, [])), MAYBE_STORED)
        self.share_layouts = ()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        self._lock = open_lock(self.directory)
        self._known = self._identity()
        found = os.fstat(self._lock)
        if (found.st_dev, found.st_ino) != self._first_lock and (owner := try_lock(self._lock)):
            self._known = None
            raise OSError(errno.EBUSY, f"the directory was removed, and {owner} uses the new one", str(self.directory))
        self._locked = True

    def _identity(self) -> tuple[int, int] | None:
        """Which directory stands at the path; None for none."""
        with suppress(OSError):
            found = self.directory.stat()
            return found.st_dev, found.st_ino
        return None


def _lock_identity(directory: Path) -> tuple[int, int] | None:
    """Which file is locked in a directory; None if there is none."""
    with suppress(OSError):
        found = lock_file(directory).stat() if lock_file(directory).exists() else directory.stat()
        return found.st_dev, found.st_ino
    return None


def _write(directory: Path, part: str, value: Any, boot: str) -> None:
    path = _path(directory, part)
    if value is None:
        path.unlink(missing_ok=True)
        files.sync_directory(path.parent)
    else:
        if path.parent != directory:
            path.parent.mkdir(mode=0o700, exist_ok=True)
        files.replace(path, encode_part(value, boot))


def _path(directory: Path, part: str) -> Path:
    place, _, name = part.rpartition("/")
    return directory / place / f"{name.replace('_', '-')}.json"
