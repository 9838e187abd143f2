"""What the parts of this source share: what is known of the GPUs, which of them are skipped, and what is told of it."""

import asyncio
import time
from collections.abc import Iterable

from gpuplane.base.text import Text
from gpuplane.node.core.observation import replace_gpu_of_same_uuid
from gpuplane.node.hardware.nvidia.driver.channel import SkippedGpu
from gpuplane.node.hardware.nvidia.gpubackoff import GpuBackoffs, back_off, end_back_off, skipped_gpus
from gpuplane.node.model.facts import Fact, MachineObserved, StatusChanged
from gpuplane.node.model.machine import Fault, Gpu, Machine
from gpuplane.node.model.status import DRIVER_PART, DriverStatus

BACK_OFF_FAULTS = ("gpu-hang", "gpu-crash")
"""Codes of the faults because of which GPUs are skipped."""

RELEASED_FAULT = Fault(code="not-looked", message="the driver is released")


class DriverState:
    """`machine`: the last observation, which stays in force while the driver does not answer. `is_wanted`: the driver
    is not released. `reset_text`: why no process may use it, while a GPU is reset. `resting_until`: no process that
    observes is started before. `changed` is set when one of these is another."""

    def __init__(self, retry: tuple[float, float]) -> None:
        """`retry`: seconds for which a GPU is skipped, at first and at most."""
        self.machine = Machine()
        self.is_wanted, self.resting_until = True, 0.0
        self.reset_text: Text = ""
        self.changed = asyncio.Event()
        self.told = asyncio.Queue[Fact | asyncio.Task[None]]()
        self._retry = retry
        self._backoffs: GpuBackoffs = ()

    def tell(self, fact: Fact) -> None:
        """This is a fact of this source."""
        self.told.put_nowait(fact)

    def tell_failed(self, fault: Fault) -> None:
        """The driver as a whole fails: the last observation stays, for as long as the fault catalogue allows it."""
        self.tell(MachineObserved(self.machine.but(gpus=None, faults=(fault,))))
        self.tell(StatusChanged(DRIVER_PART, DriverStatus("failing", fault.message, fault.code)))

    def use_again(self) -> None:
        """The driver is wanted again after it was released. No GPU is skipped: it may have been reset."""
        self.is_wanted, self._backoffs = True, ()
        self.start_now()

    def start_now(self) -> None:
        """A process that observes may be started at once."""
        self.resting_until = 0.0
        self.changed.set()

    def gpu(self, uuid: str) -> Gpu | None:
        """A GPU as it was last observed."""
        return self.machine.gpu(uuid)

    def skipped(self) -> tuple[SkippedGpu, ...]:
        """The GPUs of which nothing is asked now."""
        return skipped_gpus(self._backoffs, time.monotonic())

    def back_off(self, index: int, fault: Fault) -> None:
        """Skip a GPU for a while, and say so at once: its next process may take its time."""
        gpus = self.machine.gpus or ()
        pci = next((gpu.pci for gpu in gpus if gpu.index == index), "")
        skipped = SkippedGpu(index=index, pci=pci, fault=fault)
        self._backoffs = back_off(self._backoffs, skipped, time.monotonic(), *self._retry)
        if gpus:
            shown = tuple(gpu.but(faults=(fault,)) if gpu.index == index else gpu for gpu in gpus)
            self.tell(MachineObserved(self.machine.but(gpus=shown)))

    def end_back_off(self, gpu: Gpu) -> None:
        """Skip a GPU no more."""
        self._backoffs = end_back_off(self._backoffs, gpu, time.monotonic())

    def answers(self, gpu: Gpu) -> bool:
        """A fresh process has observed a GPU: it is skipped no more. Whether it was."""
        was_skipped = any(each.matches(gpu.index, gpu.pci) for each in self.skipped())
        if was_skipped:
            self.end_back_off(gpu)
            self.machine = replace_gpu_of_same_uuid(self.machine, gpu) or self.machine
        return was_skipped

    def is_outdated(self, gpus: Iterable[Gpu]) -> bool:
        """Whether an observation still shows a GPU skipped that is not any more. The next one will not."""
        skipped = self.skipped()
        return any(
            fault.code in BACK_OFF_FAULTS and not any(each.matches(gpu.index, gpu.pci) for each in skipped)
            for gpu in gpus
            for fault in gpu.faults
        )
