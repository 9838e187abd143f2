"""Whose turn it is to serve a kubelet: a lock on its device-plugins directory, held for as long as an agent serves.

It is `flock` on a descriptor of the directory itself. Kubelet empties that directory when it starts, so no file of ours
would last there; abstract sockets are seen in one network namespace only. The kernel frees the lock of a process that
was killed, and two pods that mount the directory lock the same inode.

Whoever waits does so in a thread that the kernel wakes when the lock is free: nothing is polled, so a take-over begins
within a millisecond and waiting costs nothing. A thread that is no longer of use is left behind: when it gets the lock
it frees it at once.

The directory may be removed and made again. Then the lock of the old one means nothing: whoever serves takes the one of
the new directory, or stands by where another was faster. A directory that is not there is nobody's: there is no kubelet
that two agents could both serve. Where the file system knows no such lock that is said, and agents serve without it.
"""

import asyncio
import fcntl
import os
import threading
from contextlib import suppress
from pathlib import Path

from gpuplane import files
from gpuplane.core.serving import standby
from gpuplane.kubelet.sockets import process
from gpuplane.model.facts import StatusChanged
from gpuplane.model.node import Node
from gpuplane.model.status import KUBELET_LOCK, State, TurnStatus
from gpuplane.model.status import Turn as TurnCode

LOOK = 2.0  # seconds between two looks whether the directory is still the same; each Register looks, too
WHO = 10.0  # seconds between two looks who holds its lock
TOLD_TO_END = "this agent was told to end: it registers with kubelet no more"
LOCKS = Path("/proc/locks")


class Turn:
    """The lock of one directory, as one agent has it or waits for it. It reports the status of the kubelet lock."""

    def __init__(self, node: Node, directory: Path, every: float = LOOK) -> None:
        self.node, self.directory, self.every = node, directory, every
        self._held: int | None = None  # a descriptor of the directory whose lock is ours
        self._lockless = ""  # why there are no locks here

    def ours(self) -> bool:
        """Whether this agent may serve the directory that is at the path now."""
        return bool(self._lockless) or (self._held is not None and _same(self._held, self.directory))

    def take(self) -> bool:
        """Take the lock; False where another agent has it. Tells nothing."""
        found = _open(self.directory)
        if found is None:
            return True  # nobody can serve a kubelet there; `lost` looks on
        try:
            fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(found)
            return False
        except OSError as error:
            os.close(found)
            self._lockless = f"{self.directory}: {error.strerror}"
        else:
            self._hold(found)
        return True

    async def wait(self) -> None:
        """Wait until the lock is ours, saying who has it where that is not said. Tells nothing once it is.

        An agent that has just said so may be why the other one ends now, and to look who it is keeps that one from
        freeing the lock (`_holder`).
        """
        said = bool(standby(self.node.snapshot))
        while not self.take():
            if not said:
                await self.stand_by()
            said = False
            if (found := _open(self.directory)) is not None and await self._granted(found):
                self._hold(found)
                return

    async def _granted(self, found: int) -> bool:
        """Wait for the lock of an open directory; False where another has come to the path, or there are no locks."""
        waiting = _Waiting(found)
        try:
            asked = self.node.now()
            while not (await asyncio.wait((waiting.granted,), timeout=self.every))[0]:
                if not _same(found, self.directory):
                    return False
                if self.node.now() - asked > WHO:
                    await self.stand_by()
                    asked = self.node.now()
            if waiting.granted.result() and _same(found, self.directory):
                waiting.keep()
                return True
            return False
        finally:
            waiting.leave()

    async def lost(self) -> None:
        """Look on while this agent serves; returns when another serves the directory that is at the path now."""
        while True:
            if not self.look():
                await self.stand_by()
                return
            await asyncio.sleep(self.every)

    def look(self) -> bool:
        """Tell how the lock stands, taking that of a directory that is new at the path; False where another has it, and
        nothing is told."""
        if not self.ours() and not self.take():
            return False
        if self._lockless:
            self._report_status("failing", f"{self._lockless}: two agents on this kubelet would not know of each other")
        elif self.ours():
            self._report_status("ok", str(self.directory))
        else:
            self._report_status("waiting", f"there is no {self.directory} yet")
        return True

    async def stand_by(self) -> None:
        """Say for whom this agent waits."""
        holder = await asyncio.to_thread(_holder, self.directory)
        who = process(holder) if holder is not None else "another process"
        reason = f"{who} serves the kubelet of {self.directory}: this agent takes over when that ends"
        self._report_status("waiting", reason, "standby")

    def leave(self) -> None:
        """Say that this agent was told to end: it registers no more."""
        self._report_status("waiting", TOLD_TO_END, "leaving")

    def left(self) -> None:
        """Say that kubelet is served no more: its streams end."""
        self._report_status("waiting", TOLD_TO_END, "left")

    def free(self) -> None:
        """Give the lock back."""
        held, self._held = self._held, None
        if held is not None:
            with suppress(OSError):
                fcntl.flock(held, fcntl.LOCK_UN)  # a child that is just being started may have the descriptor, too
            os.close(held)

    def _hold(self, found: int) -> None:
        self.free()
        self._held = found

    def _report_status(self, state: State, reason: str, turn: TurnCode = "") -> None:
        self.node.apply(StatusChanged(KUBELET_LOCK, TurnStatus(state, reason, turn=turn)))


class _Waiting:
    """A thread that waits for the lock of an open directory. It closes the descriptor where that is not kept."""

    def __init__(self, found: int) -> None:
        self._found, self._loop = found, asyncio.get_running_loop()
        self.granted: asyncio.Future[bool] = self._loop.create_future()
        self._kept = self._left = self._over = False
        self._changing = threading.Lock()
        threading.Thread(target=self._wait, name="kubelet lock", daemon=True).start()

    def keep(self) -> None:
        """The descriptor is the caller's from now on."""
        self._kept = True

    def leave(self) -> None:
        """Nobody waits any longer. The lock is freed as soon as it is had."""
        with self._changing:
            self._left = True
            if self._over and not self._kept:
                os.close(self._found)

    def _wait(self) -> None:
        granted = True
        try:
            fcntl.flock(self._found, fcntl.LOCK_EX)
        except OSError:
            granted = False
        with self._changing:
            self._over = True
            if self._left:
                os.close(self._found)
                return
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._tell, granted)

    def _tell(self, granted: bool) -> None:
        if not self.granted.done():
            self.granted.set_result(granted)


def _open(directory: Path) -> int | None:
    try:
        return os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None


def _same(found: int, directory: Path) -> bool:
    """Whether an open directory is the one at a path."""
    try:
        return os.path.samestat(os.fstat(found), directory.stat())
    except OSError:
        return False


def _holder(directory: Path) -> int | None:
    """The process that holds the lock of a directory, where it can be seen: not where it has another PID namespace.

    Takes some 10 ms, and 50 on a busy node: the kernel waits until nobody changes a lock, and meanwhile nobody can.
    Some file systems (btrfs) have another device number there.
    """
    try:
        found, lines = directory.stat(), files.read(LOCKS).decode().splitlines()
    except OSError:
        return None
    inode, device = str(found.st_ino), f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}"
    held = [line.split() for line in lines if " FLOCK " in line and "->" not in line]
    held = [each for each in held if each[-3].rpartition(":")[2] == inode]
    held = [each for each in held if each[-3] == f"{device}:{inode}"] or held
    return int(held[0][-4]) if held else None
