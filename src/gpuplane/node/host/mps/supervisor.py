"""The supervisor of this node's MPS daemons: makes them as the agent wants them, and writes how they stand.

Each daemon is kept by a task of its own, so that one that hangs costs the others nothing. Before the agent's first word
nothing is done. When the supervisor ends, however it ends, daemons stay: the next one finds them.
"""

import asyncio
import logging
import os
import time
from contextlib import suppress
from pathlib import Path

from gpuplane.base import files
from gpuplane.base.logsubject import LogSubject
from gpuplane.base.pauses import Backoff
from gpuplane.base.text import clip
from gpuplane.node.core.mps import daemon_directory, daemon_part
from gpuplane.node.host.filewatch import watch_file
from gpuplane.node.host.lock import locked_directory
from gpuplane.node.host.mps.command import CommandFailed
from gpuplane.node.host.mps.computemodes import ComputeModes
from gpuplane.node.host.mps.daemondirectories import DaemonDirectories
from gpuplane.node.host.mps.daemonkeeper import DaemonKeeper, MpsDaemonOptions
from gpuplane.node.host.mps.daemonrecord import READ_ERRORS
from gpuplane.node.host.mps.files import FILES_FOLDER, STATUS_FILE, WANTED_FILE, decode_file, write_file
from gpuplane.node.model.mps import DaemonStatus, MpsDaemon, SupervisorStatus, WantedDaemons

DAEMON_CHECK_INTERVAL = 0.2
"""Seconds between two looks at a daemon."""
CLIENT_COUNT_INTERVALS = (2.0, 0.5)
"""Seconds between two counts of a daemon's clients: at least, and for each daemon that there is."""
HEARTBEAT_INTERVAL = 1.0
"""Seconds between two words of ours, when nothing changes."""
RETRY_INTERVALS = (0.5, 15.0)
"""Seconds until what failed is tried again: at first, and at most."""
MAX_REASON_LENGTH = 1000
"""Characters of a reason."""
MODE_CHECK_INTERVAL = 60.0
"""Seconds between two looks at compute modes, when nothing changes."""

log = logging.getLogger("gpuplane.mps")


class Supervisor:
    """Keeps the daemons below a root directory."""

    def __init__(self, root: Path, tools: MpsDaemonOptions) -> None:
        self._root, self._folder, self._tools = root, root / FILES_FOLDER, tools
        self._wanted: WantedDaemons | None = None
        self._keepers: dict[str, DaemonKeeper] = {}
        self._stands: dict[str, DaemonStatus] = {}
        self._unread = self._unset = ""
        self.not_ready_reason = "the supervisor starts"
        """Why no daemon is supervised yet; "" once they are."""

    async def run(self) -> None:
        """Supervise for ever; one supervisor at a time. Raises OSError."""
        await self._trusted()
        async with locked_directory(self._folder) as waiting:
            async for owner in waiting:
                self.not_ready_reason = f"{self._root} is used by another supervisor, {owner}: waiting until it ends"
                log.info("%s", self.not_ready_reason)
            self.not_ready_reason = ""
            self._modes = ComputeModes(self._folder, self._tools.smi, self._tools.nvidia_smi_timeout)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._tell())
                group.create_task(self._keep_modes())
                await self._listen(group)

    async def _trusted(self) -> None:
        """Wait until nobody else can put another thing where we obey what is written, and start what is asked for."""
        said, pauses = "", Backoff(*RETRY_INTERVALS)
        while reason := self._risk():
            self.not_ready_reason = reason
            if reason != said:
                log.error("the supervisor cannot manage daemons below %s: %s", self._root, reason)
                said, pauses = reason, Backoff(*RETRY_INTERVALS)
            await asyncio.sleep(pauses.seconds)
            pauses.after(well=False)

    def _risk(self) -> str:
        """Why the directories cannot be used; "" if they can. Makes those that are missing.

        Raises PermissionError where we are not root: nobody will give us that right later.
        """
        modes = {self._root: 0o711, self._folder: 0o700}
        try:
            for path in (*reversed(self._root.parents), self._root, self._folder):
                with suppress(FileExistsError):
                    path.mkdir(modes.get(path, 0o755))
                if reason := files.untrusted_owner_or_mode(path.lstat(), on_the_way=path not in modes):
                    return f"{path} {reason}: it must be a directory (not a link) that only root can write to"
        except OSError as error:
            if isinstance(error, PermissionError) and os.geteuid():
                raise
            return _told(error)
        return ""

    async def _listen(self, group: asyncio.TaskGroup) -> None:
        async for found in watch_file(self._folder / WANTED_FILE, every=DAEMON_CHECK_INTERVAL):
            if isinstance(found, FileNotFoundError):
                continue  # nothing was ever wanted here
            try:
                if isinstance(found, OSError):
                    raise found
                self._wanted, self._unread = decode_file(found, WantedDaemons), ""
            except READ_ERRORS as error:
                self._unread = f"{self._folder / WANTED_FILE}: {error}; the supervisor keeps using the last request"
                log.error("%s", self._unread)
                continue
            names = {daemon_directory(each.name) for each in self._wanted.daemons}
            for name in sorted(names | set(self._found())):
                if name not in self._keepers:
                    place = DaemonDirectories(self._root, name, self._tools.own_shm)
                    self._keepers[name] = DaemonKeeper(name, place, self._modes, self._tools)
                    group.create_task(self._keep(name))

    def _found(self) -> list[str]:
        """Directories of daemons that there are, wanted or not; those of a MIG device have no second level.

        By names alone: what stands below is within clients' reach.
        """
        names = []
        for above in _folders(self._root):
            if above.startswith("MIG-"):
                names.append(above)
            elif above != FILES_FOLDER:
                names += [f"{above}/{each}" for each in _folders(self._root / above)]
        return [name for name in names if (self._root / name / "pipe").is_dir() or (self._folder / name).is_dir()]

    async def _keep(self, name: str) -> None:
        """Turn after turn, until nothing is wanted of it and nothing is left."""
        pauses = Backoff(*RETRY_INTERVALS)
        while True:
            try:
                stands = await self._turn(name)
            except Exception as error:
                if not isinstance(error, CommandFailed | OSError):
                    log.exception("%s", name, extra=_about(name))
                self._stand(DaemonStatus(name=name, state="failing", reason=_told(error)))
                await asyncio.sleep(pauses.seconds)
                pauses.after(well=False)
            else:
                if stands is None and self._wanted_daemon(name) is None:
                    del self._keepers[name]
                    self._stands.pop(name, None)
                    log.info("%s: ended", name, extra=_about(name))
                    return
                pauses.after(well=True)
                if stands is None or not self._stand(stands):  # what is news is looked at again at once
                    await asyncio.sleep(DAEMON_CHECK_INTERVAL)

    async def _turn(self, name: str) -> DaemonStatus | None:
        assert self._wanted is not None  # nobody is kept before
        every = max(CLIENT_COUNT_INTERVALS[0], CLIENT_COUNT_INTERVALS[1] * len(self._keepers))
        wanted = self._wanted_daemon(name)
        if wanted is not None:
            devices = {id: mib for id, mib in wanted.client_memory_mib_by_device.items() if id not in self._taken(name)}
            if not devices:
                reason = "another daemon uses its GPUs: waiting until the other daemon ends"
                return DaemonStatus(name=name, state="waiting", reason=reason)
            wanted = wanted.but(client_memory_mib_by_device=devices)
        return await self._keepers[name].turn(wanted, lambda: self._held(name), every)

    def _held(self, name: str) -> bool:
        """Whether a container holds it, by the agent's newest word."""
        return self._wanted is not None and name in map(daemon_directory, self._wanted.daemons_in_use)

    def _taken(self, name: str) -> frozenset[str]:
        """The GPUs of other daemons that there are still: a GPU is one server's."""
        others = (keeper.in_use or frozenset() for each, keeper in self._keepers.items() if each != name)
        return frozenset[str]().union(*others)

    def _wanted_daemon(self, name: str) -> MpsDaemon | None:
        daemons = self._wanted.daemons if self._wanted else ()
        return next((each for each in daemons if daemon_directory(each.name) == name), None)

    def _stand(self, standing: DaemonStatus) -> bool:
        """Whether that is news."""
        standing = standing.but(reason=clip(standing.reason, MAX_REASON_LENGTH))
        if self._stands.get(standing.name) == standing:
            return False
        level = logging.WARNING if standing.state == "failing" else logging.INFO
        about = _about(standing.name, standing.devices)
        log.log(level, "%s: %s: %s", standing.name, standing.state, standing.reason, extra=about)
        self._stands[standing.name] = standing
        return True

    async def _keep_modes(self) -> None:
        """Compute modes, whenever it changes which GPUs need theirs, and now and then."""
        done: tuple[frozenset[str], float] | None = None
        while True:
            needed = self._needed()
            if needed is not None and (
                done is None or done[0] != needed or time.monotonic() - done[1] > MODE_CHECK_INTERVAL
            ):
                try:
                    await self._modes.keep(needed)
                    self._unset, done = "", (needed, time.monotonic())
                except (CommandFailed, OSError) as error:
                    self._unset = f"compute modes: {_told(error)}"
                    await asyncio.sleep(RETRY_INTERVALS[0] * 4)
            await asyncio.sleep(DAEMON_CHECK_INTERVAL)

    def _needed(self) -> frozenset[str] | None:
        """GPUs whose mode must stay; None while that is not known of every daemon."""
        if self._wanted is None:
            return None
        needed = {
            gpu
            for each in self._wanted.daemons
            if each.exclusive_compute_mode
            for gpu in each.client_memory_mib_by_device
        }
        for keeper in self._keepers.values():
            if keeper.in_use is None:
                return None
            needed |= keeper.in_use
        return frozenset(needed)

    async def _tell(self) -> None:
        """Write how they stand: what changes at once, and else as a sign of life."""
        told, at, unwritten = None, 0.0, ""
        while True:
            now = time.clock_gettime(time.CLOCK_BOOTTIME)
            stands = tuple(self._stands[name] for name in sorted(self._stands))
            problem = self._unread or self._unset
            news = SupervisorStatus(
                at=0.0, pid=os.getpid(), daemons=stands, exclusive_gpus=self._modes.changed, problem=problem
            )
            if news != told or now - at >= HEARTBEAT_INTERVAL:
                try:
                    write_file(self._folder / STATUS_FILE, news.but(at=now))
                    told, at = news, now
                    unwritten = ""
                except OSError as error:
                    if unwritten != (unwritten := self._risk() or _told(error)):
                        log.error("cannot write the status of the daemons: %s", unwritten)
                    await asyncio.sleep(HEARTBEAT_INTERVAL)
            await asyncio.sleep(DAEMON_CHECK_INTERVAL / 4)


def _folders(path: Path) -> list[str]:
    with suppress(OSError), os.scandir(path) as found:
        return [each.name for each in found if each.is_dir(follow_symlinks=False)]
    return []


def _about(name: str, devices: tuple[str, ...] = ()) -> dict[str, object]:
    """What a line is about: the part by which an agent knows this daemon, and its resource where it serves one."""
    return LogSubject(devices=devices, part=daemon_part(name).name, resources=(name,) if "/" in name else ()).extra


def _told(error: Exception) -> str:
    return f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
