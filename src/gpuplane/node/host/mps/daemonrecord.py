"""What the supervisor has started for one pipe directory: how its daemon and its servers are known again.

A process is a daemon because we started it, and not because it looks like one: anybody can look like one. So it is
written down, in the directory that only root can read: first that a daemon is about to be started, with a mark that
only what we start gets into its environment; then its number and when it began. However the supervisor ends between
the two, the next one finds the daemon by the mark, which no other process knows.

Servers have the user of their clients. Those that the daemon names are written down, and they inherit the mark: so they
are known also when their daemon is no more. A client of the same user that sees the processes of the node can read the
mark there, and look like a server of its daemon: it can hold that daemon by being its client as well, and what looks
like a daemon has to have our user besides.

A daemon of a version that kept no record is taken over where it is ours by what it cannot choose: our user, our
namespace of processes, our control group.
"""

import asyncio
import logging
import secrets
import shutil
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import msgspec

from gpuplane.base import files
from gpuplane.base.value import Value
from gpuplane.node.host.mps import processes
from gpuplane.node.host.mps.command import CommandFailed
from gpuplane.node.host.mps.files import decode_file, write_file
from gpuplane.node.host.mps.processes import CONTROL_PROGRAM, MARK_VARIABLE, SERVER_PROGRAM, Process
from gpuplane.node.host.state import boot_id

RECORD_FILE = "record.json"
MAX_RECORD_SIZE = 1 << 16
POLL_INTERVAL, SETTLE_TIME, START_TIMEOUT = 0.02, 1.0, 10.0
"""Seconds: between two looks at what is starting; until what is seen alone is what stays; and at most in all."""

READ_ERRORS = (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError)

log = logging.getLogger("gpuplane.mps")


class RecordEntry(Value):
    """What is written down. `starting`: a daemon is about to be there. `adopted`: some have no mark."""

    boot: str
    mark: str
    daemon: Process | None = None
    servers: tuple[Process, ...] = ()
    starting: bool = False
    adopted: bool = False


class DaemonRecord:
    """The record of one pipe directory, in a directory of its own that is closed to others."""

    def __init__(self, folder: Path, pipe: Path) -> None:
        self._path, self._pipe = folder / RECORD_FILE, pipe
        self._entry: RecordEntry | None = None
        self._known = False

    async def daemon(self) -> Process | None:
        """The control daemon that runs; None where there is none. Raises OSError, CommandFailed."""
        if not self._known:
            self._entry = self._read() or self._adopt()
            self._known = True
        if self._entry is not None and self._entry.starting:
            self._write(self._entry.but(daemon=await self._settled(self._entry.mark), starting=False))
        found = self._entry.daemon if self._entry else None
        return found if found is not None and processes.is_alive(found) else None

    async def servers(self) -> list[Process]:
        """Its servers, also those whose daemon is no more, and what is only about to be one."""
        if (entry := self._entry) is None:
            return []
        coming, deadline = self._coming(entry), time.monotonic() + START_TIMEOUT
        while coming and time.monotonic() < deadline:
            await asyncio.sleep(POLL_INTERVAL)
            coming &= self._coming(entry)
        named = [each for each in entry.servers if processes.is_alive(each)]
        marked = [each for each in processes.find_lookalikes(SERVER_PROGRAM, self._pipe) if _is_server(each, entry)]
        return [*named, *(each for each in marked if each not in named)]

    def _coming(self, entry: RecordEntry) -> set[Process]:
        """What may be about to be a server: it does not show yet what it runs, or still is a copy of the daemon."""
        forked = (
            each for each in processes.find_lookalikes(CONTROL_PROGRAM, self._pipe, "-d") if _mark(each) == entry.mark
        )
        return processes.find_starting() | {
            each for each in forked if each != entry.daemon and processes.is_our_user(each)
        }

    def name_servers(self, found: Collection[Process]) -> None:
        """Write down which servers the daemon has named. Raises OSError."""
        assert self._entry is not None
        if not set(self._entry.servers) >= set(found):
            named = [each for each in self._entry.servers if processes.is_alive(each) and each not in found]
            self._write(self._entry.but(servers=(*named, *found)))

    def begin(self) -> str:
        """Write down that a daemon is about to be started; its mark. Raises OSError: it must not be started then."""
        entry = self._entry or RecordEntry(boot=boot_id(), mark=_new())
        self._write(entry.but(daemon=None, starting=True))
        return entry.mark

    def forget(self) -> None:
        """Nothing is left of what was started. What cannot be removed stays."""
        self._entry, self._known = None, False
        shutil.rmtree(self._path.parent, ignore_errors=True)
        with suppress(OSError):
            self._path.parent.parent.rmdir()

    def _write(self, entry: RecordEntry) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_file(self._path, entry)
        self._entry = entry

    def _read(self) -> RecordEntry | None:
        """None where there is none of this boot."""
        try:
            entry = decode_file(files.read(self._path, MAX_RECORD_SIZE, follow=False), RecordEntry)
        except FileNotFoundError:
            return None
        except READ_ERRORS as error:
            log.error("%s: %s; looking for running daemons instead", self._path, error)
            return None
        return entry if entry.boot == boot_id() else None

    def _adopt(self) -> RecordEntry | None:
        """What runs without a record of ours, as far as it is ours."""
        daemons = [
            each for each in processes.find_lookalikes(CONTROL_PROGRAM, self._pipe, "-d") if processes.is_our_user(each)
        ]
        for each in daemons:
            if not processes.is_in_our_cgroup(each):
                raise CommandFailed(
                    f"process {each.pid} looks like the control daemon of {self._pipe}, but it runs in another "
                    "control group than this supervisor and may belong to somebody else: end the process"
                )
        servers = [
            each for each in processes.find_lookalikes(SERVER_PROGRAM, self._pipe) if processes.is_in_our_cgroup(each)
        ]
        if not (daemons or servers):
            return None
        marks = filter(None, map(_mark, (*daemons, *servers)))  # a record was there, and could not be read
        entry = RecordEntry(
            boot=boot_id(), mark=next(marks, _new()), daemon=_likeliest(daemons, self._pipe), adopted=True
        )
        self._write(entry)
        return entry

    async def _settled(self, mark: str) -> Process | None:
        """The daemon with this mark, once nothing else is on its way. A start forks twice, and only the last stays."""
        last, since, deadline, coming = None, 0.0, time.monotonic() + START_TIMEOUT, processes.find_starting()
        while True:
            number = processes.pid_in_file(self._pipe)
            hint = processes.find_process(number) if number else None
            if (
                hint
                and processes.runs_program(hint, CONTROL_PROGRAM, "-d")
                and _mark(hint) == mark
                and processes.is_our_user(hint)
            ):
                return hint
            there = [each for each in processes.find_marked(mark) if processes.is_our_user(each) and not _serves(each)]
            daemons, now = (
                [each for each in there if processes.runs_program(each, CONTROL_PROGRAM, "-d")],
                time.monotonic(),
            )
            coming &= processes.find_starting()
            if there != last:
                last, since = there, now
            if (not coming and now - since > (SETTLE_TIME if there else SETTLE_TIME / 4)) or now > deadline:
                return _likeliest(daemons, self._pipe)
            await asyncio.sleep(POLL_INTERVAL)


def _new() -> str:
    return secrets.token_hex(16)


def _mark(found: Process) -> str | None:
    return processes.read_environment(found).get(MARK_VARIABLE)


def _is_server(found: Process, entry: RecordEntry) -> bool:
    mark = _mark(found)
    return mark == entry.mark or (entry.adopted and mark is None and processes.is_in_our_cgroup(found))


def _serves(found: Process) -> bool:
    return processes.runs_program(found, SERVER_PROGRAM)


def _likeliest(daemons: list[Process], pipe: Path) -> Process | None:
    """The one that its file names, else the one that began last."""
    number = processes.pid_in_file(pipe)
    return max(daemons, key=lambda each: (each.pid == number, each.began, each.pid), default=None)
