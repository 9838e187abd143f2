"""One look at the machine.

Each GPU is asked about on its own: what fails, or cannot be understood, is a fault of that GPU, and the look goes on.
What cannot change about a GPU is asked once for each UUID; its memory and its MIG mode are asked every time, and show
whether it still answers. Every fifth look is a thorough one, which also asks what changes seldom or costs many calls.
"""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from gpuplane.node.hardware.nvidia.driver.channel import SkippedGpu
from gpuplane.node.hardware.nvidia.driver.computeprocesses import compute_process_ids
from gpuplane.node.hardware.nvidia.driver.devicenodes import nodes_of_gpus
from gpuplane.node.hardware.nvidia.driver.driverfiles import DriverFilesSearch
from gpuplane.node.hardware.nvidia.driver.errors import distinct_faults
from gpuplane.node.hardware.nvidia.driver.events import EventSet
from gpuplane.node.hardware.nvidia.driver.gpuhealth import GpuHealth
from gpuplane.node.hardware.nvidia.driver.kernelfiles import KernelFiles
from gpuplane.node.hardware.nvidia.driver.mig import MIB, MigObserver
from gpuplane.node.hardware.nvidia.driver.nvml import Nvml, Subject
from gpuplane.node.hardware.nvidia.driver.topology import Topology, sysfs_address
from gpuplane.node.model.machine import DeviceNodeStat, Driver, Fault, Gpu, Machine

DISPLAY_ONLY_MODELS = ("DGX Display", "NVIDIA DGX Display")  # a DGX Station's own; it can run nothing
THOROUGH_OBSERVATION_INTERVAL = 5  # looks, of which one is thorough
GPU_MISSING_FAULT = Fault(code="gpu-missing", message="the kernel's driver lists it, but NVML does not")


class Observer:
    """Looks at the machine, and remembers of it what cannot change."""

    def __init__(self, nvml: Nvml, files: KernelFiles, driver: Driver, installed: DriverFilesSearch) -> None:
        self._nvml, self._files, self._driver, self._driver_files = nvml, files, driver, installed
        self._identities: dict[str, Gpu] = {}
        self._addresses: dict[int, str] = {}  # of an index; NVML numbers GPUs once, at its start
        self._mig, self._topology, self._health = MigObserver(files), Topology(), GpuHealth()
        self.events = EventSet(nvml)
        self._switches, self._product, self._vgpu = files.switches(), files.product(), files.vgpu()
        self._dri: dict[str, tuple[str, ...]] = {}  # PCI address → DRM nodes
        self._own: tuple[str, ...] = ()  # nodes of GPUs and of their parts; these and the others as they were last seen
        self._nodes: tuple[str, ...] = ()
        self._numbers: Mapping[str, DeviceNodeStat] = {}
        self._left: Mapping[str, str] = {}
        self._unlisted: Mapping[str, str] = {}
        self._looks = 0
        self.subjects: Sequence[Subject] = ()
        """The GPUs of the last look, as far as they have handles with these."""

    def observe(self, skipped: Sequence[SkippedGpu]) -> Machine:
        """The whole machine now. Raises CallFailed where not even the GPUs can be counted."""
        thorough = self._looks % THOROUGH_OBSERVATION_INTERVAL == 0
        self._looks += 1
        subjects = [self._subject(place, skipped, thorough) for place in self._places()]
        missing = tuple(self._missing(subjects))
        hidden = {subject.gpu.pci for subject in subjects if subject.gpu.model in DISPLAY_ONLY_MODELS}
        subjects = self.subjects = [subject for subject in subjects if subject.gpu.model not in DISPLAY_ONLY_MODELS]
        seen = [subject for subject in subjects if subject.handle]
        self._judge(seen, thorough=thorough)
        if thorough:
            found, why = self._driver_files.search(self._driver.version)
            self._driver = self._driver.but(files=found, files_error=why)
            self._left = {**self._driver_files.left, **self._files.nodes.left()}
            listed = {subject.gpu.pci for subject in subjects}
            self._unlisted = {} if "" in listed else self._files.unlisted(listed | hidden)
        for subject in seen:
            subject.contain(self.events.register)
        there = self._files.nodes.there(node for subject in subjects for node in subject.gpu.device_nodes)
        gpus = (*(self._whole(subject, there, thorough) for subject in subjects), *missing)
        own = tuple(nodes_of_gpus(gpus))
        if thorough or own != self._own:
            self._own, self._nodes = own, self._files.nodes.shared()
            self._numbers = self._files.nodes.numbers((*self._nodes, *own), self._files.majors())
        return Machine(
            driver=self._driver,
            gpus=gpus,
            switches=self._switches,
            shared_nodes=self._nodes,
            device_node_stats=self._numbers,
            insecure_files=self._left,
            product=self._product,
            vgpu=self._vgpu,
            unlisted=self._unlisted,
        )

    def active_links(self, uuid: str) -> tuple[int, ...]:
        """The numbers of a GPU's active NVLinks."""
        return self._topology.active(uuid)

    def mig_handles(self, uuid: str) -> Mapping[str, Any]:
        """UUID of each MIG device of a GPU → NVML's handle of it, as of the last look."""
        return self._mig.found.get(uuid, {})

    def forget_instances(self, uuid: str) -> None:
        """Have the instances of a GPU asked for at the next look: they were changed."""
        self._mig.forget_instances(uuid)

    def probe(self, uuid: str, skipped: Sequence[SkippedGpu]) -> tuple[Gpu, tuple[int, ...]]:
        """One GPU now, thoroughly, and the processes that compute on it. Its distances to the others are not told.

        The others are asked who they are only where the kernel's files do not tell which one it is.
        """
        places = self._places()
        told = [self._files.gpu(place.index, place.pci).uuid for place in places]
        wanted = uuid if uuid in told else ""
        for place in (place for place, name in zip(places, told, strict=True) if name == wanted):
            subject = self._subject(place, skipped, thorough=True)
            if subject.gpu.uuid == uuid:
                break
        else:
            fault = Fault(code="gpu-missing", message="the driver lists no such GPU")
            return Gpu(index=-1, uuid=uuid, faults=(fault,)), ()
        pids: tuple[int, ...] = ()
        if subject.handle:
            self._judge([subject], thorough=True)
            pids = compute_process_ids(subject, (subject.handle, *self._mig.handles(subject)))
        return self._whole(subject, self._files.nodes.there(subject.gpu.device_nodes), thorough=True), pids

    def _judge(self, seen: Sequence[Subject], *, thorough: bool) -> None:
        """How the GPUs are joined, and how they do."""
        now = time.monotonic()
        self._topology.observe(seen, self._switches, now, thorough=thorough)
        for subject in seen:
            subject.contain(
                lambda each: self._health.observe(each, self._topology.active(each.gpu.uuid), now, thorough)
            )

    def _places(self) -> list[Gpu]:
        """The GPUs that NVML counts, by index and, where that is known, by address.

        Where the kernel's files have others, there is no telling which index has which address, but from earlier looks.
        """
        count = self._nvml.call("nvmlDeviceGetCount")
        addresses = self._files.gpus()
        if len(addresses) != count:
            addresses = tuple(self._addresses.get(index, "") for index in range(count))
        return [Gpu(index=index, pci=pci) for index, pci in enumerate(addresses)]

    def _subject(self, place: Gpu, skipped: Sequence[SkippedGpu], thorough: bool) -> Subject:
        """One GPU, as far as it can be known without the others."""
        subject = Subject(self._nvml, place)
        skips = [each for each in skipped if each.matches(place.index, place.pci)]
        if skips:
            subject.faults = [each.fault for each in skips]
            place = place.but(pci=place.pci or skips[0].pci)
        else:
            subject.contain(lambda each: self._see(each, thorough))
        if not subject.gpu.uuid:
            subject.handle, subject.gpu = None, self._files.gpu(place.index, place.pci)
        return subject

    def _missing(self, subjects: Sequence[Subject]) -> Iterator[Gpu]:
        """The GPUs that the kernel driver has, and NVML does not count.

        They are known by what the counted ones are not, so all of those have to be known. One that has no device node
        here is none of ours: a container that was given some GPUs sees the others in /proc too.
        """
        counted = {subject.gpu.pci for subject in subjects}
        if "" in counted:
            return
        index = max((subject.gpu.index for subject in subjects), default=-1)
        for pci in self._files.gpus():
            if pci not in counted and not self._files.excluded(pci):
                gpu = self._files.gpu(index + 1, pci)
                if gpu.device_nodes and all(map(self._files.nodes.exists, gpu.device_nodes)):
                    index += 1
                    yield gpu.but(faults=(GPU_MISSING_FAULT,))

    def _see(self, subject: Subject, thorough: bool) -> None:
        handle = subject.ask(None, "nvmlDeviceGetHandleByIndex", subject.gpu.index)
        uuid = handle and subject.ask("", "nvmlDeviceGetUUID", handle)
        if not uuid:
            return
        subject.handle = handle
        subject.gpu = self._identity(subject, uuid)
        memory = subject.ask(None, "nvmlDeviceGetMemoryInfo", handle)  # not supported on GB10
        total = memory.total if memory is not None else 0
        subject.gpu = subject.gpu.but(memory_mib=total // MIB)
        subject.gpu = subject.gpu.but(mig=self._mig.observe(subject, total, thorough))

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
        pci = sysfs_address(place) if place is not None else pci
        self._addresses[subject.gpu.index] = pci
        gpu = Gpu(
            index=subject.gpu.index,
            uuid=uuid,
            minor=minor,
            model=name,
            compute_capability=".".join(map(str, capability)),
            pci=pci,
            pci_class=self._files.pci_class(pci),
            pcie_root=self._files.pcie_root(pci),
            pci_id=_one_number(place, "pciDeviceId"),
            pci_subsystem=_one_number(place, "pciSubSystemId"),
            numa=self._files.numa(pci),
            device_nodes=() if minor is None else (f"/dev/nvidia{minor}",),
        )
        if not subject.faults:
            self._identities[uuid] = gpu
        return gpu

    def _whole(self, subject: Subject, there: Collection[str], thorough: bool) -> Gpu:
        """A GPU with its faults. `there`: the nodes that exist."""
        missing = [
            Fault(code="node-missing", message=f"{node} {self._files.nodes.absence(node)}")
            for node in subject.gpu.device_nodes
            if node not in there
        ]
        pci = subject.gpu.pci
        if thorough or pci not in self._dri:
            self._dri[pci] = self._files.dri(pci)
        return subject.gpu.but(dri=self._dri[pci], faults=distinct_faults((*subject.faults, *missing)))


def _one_number(place: Any, field: str) -> str:
    """A device and its vendor as NVML tells them: "0x233010DE"; "" where it does not."""
    number = getattr(place, field, 0)
    return f"0x{number:08X}" if number else ""
