"""Who uses a GPU: the processes that the driver lists, what they use, and where the kernel counts each of them.

A process's number alone says little: it is given out again. So when the process was started is read with it, and the
cgroups of a process that is not known yet are believed only if it was there before, and still is after they were read.
"""

import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from gpuplane.base.files import read
from gpuplane.node.hardware.nvidia.driver.counterqueries import CounterQueries, NoAnswer
from gpuplane.node.hardware.nvidia.driver.counters import MIB, PROCESS_LIST_CALLS, PROCESS_UTILIZATION_CALL
from gpuplane.node.model.telemetry import ProcessSample

ANY_INSTANCE = 0xFFFFFFFF  # no instance
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")  # a second
START_TOLERANCE_TICKS = 2  # ticks by which the clocks of a process's start and ours may differ
MAX_FILE_SIZE = 1 << 16  # bytes of these files
NO_PROCESS_ERRORS = ("NOT_FOUND", "0")
"""How the library says that no process used a GPU: nvidia-ml-py raises an error for it, be it that of success."""

ProcessIdentity = tuple[int, tuple[str, ...]]  # when it was started, and its cgroups

UNKNOWN_IDENTITY: ProcessIdentity = (0, ())


class ProcessIdentities:
    """The kernel's files about processes, below a root. `visible`: its numbers are those that the driver tells."""

    def __init__(self, root: str, visible: bool) -> None:
        self._folder = os.path.join(root, "proc")
        self._visible = visible
        self._known: dict[int, ProcessIdentity] = {}

    def visible(self) -> bool:
        """Whether processes of containers can be identified here."""
        return self._visible and os.access(self._folder, os.R_OK | os.X_OK)

    def identify(self, pid: int, listed_at: float) -> ProcessIdentity:
        """A process that was listed at a time of CLOCK_BOOTTIME; nothing of one that has ended, or came later."""
        if not self._visible:
            return UNKNOWN_IDENTITY
        started = self._started(pid)
        known = self._known.get(pid, UNKNOWN_IDENTITY)
        if started and known[0] == started:
            return known
        if not started or started > listed_at * TICKS_PER_SECOND + START_TOLERANCE_TICKS:
            return UNKNOWN_IDENTITY
        cgroups = self._cgroups(pid)
        if self._started(pid) != started:
            return UNKNOWN_IDENTITY
        self._known[pid] = started, cgroups
        return started, cgroups

    def keep(self, pids: Iterable[int]) -> None:
        """Forget all others."""
        self._known = {pid: self._known[pid] for pid in pids if pid in self._known}

    def _started(self, pid: int) -> int:
        """Field 22; the name of the program before it may have anything in it. 0: there is no such process."""
        with suppress(OSError, ValueError, IndexError):
            return max(0, int(read(f"{self._folder}/{pid}/stat", MAX_FILE_SIZE).rpartition(b")")[2].split()[19]))
        return 0

    def _cgroups(self, pid: int) -> tuple[str, ...]:
        lines: list[str] = []
        with suppress(OSError):
            lines = read(f"{self._folder}/{pid}/cgroup", MAX_FILE_SIZE).decode(errors="replace").splitlines()
        paths = (line.split(":", 2)[2] for line in lines if line.count(":") >= 2)
        return tuple(dict.fromkeys(paths))


class GpuProcesses:
    """The users of one GPU."""

    def __init__(self, asker: CounterQueries, processes: ProcessIdentities) -> None:
        self._asker, self._processes = asker, processes
        self._seen = 0  # of the newest record of use: the library's time

    def read(self, now: float, handle: Any, migs: Iterable[Any]) -> tuple[ProcessSample, ...]:
        """The processes that use it. `migs`: handles of its MIG devices. Raises GpuNotAnswering."""
        at = time.clock_gettime(time.CLOCK_BOOTTIME)
        found: dict[tuple[int, int, int], int | None] = {}
        for each in (process for function in PROCESS_LIST_CALLS for process in self._list(now, function, handle, migs)):
            if each.pid:
                memory, place = each.usedGpuMemory, (each.pid, each.gpuInstanceId, each.computeInstanceId)
                found[place] = max(memory or 0, found.get(place) or 0) if memory is not None else found.get(place)
        used = self._use(now, handle) if found else {}
        return tuple(self._told(place, found[place], used, at) for place in sorted(found))

    def _told(
        self, place: tuple[int, int, int], memory: int | None, used: Mapping[int, float] | None, at: float
    ) -> ProcessSample:
        pid, gpu_instance, compute_instance = place
        started, cgroups = self._processes.identify(pid, at)
        return ProcessSample(
            pid=pid,
            started=started,
            cgroups=cgroups,
            memory_mib=None if memory is None else memory / MIB,
            sm_percent=None if used is None else used.get(pid, 0.0),
            gpu_instance=None if gpu_instance == ANY_INSTANCE else gpu_instance,
            compute_instance=None if compute_instance == ANY_INSTANCE else compute_instance,
        )

    def _list(self, now: float, function: str, handle: Any, migs: Iterable[Any]) -> Iterable[Any]:
        """A GPU tells of those in its MIG devices too, to the privileged; others have to ask these."""
        try:
            return self._asker.ask(now, function, function, handle)  # type: ignore[no-any-return]
        except NoAnswer as missing:
            if missing.error != "NO_PERMISSION":
                return ()
        found: list[Any] = []
        for mig in migs:
            with suppress(NoAnswer):
                found += self._asker.ask(now, (function, "mig"), function, mig)
        return found

    def _use(self, now: float, handle: Any) -> Mapping[int, float] | None:
        """Process → its percents of the SMs' time since the last call; only who used some is listed. None: not told.

        The library is known to list what is older, and more than the whole (Syllo/nvtop#110): that is left out.
        """
        try:
            records = self._asker.ask(now, PROCESS_UTILIZATION_CALL, PROCESS_UTILIZATION_CALL, handle, self._seen)
        except NoAnswer as missing:
            return {} if missing.error in NO_PROCESS_ERRORS else None
        newest: dict[int, tuple[int, float]] = {}
        for record in records:
            if record.timeStamp > self._seen and record.smUtil <= 100:
                newest[record.pid] = max(newest.get(record.pid, (0, 0.0)), (record.timeStamp, float(record.smUtil)))
        self._seen = max((stamp for stamp, _ in newest.values()), default=self._seen)
        return {pid: percent for pid, (_, percent) in newest.items()}
