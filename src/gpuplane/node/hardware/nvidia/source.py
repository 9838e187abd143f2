"""The source of NVIDIA's GPUs: a process of its own asks the driver (`driver`), and one such process is kept up.

The driver's library may hang, crash, be absent or be replaced. Whatever it does, the agent goes on answering, and what
it did is told as a fact. Releasing the driver is killing, too: the end of a process is the one proof that no device
node is open.
"""

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from typing import Any

from gpuplane.node.hardware import HARDWARE_PART
from gpuplane.node.hardware.nvidia.driver.channel import SetSampling
from gpuplane.node.hardware.nvidia.driverprocess import WaitingProcess
from gpuplane.node.hardware.nvidia.migchanges import NO_PROCESS_REASON, PendingChanges
from gpuplane.node.hardware.nvidia.observer import Observer
from gpuplane.node.hardware.nvidia.probes import Prober
from gpuplane.node.hardware.nvidia.processes import DriverProcesses
from gpuplane.node.hardware.nvidia.settings import USUAL_TIMING, DriverLocation, Timing
from gpuplane.node.hardware.nvidia.smiactions import SmiActions
from gpuplane.node.hardware.nvidia.state import DriverState
from gpuplane.node.model.facts import Action, ChangePartition, Fact, ProbeGpu, SetTimeSlice
from gpuplane.node.model.partitions import ResetGpu
from gpuplane.node.model.telemetry import Sample, SamplingRequest


class Nvidia:
    """NVIDIA's GPUs through NVML and nvidia-smi."""

    part = HARDWARE_PART

    def __init__(
        self,
        location: DriverLocation,
        timing: Timing = USUAL_TIMING,
        first: WaitingProcess | None = None,
    ) -> None:
        """`first`: a process for the first start, which waits for its options."""
        self._state = DriverState(timing.retry)
        self._processes = DriverProcesses(location, timing, first)
        self._changes = PendingChanges(self._state.tell)
        self._observer = Observer(self._state, self._processes, self._changes, timing)
        self._prober = Prober(self._state, self._processes, self._observer)
        self._smi = SmiActions(self._state, self._processes, self._changes, timing.smi_deadline)
        self._actions = set[asyncio.Task[None]]()

    async def facts(self) -> AsyncGenerator[Fact, None]:
        """Observations, what happens, what probes find, and the status of the driver, for ever."""
        task, told = asyncio.create_task(self._observer.run()), self._state.told
        task.add_done_callback(told.put_nowait)
        try:
            while (fact := await told.get()) is not task:
                if not isinstance(fact, asyncio.Task):
                    yield fact
            await task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def samples(self) -> AsyncGenerator[Sample, None]:
        """What the process that observes has sampled. One that is not taken before the next one comes is lost."""
        return self._observer.samples()

    async def set_sampling(self, request: SamplingRequest) -> None:
        """Have this sampled from now on, by this process and each that follows."""
        self._processes.options = self._processes.options.but(sampling=request)
        self._observer.send(SetSampling(request))

    async def do(self, action: Action) -> None:
        """Observe now. Where the driver was released it is used again.

        Anything else is begun, and comes back as a fact whatever becomes of it.
        """
        if isinstance(action, ProbeGpu):
            self._begin(self._prober.probe(action))
        elif isinstance(action, SetTimeSlice):
            self._begin(self._smi.set_time_slice(action))
        elif isinstance(action, ChangePartition):
            self._change(action)
        elif self._state.is_wanted:
            self._observer.send(action)
        else:
            self._state.use_again()

    async def release(self) -> None:
        """End the driver's processes. Returns when no device node is open, or when it is known that one stays."""
        self._state.is_wanted = False
        self._observer.forget_sample()
        self._state.changed.set()
        await self._processes.dismiss_all()

    def _change(self, action: ChangePartition) -> None:
        """Have the process that observes make a change, or nvidia-smi a reset. Exactly one answer comes of it."""
        if isinstance(action.change, ResetGpu):
            self._begin(self._smi.reset_gpu(action))
        elif self._state.is_wanted and self._observer.send(action):
            self._changes.add(action)
        else:
            self._changes.finish(action, "failed", NO_PROCESS_REASON)

    def _begin(self, action: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(action)
        self._actions.add(task)
        task.add_done_callback(self._actions.discard)
