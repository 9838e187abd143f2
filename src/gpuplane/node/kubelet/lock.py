"""The lock on kubelet's device-plugins directory: the agent that holds it serves this kubelet, the others stand by.

It is `flock` on a descriptor of the directory itself. Kubelet empties that directory when it starts, so a lock file
would not last there; abstract sockets are visible in one network namespace only. The kernel releases the lock of a
process that was killed, and two pods that mount the directory lock the same inode.

An agent waits in a thread, which the kernel wakes when the lock is released. Nothing is polled: a take-over begins
within a millisecond, and waiting costs nothing. A thread whose agent has stopped waiting cannot be ended: it releases
the lock as soon as it gets it.

The directory may be removed and made again. Then the lock on the old one protects nothing: the agent that serves takes
the lock on the new directory, or stands by if another agent was faster. Without a directory there is no kubelet, so no
lock is needed. If the file system has no such locks the agent reports that, and serves without one.
"""

import asyncio
import fcntl
import os
import threading
from contextlib import suppress
from pathlib import Path

from gpuplane.base import files
from gpuplane.base.pauses import sleep_until_next
from gpuplane.node.core.serving import standby_reason
from gpuplane.node.kubelet.sockets import describe_process
from gpuplane.node.model.facts import StatusChanged
from gpuplane.node.model.node import Node
from gpuplane.node.model.status import KUBELET_LOCK_PART, PartState, Turn, TurnStatus

CHECK_INTERVAL = 2.0  # seconds between two checks that the directory is still the same; each Register checks it too
HOLDER_INTERVAL = 10.0  # seconds between two checks who holds the lock
TOLD_TO_END = "this agent is stopping: it no longer registers with kubelet"
PROC_LOCKS = Path("/proc/locks")


class KubeletLock:
    """The lock on one directory, for one agent. It reports the status of the kubelet lock."""

    def __init__(self, node: Node, directory: Path, interval: float = CHECK_INTERVAL) -> None:
        self.node, self.directory, self.interval = node, directory, interval
        self._descriptor: int | None = None  # a descriptor of the directory that this agent has locked
        self._unsupported = ""  # why this file system has no locks

    def may_serve(self) -> bool:
        """Whether this agent may serve the directory that is at the path now."""
        return bool(self._unsupported) or (
            self._descriptor is not None and _is_directory_at(self._descriptor, self.directory)
        )

    def try_acquire(self) -> bool:
        """Take the lock; False if another agent has it. Reports nothing."""
        found = _open_directory(self.directory)
        if found is None:
            return True  # there is no kubelet to serve; `wait_until_lost` checks again
        try:
            fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(found)
            return False
        except OSError as error:
            os.close(found)
            self._unsupported = f"{self.directory}: {error.strerror}"
        else:
            self._keep(found)
        return True

    async def acquire(self) -> None:
        """Wait for the lock, and report who has it unless that is reported already. Reports nothing once it is taken.

        To find out who holds the lock delays its release (`_lock_holder`). An agent that has just reported it may be
        the reason why the other one ends now.
        """
        is_reported = bool(standby_reason(self.node.snapshot))
        while not self.try_acquire():
            if not is_reported:
                await self.report_standby()
            is_reported = False
            if (found := _open_directory(self.directory)) is not None and await self._acquire_directory(found):
                self._keep(found)
                return

    async def _acquire_directory(self, descriptor: int) -> bool:
        """Wait for the lock on an open directory; False if another directory is at the path now, or flock fails."""
        waiting = _LockThread(descriptor)
        try:
            asked = self.node.now()
            while not (await asyncio.wait((waiting.acquired,), timeout=self.interval))[0]:
                if not _is_directory_at(descriptor, self.directory):
                    return False
                if self.node.now() - asked > HOLDER_INTERVAL:
                    await self.report_standby()
                    asked = self.node.now()
            if waiting.acquired.result() and _is_directory_at(descriptor, self.directory):
                waiting.keep_descriptor()
                return True
            return False
        finally:
            waiting.abandon()

    async def wait_until_lost(self) -> None:
        """Check the lock while this agent serves; returns when another agent has the lock on the directory."""
        while True:
            if not self.check():
                await self.report_standby()
                return
            await sleep_until_next(self.interval)

    def check(self) -> bool:
        """Report the status of the lock, and take it if the directory is a new one.

        False if another agent has it; then nothing is reported.
        """
        if not self.may_serve() and not self.try_acquire():
            return False
        if self._unsupported:
            self._report_status(
                "failing",
                (
                    f"{self._unsupported}: the agent has no lock, so two agents for this kubelet would "
                    "not notice each other"
                ),
            )
        elif self.may_serve():
            self._report_status("ok", str(self.directory))
        else:
            self._report_status("waiting", f"there is no {self.directory} yet")
        return True

    async def report_standby(self) -> None:
        """Report which process this agent waits for."""
        holder = await asyncio.to_thread(_lock_holder, self.directory)
        who = describe_process(holder) if holder is not None else "another process"
        reason = f"{who} serves the kubelet of {self.directory}: this agent takes over when that process ends"
        self._report_status("waiting", reason, "standby")

    def report_leaving(self) -> None:
        """Report that this agent was told to end: it registers no more."""
        self._report_status("waiting", TOLD_TO_END, "leaving")

    def report_stopped(self) -> None:
        """Report that this agent serves kubelet no more: its streams end."""
        self._report_status("waiting", TOLD_TO_END, "left")

    def release(self) -> None:
        """Release the lock."""
        held, self._descriptor = self._descriptor, None
        if held is not None:
            with suppress(OSError):
                fcntl.flock(held, fcntl.LOCK_UN)  # a child process that is being started may have the descriptor too
            os.close(held)

    def _keep(self, descriptor: int) -> None:
        self.release()
        self._descriptor = descriptor

    def _report_status(self, state: PartState, reason: str, turn: Turn = "") -> None:
        self.node.apply(StatusChanged(KUBELET_LOCK_PART, TurnStatus(state, reason, turn=turn)))


class _LockThread:
    """A thread that waits for the lock on an open directory. It closes the descriptor unless the caller keeps it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._loop = descriptor, asyncio.get_running_loop()
        self.acquired: asyncio.Future[bool] = self._loop.create_future()
        self._is_kept = self._is_abandoned = self._is_finished = False
        self._mutex = threading.Lock()
        threading.Thread(target=self._run, name="kubelet lock", daemon=True).start()

    def keep_descriptor(self) -> None:
        """Give the descriptor to the caller, who closes it."""
        self._is_kept = True

    def abandon(self) -> None:
        """Stop waiting. If the thread gets the lock later it releases it at once."""
        with self._mutex:
            self._is_abandoned = True
            if self._is_finished and not self._is_kept:
                os.close(self._descriptor)

    def _run(self) -> None:
        granted = True
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        except OSError:
            granted = False
        with self._mutex:
            self._is_finished = True
            if self._is_abandoned:
                os.close(self._descriptor)
                return
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._set_result, granted)

    def _set_result(self, acquired: bool) -> None:
        if not self.acquired.done():
            self.acquired.set_result(acquired)


def _open_directory(directory: Path) -> int | None:
    try:
        return os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None


def _is_directory_at(descriptor: int, directory: Path) -> bool:
    """Whether an open directory is the one at a path."""
    try:
        return os.path.samestat(os.fstat(descriptor), directory.stat())
    except OSError:
        return False


def _lock_holder(directory: Path) -> int | None:
    """The process that holds the lock on a directory; None if it cannot be seen, as in another PID namespace.

    Takes some 10 ms, and 50 on a busy node: while the kernel lists its locks no process can take or release one.
    Some file systems (btrfs) show another device number there.
    """
    try:
        found, lines = directory.stat(), files.read(PROC_LOCKS).decode().splitlines()
    except OSError:
        return None
    inode, device = str(found.st_ino), f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}"
    held = [line.split() for line in lines if " FLOCK " in line and "->" not in line]
    held = [each for each in held if each[-3].rpartition(":")[2] == inode]
    held = [each for each in held if each[-3] == f"{device}:{inode}"] or held
    return int(held[0][-4]) if held else None
