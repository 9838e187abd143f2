"""Recovery probes: a fresh process observes one GPU, beside the one that observes all. What it hangs or crashes in is
its answer."""

from contextlib import aclosing

from gpuplane.node.hardware.nvidia.driver.channel import SkipGpus
from gpuplane.node.hardware.nvidia.observer import Observer
from gpuplane.node.hardware.nvidia.obstacles import why_gpu_is_not_queried
from gpuplane.node.hardware.nvidia.processes import DriverProcesses, start_fault
from gpuplane.node.hardware.nvidia.state import RELEASED_FAULT, DriverState
from gpuplane.node.model.facts import ProbeFinished, ProbeGpu
from gpuplane.node.model.machine import Fault, Gpu


class Prober:
    """Makes probes. `observer`: it is told which GPUs answer again."""

    def __init__(self, state: DriverState, processes: DriverProcesses, observer: Observer) -> None:
        self._state, self._processes, self._observer = state, processes, observer

    async def probe(self, probe: ProbeGpu) -> None:
        """Have a fresh process observe one GPU, and tell what it saw, or why it saw nothing."""
        found = why_gpu_is_not_queried(self._state, self._processes, probe.gpu) or await self._ask(probe)
        if isinstance(found, Fault):
            found = ProbeFinished(requested_at=probe.requested_at, gpu=Gpu(index=-1, uuid=probe.gpu, faults=(found,)))
        self._state.tell(found)

    async def _ask(self, probe: ProbeGpu) -> ProbeFinished | Fault:
        """What a fresh process sees of a GPU; the fault where that process fails."""
        gpu, skipped = self._state.gpu(probe.gpu), self._state.skipped()
        if gpu is not None:
            skipped = tuple(each for each in skipped if not each.matches(gpu.index, gpu.pci))
        try:
            process = self._processes.start(skipped, probe)
        except OSError as error:
            return start_fault(error)
        try:
            async with aclosing(self._processes.messages(process)) as messages:
                async for message in messages:
                    if isinstance(message, ProbeFinished):
                        if message.gpu.index >= 0 and self._state.answers(message.gpu):
                            self._observer.send(SkipGpus(self._state.skipped()))
                        return message
        finally:
            await self._processes.end(process)
        return RELEASED_FAULT if process.dismissed else process.fault()
