"""One control daemon, kept as it is wanted.

Rules that must stay put:
- It is restarted or ended only while nobody is its client and no container is held that may become one. What is
  wanted of it meanwhile is said, and waited for.
- What can be changed while it runs is: limits hold for the clients that come after.
- A server outlives its control daemon, and its clients go on. It is ended when those that were known have ended: until
  then it keeps the GPU from the next server, and new clients are not served.
- What runs is known by the record of what was started (record.py), so a daemon that another supervisor started is
  taken over as it is, and what merely looks like one is nobody.
- What its clients do to its directory is put back (sockets.py), and is no reason to restart it.
"""

import asyncio
import math
import signal
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from gpuplane.base import files
from gpuplane.base.value import Value
from gpuplane.node.host.mps import processes
from gpuplane.node.host.mps.command import CommandFailed, CommandTimedOut, last_line, run_command
from gpuplane.node.host.mps.computemodes import ComputeModes
from gpuplane.node.host.mps.control import Clients, ControlClient
from gpuplane.node.host.mps.daemondirectories import DaemonDirectories
from gpuplane.node.host.mps.daemonrecord import DaemonRecord
from gpuplane.node.host.mps.processes import MARK_VARIABLE, Process
from gpuplane.node.host.mps.sockets import DaemonSockets, SocketReplaced
from gpuplane.node.model.mps import DaemonStatus, MpsDaemon

VISIBLE_DEVICES_VARIABLE = "CUDA_VISIBLE_DEVICES"
MULTI_USER_OPTION = "-multiuser-server"
START_TIMEOUT, END_TIMEOUT, LISTEN_TIMEOUT, MOUNT_TIMEOUT = 10.0, 5.0, 2.0, 5.0
"""Seconds: for a daemon's start, for its end, until it has its sockets; and for mounting, and taking all away."""
POLL_INTERVAL = 0.02
"""Seconds between two looks at what is about to change."""
TAMPERING_REPORT_PERIOD = 60.0
"""Seconds for which it is said that a client has meddled with the directory."""


IsHeld = Callable[[], bool]


class MpsDaemonOptions(Value):
    """The programs, how long nvidia-smi may take, and whether daemons have a /dev/shm of their own."""

    control: str = "nvidia-cuda-mps-control"
    smi: str = "nvidia-smi"
    nvidia_smi_timeout: float = 20.0
    own_shm: bool = True


class DaemonKeeper:
    """Keeps one daemon. `in_use`: the GPUs whose compute mode has to stay as it is; None until that is known."""

    def __init__(self, name: str, place: DaemonDirectories, modes: ComputeModes, tools: MpsDaemonOptions) -> None:
        self.in_use: frozenset[str] | None = None
        self._name, self._place, self._modes, self._tools = name, place, modes, tools
        self._record, self._sockets = DaemonRecord(place.closed, place.pipe), DaemonSockets(place.pipe, place.closed)
        self._control = ControlClient(tools.control, place)
        self._seen: Process | None = None
        self._mended: tuple[float, str] = (-math.inf, "")
        self._limited: tuple[Process, MpsDaemon] | None = None
        self._clients: dict[Process, Clients] = {}
        self._counted = self._tended = -math.inf
        self._orphans: dict[Process, Clients | None] | None = None

    async def turn(self, wanted: MpsDaemon | None, held: IsHeld, every: float) -> DaemonStatus | None:
        """Make it as it is wanted, as far as may be; None where nothing is wanted and nothing is left.

        `held`: whether a container holds it, asked right before something is ended: a turn may take seconds.
        `every`: seconds between two counts of its clients. Raises CommandFailed, OSError.
        """
        running = await self._record.daemon()
        await self._bury(running, held)
        if self.in_use is None:
            there = [running] if running else list(self._orphans or ())
            self.in_use = frozenset(gpu for each in there for gpu in _visible(each))
        if running is not None and (cut_off := self._cut_off(running)):
            if held():
                return self._unreachable(running, cut_off)
            await self._kill(running)
            running = self._seen = None
            await self._bury(running, held)
        if running is not None and time.monotonic() - self._tended > every:
            self._mend()
        if wanted is None:
            return await self._dismiss(running, held)
        if running is not None and not _fits(running, wanted):
            if users := await self._users(held):
                return self._stands(
                    running, wanted, held, f"; the supervisor restarts it with the new settings when {users}"
                )
            await self._stop(running)
            running = self._seen = None
        if running is None and self._seen is not None:
            gone, self._seen = self._seen, None
            reason = f"control daemon {gone.pid} has ended and is started again"
            return DaemonStatus(name=self._name, state="waiting", reason=reason)
        if running is None:
            running = await self._start(wanted)
        self._seen = running
        try:
            if self._limited != (running, wanted):
                await self._control.limit(wanted)
                self._limited = running, wanted
            if time.monotonic() - self._counted > every:
                await self._count()
        except CommandTimedOut:
            if not await self._record.servers():  # it serves nobody, and the next one does
                processes.send_signal(running, signal.SIGKILL)
            raise
        return self._stands(running, wanted, held)

    def _stands(self, running: Process, wanted: MpsDaemon, held: IsHeld, more: str = "") -> DaemonStatus:
        used = wanted.exclusive_compute_mode or held() or any(self._clients.values()) or bool(self._orphans)
        self.in_use = frozenset(_visible(running) if used else ())
        if self._orphans:
            pids = ", ".join(str(each.pid) for each in self._orphans)
            reason = (
                f"server {pids} still has clients, but its control daemon has ended: new clients wait until "
                "the old clients end"
            )
            return DaemonStatus(name=self._name, state="waiting", reason=reason, pid=running.pid)
        devices = tuple(each for each in _visible(running) if each in wanted.client_memory_mib_by_device)
        reason = f"control daemon {running.pid}{more}{self._meddled()}"
        return DaemonStatus(name=self._name, state="ok", reason=reason, devices=devices, pid=running.pid)

    async def _dismiss(self, running: Process | None, held: IsHeld) -> DaemonStatus | None:
        if running is not None:
            self.in_use = frozenset(_visible(running))
            if users := await self._users(held):
                return self._leaves(f"control daemon {running.pid}", users, running)
            await self._stop(running)
        elif self._orphans:
            return self._leaves(f"server {next(iter(self._orphans)).pid}", "its clients have ended")
        elif held():
            return self._leaves("the daemon's directory", "no container holds it")
        await self._place.remove(MOUNT_TIMEOUT)
        self._record.forget()
        self.in_use = frozenset()
        return None

    def _leaves(self, what: str, when: str, running: Process | None = None) -> DaemonStatus:
        reason = f"no longer needed: {what} stays until {when}"
        return DaemonStatus(name=self._name, state="waiting", reason=reason, pid=running.pid if running else None)

    async def _start(self, wanted: MpsDaemon) -> Process:
        await self._place.prepare(MOUNT_TIMEOUT)
        for gpu in wanted.client_memory_mib_by_device if wanted.exclusive_compute_mode else ():
            await self._modes.exclude(gpu)
        options = ("-d", MULTI_USER_OPTION) if wanted.multi_user else ("-d",)
        self._sockets.clear()
        mark = self._record.begin()
        environment = self._control.environment(self._place.pipe) | {
            VISIBLE_DEVICES_VARIABLE: ",".join(wanted.client_memory_mib_by_device),
            MARK_VARIABLE: mark,
        }
        try:
            with self._place.output() as output:
                await run_command(
                    self._place.within(self._tools.control, *options),
                    START_TIMEOUT,
                    environment=environment,
                    output=output,
                )
        except CommandFailed as failed:
            raise CommandFailed(f"{self._tools.control} -d: {_tail(self._place.said) or failed}") from failed
        running = await self._record.daemon()
        if running is None:
            raise CommandFailed(
                f"{self._tools.control} -d: {_tail(self._place.said) or 'it was started and has ended'}"
            )
        deadline = time.monotonic() + LISTEN_TIMEOUT
        while cut_off := self._cut_off(running):
            if time.monotonic() > deadline:
                await self._kill(running)
                raise CommandFailed(
                    f"{cut_off} while the control daemon was starting: the supervisor starts the daemon again"
                )
            await asyncio.sleep(POLL_INTERVAL)
        return running

    def _cut_off(self, running: Process) -> str:
        """Why nothing can be said to a daemon; "" if it can. Raises OSError."""
        try:
            self._sockets.hold(running)
        except SocketReplaced as replaced:
            return str(replaced)
        except FileNotFoundError as error:
            return f"{error.filename} was removed"
        return ""

    def _unreachable(self, running: Process, cut_off: str) -> DaemonStatus:
        self.in_use = frozenset(_visible(running))
        reason = f"{cut_off}; control daemon {running.pid} is restarted when no container holds it"
        return DaemonStatus(name=self._name, state="failing", reason=reason, pid=running.pid)

    def _meddled(self) -> str:
        """What was put back of late, in words."""
        at, what = self._mended
        if time.monotonic() - at > TAMPERING_REPORT_PERIOD:
            return ""
        return f"; clients removed or replaced files in {self._place.pipe}: {what}"

    def _mend(self) -> None:
        """Put back what clients took away. Where that fails it is said, and those that compute go on."""
        self._tended = time.monotonic()
        try:
            if mended := self._sockets.mend():
                self._mended = self._tended, f"{', '.join(mended)} restored"
        except OSError as error:
            self._mended = self._tended, f"the supervisor cannot restore them: {error.filename}: {error.strerror}"

    async def _users(self, held: IsHeld) -> str:
        """What has to be over before nobody computes through it, in words; "" where nobody does."""
        await self._count()
        clients = any(self._clients.values())
        return "its clients have ended" if clients else "no container holds it" if held() else ""

    async def _count(self) -> None:
        self._clients = await self._control.clients()
        self._record.name_servers(self._clients.keys())
        self._counted = time.monotonic()

    async def _stop(self, running: Process) -> None:
        """End a daemon that nobody uses. It ends its servers; one that does not answer and has none is killed."""
        try:
            await self._control.ask("quit")
        except CommandFailed:
            if await self._record.servers():
                raise
            processes.send_signal(running, signal.SIGTERM)
        if not await _gone(running, END_TIMEOUT):
            if await self._record.servers():
                raise CommandFailed(f"control daemon {running.pid} did not quit: it still has servers")
            processes.send_signal(running, signal.SIGKILL)
            await _gone(running, END_TIMEOUT)

    async def _kill(self, running: Process) -> None:
        """End a daemon that nobody can speak to. Its servers are found without one, and end with the clients known."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            processes.send_signal(running, number)
            if await _gone(running, END_TIMEOUT):
                break
        self._orphans = None

    async def _bury(self, running: Process | None, held: IsHeld) -> None:
        """End servers whose control daemon is no more, once their clients have ended."""
        if running is not None and self._orphans == {}:
            return
        known = self._clients | (self._orphans or {})
        self._orphans = {}
        for server in await self._record.servers():
            if running is None or server.began < running.began:  # else it is this daemon's
                if _used(known.get(server), held):
                    self._orphans[server] = known.get(server)
                else:
                    processes.send_signal(server, signal.SIGTERM)
                    if not await _gone(server, END_TIMEOUT):
                        processes.send_signal(server, signal.SIGKILL)


def _used(clients: Clients | None, held: IsHeld) -> bool:
    """By those that were counted last. Where nobody counted, or could see who they are, by whoever holds it."""
    if clients is None or None in clients:
        return held()
    return any(client is not None and processes.is_alive(client) for client in clients)


def _fits(running: Process, wanted: MpsDaemon) -> bool:
    """Whether what it was started with is what is wanted."""
    return (
        set(_visible(running)) == set(wanted.client_memory_mib_by_device) and _multi_user(running) == wanted.multi_user
    )


@lru_cache(256)
def _visible(running: Process) -> tuple[str, ...]:
    return tuple(filter(None, processes.read_environment(running).get(VISIBLE_DEVICES_VARIABLE, "").split(",")))


@lru_cache(256)
def _multi_user(running: Process) -> bool:
    return MULTI_USER_OPTION in processes.read_arguments(running)


async def _gone(process: Process, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while processes.is_alive(process):
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(POLL_INTERVAL)
    return True


def _tail(path: Path) -> str:
    """The end of what a daemon said when it was started."""
    try:
        return last_line(files.read(path, follow=False).decode(errors="replace").strip())
    except OSError as error:
        return f"{path}: {error.strerror}"
