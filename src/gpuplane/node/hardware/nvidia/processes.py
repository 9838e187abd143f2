"""The processes of ours that use the driver: how they are started, listened to and ended.

- Only time in which its process was let work counts against a call: a busy node is no fault of a GPU.
- A process is killed, never waited for: one that is stuck in the kernel survives even that, and is left behind.
- Silence of the driver as a whole doubles the next process's deadline: GPUs without persistence take long to wake.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable

from gpuplane.base.pauses import seconds_until_next
from gpuplane.node.hardware.nvidia.driver.channel import DriverMessage, DriverOptions, SkippedGpu
from gpuplane.node.hardware.nvidia.driver.migcalls import CALL_OF_CHANGE
from gpuplane.node.hardware.nvidia.driver.openers import find_openers
from gpuplane.node.hardware.nvidia.driverprocess import DriverProcess, WaitingProcess
from gpuplane.node.hardware.nvidia.nvidiasmi import NvidiaSmi
from gpuplane.node.hardware.nvidia.schedstat import CpuAccess
from gpuplane.node.hardware.nvidia.settings import DriverLocation, Timing
from gpuplane.node.model.facts import ProbeGpu
from gpuplane.node.model.machine import Fault, Gpu
from gpuplane.node.model.partitions import GpuUser

KILL_TIMEOUT = 1.0
"""Seconds that a killed process is given before it counts as stuck in the kernel."""

MAX_ORDER_DELAY = 0.25
"""Seconds in which the process that observes reads an order."""

MAX_CALL_DEADLINE = 60.0
"""Seconds that a call may take at the most, however often it was too slow."""

CHANGE_DEADLINE_FACTOR = 3
"""Times as long may a call take that changes how a GPU is partitioned."""


class DriverProcesses:
    """`options`: how a process is set up. `hangs`: how often in a row the driver as a whole did not answer."""

    def __init__(self, location: DriverLocation, timing: Timing, first: WaitingProcess | None) -> None:
        """`first`: a process for the first start, which waits for its options."""
        self.options = DriverOptions(
            channel=-1,
            page=-1,
            library=str(location.library or ""),
            driver_root=str(location.driver_root),
            library_folders=location.library_folders,
            root_chosen=location.root_chosen,
            root=str(location.root),
            dev_root=str(location.dev_root or ""),
            poll=timing.poll,
            event_wait=min(timing.poll, timing.deadline / 4, MAX_ORDER_DELAY),
            rest=timing.rest[1],
            host_pids=location.host_pids,
        )
        self.deadline, self.hangs = timing.deadline, 0
        self._first = first
        self._processes: list[DriverProcess | NvidiaSmi] = []  # all that are not known to have ended

    def left(self) -> list[DriverProcess | NvidiaSmi]:
        """The processes that have not ended."""
        self._processes = [process for process in self._processes if not process.is_gone()]
        return self._processes

    def start(self, skip: tuple[SkippedGpu, ...], probe: ProbeGpu | None = None) -> DriverProcess:
        """Another process. Raises OSError."""
        first, self._first = (self._first, None) if probe is None else (None, self._first)
        process = DriverProcess(self.options.but(skip=skip, probe=probe), first)
        self._processes.append(process)
        return process

    def start_nvidia_smi(self, index: int | None, arguments: tuple[str, ...]) -> NvidiaSmi:
        """nvidia-smi, about the GPU of this index. Raises OSError."""
        smi = NvidiaSmi(self.options.driver_root, index, arguments, self.options.library_folders)
        self._processes.append(smi)
        return smi

    async def messages(
        self, process: DriverProcess, report_starved: Callable[[bool], None] = lambda _: None
    ) -> AsyncGenerator[DriverMessage | None, None]:
        """What a process tells, and None now and then, until it has ended or is silent for too long.

        `report_starved`: whether it gets too little CPU to answer in time.
        """
        since, access, had, worked = process.announced().since, CpuAccess(process.pid), 0.0, 0.0
        while True:
            deadline = self._deadline_of(process)
            tick = min(1.0, deadline / 4)
            message = await process.receive(seconds_until_next(tick))
            if message is None and process.ended:
                return
            if message is None:
                if (began := process.announced().since) != since:
                    since, access, had, worked = began, CpuAccess(process.pid), 0.0, 0.0
                before, had = had, access.seconds_with_cpu()
                worked += min(had - before, 2 * tick)  # more is our own lateness
                if worked > deadline:
                    process.silent, process.stopped = True, access.is_stopped()
                    return
                report_starved(time.monotonic() - since > deadline)
            yield message

    async def end(self, process: DriverProcess) -> None:
        """See that a process has ended. One that ends by itself is left the time for it: it has a status of its own."""
        try:
            if process.ended and not process.silent:
                await process.wait_until_gone(KILL_TIMEOUT)
        finally:
            process.kill()
        process.stuck = not await process.wait_until_gone(KILL_TIMEOUT)

    async def end_nvidia_smi(self, smi: NvidiaSmi) -> None:
        """See that it has ended."""
        smi.kill()
        smi.stuck = not await smi.wait_until_gone(KILL_TIMEOUT)

    async def dismiss(self, processes: Iterable[DriverProcess | NvidiaSmi]) -> list[DriverProcess | NvidiaSmi]:
        """End processes that nobody wants any more; those that survive it."""
        dismissed = list(processes)
        for process in dismissed:
            process.dismissed = True
            process.kill()
        return [process for process in dismissed if not await process.wait_until_gone(KILL_TIMEOUT)]

    async def dismiss_all(self) -> None:
        """Release the driver. Returns when no device node is open, or when it is known that one stays."""
        if self._first is not None:  # it waits for options, and has nothing open
            waiting, line = self._first
            self._first = None
            line.close()
            waiting.kill()
            await asyncio.to_thread(waiting.wait)
        await self.dismiss(self._processes)

    async def find_stuck(self) -> None:
        """Look which of the processes that were killed are stuck in the kernel."""
        for process in (each for each in self.left() if not each.stuck):
            process.stuck = not await process.wait_until_gone(KILL_TIMEOUT)  # it was killed a moment ago, perhaps

    async def openers(self, gpu: Gpu) -> tuple[GpuUser, ...]:
        """Who else than we may have a GPU open."""
        ours, host_pids = [process.pid for process in self.left()], self.options.host_pids
        return await asyncio.to_thread(find_openers, self.options.root, gpu.minor, (), ours, host_pids=host_pids)

    def _deadline_of(self, process: DriverProcess) -> float:
        """How long the call that a process makes may take now."""
        is_change = process.announced().function in CALL_OF_CHANGE.values()
        usual = self.deadline * (CHANGE_DEADLINE_FACTOR if is_change else 1)
        return min(usual * (1 << min(self.hangs, 8)), max(MAX_CALL_DEADLINE, self.deadline))


def start_fault(error: OSError) -> Fault:
    """What it shows that a process cannot be started."""
    what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return Fault(code="driver-start", message=f"the driver's process cannot be started: {what}")


def join_pids(processes: Iterable[DriverProcess | NvidiaSmi]) -> str:
    """The numbers of processes, for people."""
    return ", ".join(str(process.pid) for process in processes)
