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
from gpuplane.base.text import clip
from gpuplane.node.core.mps import daemon_directory, daemon_part
from gpuplane.node.host.filewatch import contents
from gpuplane.node.host.lock import locked
from gpuplane.node.host.mps.command import Failed
from gpuplane.node.host.mps.files import FOLDER, STATUS, WANTED, read, write
from gpuplane.node.host.mps.keeper import Keeper, Tools
from gpuplane.node.host.mps.modes import Modes
from gpuplane.node.host.mps.place import Place
from gpuplane.node.host.mps.record import UNREADABLE
from gpuplane.node.model.mps import DaemonStatus, MpsDaemon, SupervisorStatus, WantedDaemons

TURN = 0.2
"""Seconds between two looks at a daemon."""
COUNT = (2.0, 0.5)
"""Seconds between two counts of a daemon's clients: at least, and for each daemon that there is."""
BEAT = 1.0
"""Seconds between two words of ours, when nothing changes."""
REFUSED = (0.5, 15.0)
"""Seconds until what failed is tried again: at first, and at most."""
LONGEST = 1000
"""Characters of a reason."""
MODES = 60.0
"""Seconds between two looks at compute modes, when nothing changes."""

log = logging.getLogger("gpuplane.mps")


class Supervisor:
    """Keeps the daemons below a root directory."""

    def __init__(self, root: Path, tools: Tools) -> None:
        self._root, self._folder, self._tools = root, root / FOLDER, tools
        self._wanted: WantedDaemons | None = None
        self._keepers: dict[str, Keeper] = {}
        self._stands: dict[str, DaemonStatus] = {}
        self._unread = self._unset = ""
        self.not_ready_reason = "the supervisor starts"
        """Why no daemon is supervised yet; "" once they are."""

    async def run(self) -> None:
        """Supervise for ever; one supervisor at a time. Raises OSError."""
        await self._trusted()
        async with locked(self._folder) as waiting:
            async for owner in waiting:
                self.not_ready_reason = f"{self._root} is used by another supervisor, {owner}: waiting until it ends"
                log.info("%s", self.not_ready_reason)
            self.not_ready_reason = ""
            self._modes = Modes(self._folder, self._tools.smi, self._tools.patience)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._tell())
                group.create_task(self._keep_modes())
                await self._listen(group)

    async def _trusted(self) -> None:
        """Wait until nobody else can put another thing where we obey what is written, and start what is asked for."""
        said, wait = "", REFUSED[0]
        while reason := self._risk():
            self.not_ready_reason = reason
            if reason != said:
                log.error("the supervisor cannot manage daemons below %s: %s", self._root, reason)
                said, wait = reason, REFUSED[0]
            await asyncio.sleep(wait)
            wait = min(wait * 2, REFUSED[1])

    def _risk(self) -> str:
        """Why the directories cannot be used; "" if they can. Makes those that are missing.

        Raises PermissionError where we are not root: nobody will give us that right later.
        """
        modes = {self._root: 0o711, self._folder: 0o700}
        try:
            for path in (*reversed(self._root.parents), self._root, self._folder):
                with suppress(FileExistsError):
                    path.mkdir(modes.get(path, 0o755))
                if reason := files.weakness(path.lstat(), on_the_way=path not in modes):
                    return f"{path} {reason}: it must be a directory (not a link) that only root can write to"
        except OSError as error:
            if isinstance(error, PermissionError) and os.geteuid():
                raise
            return _told(error)
        return ""

    async def _listen(self, group: asyncio.TaskGroup) -> None:
        async for found in contents(self._folder / WANTED, every=TURN):
            if isinstance(found, FileNotFoundError):
                continue  # nothing was ever wanted here
            try:
                if isinstance(found, OSError):
                    raise found
                self._wanted, self._unread = read(found, WantedDaemons), ""
            except UNREADABLE as error:
                self._unread = f"{self._folder / WANTED}: {error}; the supervisor keeps using the last request"
                log.error("%s", self._unread)
                continue
            names = {daemon_directory(each.name) for each in self._wanted.daemons}
            for name in sorted(names | set(self._found())):
                if name not in self._keepers:
                    place = Place(self._root, name, self._tools.own_shm)
                    self._keepers[name] = Keeper(name, place, self._modes, self._tools)
                    group.create_task(self._keep(name))

    def _found(self) -> list[str]:
        """Directories of daemons that there are, wanted or not; those of a MIG device have no second level.

        By names alone: what stands below is within clients' reach.
        """
        names = []
        for above in _folders(self._root):
            if above.startswith("MIG-"):
                names.append(above)
            elif above != FOLDER:
                names += [f"{above}/{each}" for each in _folders(self._root / above)]
        return [name for name in names if (self._root / name / "pipe").is_dir() or (self._folder / name).is_dir()]

    async def _keep(self, name: str) -> None:
        """Turn after turn, until nothing is wanted of it and nothing is left."""
        wait = REFUSED[0]
        while True:
            try:
                stands = await self._turn(name)
            except Exception as error:
                if not isinstance(error, Failed | OSError):
                    log.exception("%s", name, extra=_about(name))
                self._stand(DaemonStatus(name=name, state="failing", reason=_told(error)))
                await asyncio.sleep(wait)
                wait = min(wait * 2, REFUSED[1])
            else:
                if stands is None and self._wish(name) is None:
                    del self._keepers[name]
                    self._stands.pop(name, None)
                    log.info("%s: ended", name, extra=_about(name))
                    return
                wait = REFUSED[0]
                if stands is None or not self._stand(stands):  # what is news is looked at again at once
                    await asyncio.sleep(TURN)

    async def _turn(self, name: str) -> DaemonStatus | None:
        assert self._wanted is not None  # nobody is kept before
        every = max(COUNT[0], COUNT[1] * len(self._keepers))
        wish = self._wish(name)
        if wish is not None:
            devices = {id: mib for id, mib in wish.client_memory_mib_by_device.items() if id not in self._taken(name)}
            if not devices:
                reason = "another daemon uses its GPUs: waiting until the other daemon ends"
                return DaemonStatus(name=name, state="waiting", reason=reason)
            wish = wish.but(client_memory_mib_by_device=devices)
        return await self._keepers[name].turn(wish, lambda: self._held(name), every)

    def _held(self, name: str) -> bool:
        """Whether a container holds it, by the agent's newest word."""
        return self._wanted is not None and name in map(daemon_directory, self._wanted.daemons_in_use)

    def _taken(self, name: str) -> frozenset[str]:
        """The GPUs of other daemons that there are still: a GPU is one server's."""
        others = (keeper.in_use or frozenset() for each, keeper in self._keepers.items() if each != name)
        return frozenset[str]().union(*others)

    def _wish(self, name: str) -> MpsDaemon | None:
        daemons = self._wanted.daemons if self._wanted else ()
        return next((each for each in daemons if daemon_directory(each.name) == name), None)

    def _stand(self, standing: DaemonStatus) -> bool:
        """Whether that is news."""
        standing = standing.but(reason=clip(standing.reason, LONGEST))
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
            if needed is not None and (done is None or done[0] != needed or time.monotonic() - done[1] > MODES):
                try:
                    await self._modes.keep(needed)
                    self._unset, done = "", (needed, time.monotonic())
                except (Failed, OSError) as error:
                    self._unset = f"compute modes: {_told(error)}"
                    await asyncio.sleep(REFUSED[0] * 4)
            await asyncio.sleep(TURN)

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
            if news != told or now - at >= BEAT:
                try:
                    write(self._folder / STATUS, news.but(at=now))
                    told, at = news, now
                    unwritten = ""
                except OSError as error:
                    if unwritten != (unwritten := self._risk() or _told(error)):
                        log.error("cannot write the status of the daemons: %s", unwritten)
                    await asyncio.sleep(BEAT)
            await asyncio.sleep(TURN / 4)


def _folders(path: Path) -> list[str]:
    with suppress(OSError), os.scandir(path) as found:
        return [each.name for each in found if each.is_dir(follow_symlinks=False)]
    return []


def _about(name: str, devices: tuple[str, ...] = ()) -> dict[str, object]:
    """What a line is about: the part by which an agent knows this daemon, and its resource where it serves one."""
    return LogSubject(devices=devices, part=daemon_part(name).name, resources=(name,) if "/" in name else ()).extra


def _told(error: Exception) -> str:
    return f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
