"""How much of its time a process was let work. One that gets no CPU does not hang, however long it takes.

Linux counts for each thread the nanoseconds that it ran and those that it was ready and waited for a CPU
(/proc/PID/task/TID/schedstat, Documentation/scheduler/sched-stats.rst). The second number grows when the wait ends, so
a thread that is ready and has not run since the last look has waited all the while. That is so under a busy node, a
low priority and a used-up quota alike. Whatever else a thread does counts as work: it runs, it sleeps, or it waits for
the driver, the disk or a lock.
"""

import os
import time
from contextlib import suppress
from pathlib import Path

from gpuplane.base import files
from gpuplane.base.value import Value

READY_STATE, SLEEPING_STATE, STOPPED_STATES = "R", "S", "Tt"
"""States of a thread (proc_pid_stat(5), field 3); stopped by a signal, or by a debugger."""
SECONDS_PER_TICK = 1 / os.sysconf("SC_CLK_TCK")
MAX_FILE_SIZE = 1 << 12
"""Bytes of these files."""


class ThreadTimes(Value):
    """A thread at one moment. `ran` and `waited`: seconds so far; `waited` None: this kernel does not count it."""

    state: str
    ran: float
    waited: float | None


class CpuAccess:
    """The work of one process, from when this was made on."""

    def __init__(self, pid: int) -> None:
        self._pid, self._folder, self._began = pid, Path(f"/proc/{pid}/task"), time.monotonic()
        self._waits = {number: ThreadWait(thread, self._began) for number, thread in self._look().items()}

    def seconds_with_cpu(self) -> float:
        """Seconds in which the process was let work; all of them where nothing is known of it.

        It may be less than at the last call, by as much as passed between that and the one before: how long a thread
        has waited is seen when it has got its CPU.
        """
        now, threads = time.monotonic(), self._look()
        for number, thread in threads.items():
            self._waits.setdefault(number, ThreadWait(thread, now)).see(thread, now)
        waits = (self._waits[each].seconds for each in threads if each == self._pid or self._sleeps())
        return now - self._began - max(waits, default=0.0)

    def is_stopped(self) -> bool:
        """Whether it was stopped at the last call: it does nothing until somebody has it go on."""
        return self._pid in self._waits and self._waits[self._pid].thread.state in STOPPED_STATES

    def _sleeps(self) -> bool:
        """Whether its first thread does, so that it gets on when one of the others does."""
        return self._pid not in self._waits or self._waits[self._pid].thread.state == SLEEPING_STATE

    def _look(self) -> dict[int, ThreadTimes]:
        with suppress(OSError):
            found = ((int(each), _thread(self._folder / each)) for each in os.listdir(self._folder))  # noqa: PTH208
            return {number: thread for number, thread in found if thread is not None}
        return {}


class ThreadWait:
    """How long a thread has waited for a CPU since it was seen first: `seconds`."""

    def __init__(self, thread: ThreadTimes, now: float) -> None:
        self.thread, self.seconds = thread, 0.0
        self._first, self._at = thread, now
        self._still = 0.0  # of that, what the kernel has not counted yet
        self._guessed = 0.0  # in all, where the kernel does not count

    def see(self, thread: ThreadTimes, now: float) -> None:
        """The thread as it is now."""
        waits = thread.state == READY_STATE and thread.ran == self.thread.ran
        passed = now - self._at if waits else 0.0
        self._still = self._still + passed if waits else 0.0
        self._guessed += passed
        self.thread, self._at = thread, now
        if thread.waited is None or self._first.waited is None:
            self.seconds = self._guessed
        else:
            self.seconds = thread.waited - self._first.waited + self._still


def _thread(folder: Path) -> ThreadTimes | None:
    """None where it has ended."""
    try:
        fields = files.read(folder / "stat", MAX_FILE_SIZE).rpartition(b")")[2].split()
    except OSError:
        return None
    state, used = fields[0].decode(), (int(fields[11]) + int(fields[12])) * SECONDS_PER_TICK
    try:
        ran, waited, _ = (int(each) for each in files.read(folder / "schedstat", MAX_FILE_SIZE).split())
    except (OSError, ValueError):
        return ThreadTimes(state=state, ran=used, waited=None)
    if ran == 0 and used > 0:  # this kernel does not count
        return ThreadTimes(state=state, ran=used, waited=None)
    return ThreadTimes(state=state, ran=ran / 1e9, waited=waited / 1e9)
