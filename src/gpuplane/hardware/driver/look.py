"""One look at the machine.

Each GPU is asked about on its own: what fails, or cannot be understood, is a fault of that GPU, and the look goes on.
What cannot change about a GPU is asked once for each UUID; its memory and its MIG mode are asked every time, and show
whether it still answers.
"""

import time
from collections.abc import Sequence

from gpuplane.hardware.driver.channel import Skipped
from gpuplane.hardware.driver.errors import gather
from gpuplane.hardware.driver.events import Events
from gpuplane.hardware.driver.fabric import Fabric, address
from gpuplane.hardware.driver.files import Files
from gpuplane.hardware.driver.mig import MIB, Partitions
from gpuplane.hardware.driver.nvml import Nvml, Subject
from gpuplane.model.machine import Driver, Fault, Gpu, Machine

DISPLAYS = ("DGX Display", "NVIDIA DGX Display")  # a DGX Station's own; it can run nothing


class Looker:
    """Looks at the machine, and remembers of it what cannot change."""

    def __init__(self, nvml: Nvml, files: Files, driver: Driver) -> None:
        self._nvml, self._files, self._driver = nvml, files, driver
        self._identities: dict[str, Gpu] = {}
        self._partitions, self._fabric, self.events = Partitions(files), Fabric(), Events(nvml)
        self._switches = files.switches()

    def look(self, skipped: Sequence[Skipped]) -> Machine:
        """The whole machine now. Raises Failed where not even the GPUs can be counted."""
        subjects = self._subjects(skipped)
        seen = [subject for subject in subjects if subject.handle and subject.gpu.model not in DISPLAYS]
        self._fabric.look(seen, self._switches, time.monotonic())
        for subject in seen:
            subject.contain(self.events.register)
        return Machine(
            driver=self._driver,
            gpus=tuple(map(self._whole, (each for each in subjects if each.gpu.model not in DISPLAYS))),
            switches=self._switches,
            nodes=self._files.control_nodes(),
        )

    def _subjects(self, skipped: Sequence[Skipped]) -> list[Subject]:
        """Every GPU, as far as it can be known without the others."""
        count = self._nvml.call("nvmlDeviceGetCount")
        addresses = self._files.gpus()
        if len(addresses) != count:  # some of them are not NVML's: no telling which index has which address
            addresses = ("",) * count
        subjects = []
        for index, pci in enumerate(addresses):
            subject = Subject(self._nvml, Gpu(index=index, pci=pci))
            charges = [each.fault for each in skipped if _means(each, index, pci)]
            if charges:
                subject.faults = charges
            else:
                subject.contain(self._see)
            if not subject.gpu.uuid:
                subject.handle, subject.gpu = None, self._files.gpu(index, pci)
            subjects.append(subject)
        return subjects

    def _see(self, subject: Subject) -> None:
        handle = subject.ask(None, "nvmlDeviceGetHandleByIndex", subject.gpu.index)
        uuid = handle and subject.ask("", "nvmlDeviceGetUUID", handle)
        if not uuid:
            return
        subject.handle = handle
        subject.gpu = self._identity(subject, uuid)
        memory = subject.ask(None, "nvmlDeviceGetMemoryInfo", handle)  # not supported on GB10
        total = memory.total if memory is not None else 0
        subject.gpu = subject.gpu.but(memory_mib=total // MIB)
        subject.gpu = subject.gpu.but(mig=self._partitions.look(subject, total))

    def _identity(self, subject: Subject, uuid: str) -> Gpu:
        """What cannot change about a GPU. It is asked again for as long as a part of it fails."""
        known = self._identities.get(uuid)
        if known is not None:
            return known.but(index=subject.gpu.index)
        handle, pci = subject.handle, subject.gpu.pci
        name = subject.ask("", "nvmlDeviceGetName", handle)
        minor = subject.ask(None, "nvmlDeviceGetMinorNumber", handle)
        capability = subject.ask((), "nvmlDeviceGetCudaComputeCapability", handle)
        place = subject.ask(None, "nvmlDeviceGetPciInfo", handle)
        pci = address(place) if place is not None else pci
        gpu = Gpu(
            index=subject.gpu.index,
            uuid=uuid,
            minor=minor,
            model=name,
            compute_capability=".".join(map(str, capability)),
            pci=pci,
            numa=self._files.numa(pci),
            nodes=() if minor is None else (f"/dev/nvidia{minor}",),
        )
        if not subject.faults:
            self._identities[uuid] = gpu
        return gpu

    def _whole(self, subject: Subject) -> Gpu:
        missing = [
            Fault(code="node-missing", message=f"{node} does not exist")
            for node in subject.gpu.nodes
            if not self._files.exists(node)
        ]
        return subject.gpu.but(faults=gather((*subject.faults, *missing)))


def _means(skipped: Skipped, index: int, pci: str) -> bool:
    return skipped.pci == pci if skipped.pci and pci else skipped.index == index
