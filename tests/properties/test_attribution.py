"""Attribution under random histories: every figure belongs to whom it says, and none is told twice."""

from collections.abc import Callable, Mapping
from typing import Any

import hypothesis.strategies as st
from hypothesis import given, settings
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from gpuplane.base.metrics import Labels
from gpuplane.kubernetes.podref import ContainerId, PodRef
from gpuplane.node.agent.statuspages import StatusPages
from gpuplane.node.core.advertising import offer
from gpuplane.node.core.step import step
from gpuplane.node.core.telemetry.agentmetrics import metrics
from gpuplane.node.core.telemetry.cgroups import container_of
from gpuplane.node.core.telemetry.deviceseries import device_metrics
from gpuplane.node.core.telemetry.state import TelemetryState, next_state
from gpuplane.node.model.config import MemorySharedResource, ReplicatedResource, Settings, Sharing
from gpuplane.node.model.facts import AllocationsListed, ConfigLoaded, MachineObserved
from gpuplane.node.model.machine import Gpu, Machine, Mig, MigDevice
from gpuplane.node.model.snapshot import Allocation, Snapshot
from gpuplane.node.model.telemetry import GpuSample, MigDeviceSample, ProcessSample, Sample
from tests.lengths import length

Draw = Callable[[st.SearchStrategy[Any]], Any]
OPENMETRICS = "application/openmetrics-text"
GPU = "nvidia.com/gpu"
MIB = 1 << 20
MODES: Mapping[str, Sharing] = {
    "exclusive": Sharing(),
    "time-slicing": Sharing(replicated_resources=(ReplicatedResource(name=GPU, replicas=3),)),
    "mps": Sharing(replicated_resources=(ReplicatedResource(name=GPU, replicas=3),), strategy="mps"),
    "memory": Sharing(memory_resources=(MemorySharedResource(name=GPU, rename="nvidia.com/gpu.mem", share_mib=20480),)),
}


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """Up to three GPUs, some of them in MIG mode with up to two GPU instances of up to two compute instances."""
    gpus = []
    for index in range(draw(st.integers(1, 3))):
        mig = None
        if draw(st.booleans()):
            devices, slot = [], 0
            for instance in range(draw(st.integers(0, 2))):
                for part in range(draw(st.integers(1, 2))):
                    uuid = f"MIG-{index}-{instance}-{part}"
                    devices.append(
                        MigDevice(
                            uuid=uuid,
                            profile="1c.2g.20gb",
                            gpu_instance=instance + 3,
                            compute_instance=part,
                            mig_index=slot,
                            memory_mib=20480,
                        )
                    )
                    slot += 1
            mig = Mig(enabled=True, devices=tuple(devices))
        gpus.append(
            Gpu(index=index, uuid=f"GPU-{index}", model="A100", pci=f"0000:0{index}:00.0", memory_mib=81920, mig=mig)
        )
    return Machine(gpus=tuple(gpus))


class Node:
    """A node whose pods come and go, and what its processes use."""

    def __init__(self, machine: Machine, sharing: Sharing) -> None:
        self.machine, self.snapshot, self.state = machine, Snapshot(), TelemetryState()
        self.held: dict[tuple[str, str], PodRef] = {}  # (resource, id) → its holder
        self.processes: list[tuple[Gpu, int | None, PodRef | None, float, float]] = []
        self.clock = 0.0
        for fact in (ConfigLoaded(Settings(mig_strategy="mixed", sharing=sharing)), MachineObserved(machine)):
            self.snapshot = step(self.snapshot, fact, 1.0)
        self._list()

    def _list(self) -> None:
        by_holder: dict[tuple[PodRef, str], list[str]] = {}
        for (resource, id), holder in self.held.items():
            by_holder.setdefault((holder, resource), []).append(id)
        listed = tuple(
            Allocation(resource=resource, devices=tuple(sorted(ids)), holder=holder)
            for (holder, resource), ids in by_holder.items()
        )
        self.snapshot = step(self.snapshot, AllocationsListed(listed, self.clock), self.clock)

    def free_ids(self) -> list[tuple[str, str]]:
        """What kubelet could have given out at some time: (resource, id)."""
        offered = offer(self.snapshot).resources
        ids = [(resource.name, each.id) for resource in offered for each in resource.devices]
        return [each for each in ids if each not in self.held]

    def start(self, draw: Draw, number: int) -> None:
        """A pod comes, holds one id, and perhaps computes there."""
        if free := self.free_ids():
            resource, id = draw(st.sampled_from(free))
            holder = PodRef(namespace="team", name=f"pod-{number}", container="main")
            if draw(st.integers(0, 5)) == 0:  # as kubelet's checkpoint names it
                holder = PodRef(uid=f"uid-{number}", container="main")
            self.held[resource, id] = holder
            unit = id.split("::")[0]
            for gpu in self.machine.gpus or ():
                for mig in gpu.mig_devices:
                    if mig.uuid == unit and draw(st.booleans()):
                        self._compute(draw, gpu, mig.gpu_instance, holder)
                if gpu.uuid == unit and draw(st.booleans()):
                    self._compute(draw, gpu, None, holder)

    def _compute(self, draw: Draw, gpu: Gpu, instance: int | None, holder: PodRef | None) -> None:
        memory, time = draw(st.integers(1, 4000)), draw(st.integers(0, 30))
        self.processes.append((gpu, instance, holder, float(memory), float(time)))

    def compute_outside(self, draw: Draw) -> None:
        """A process of the host's, or of a pod that no record names."""
        gpu = draw(st.sampled_from(self.machine.gpus or ()))
        instances = [each.gpu_instance for each in gpu.mig_devices]
        self._compute(draw, gpu, draw(st.sampled_from(instances)) if instances else None, None)

    def end(self, holder: PodRef) -> None:
        """A pod goes, with its processes."""
        self.held = {key: each for key, each in self.held.items() if each != holder}
        self.processes = [each for each in self.processes if each[2] != holder]

    def sample(self) -> None:
        """Kubelet lists, and the hardware is sampled."""
        self.clock += 1.0
        self._list()
        names: dict[ContainerId, PodRef] = {}
        samples = []
        for gpu in self.machine.gpus or ():
            processes = []
            for n, (on, instance, holder, memory, time) in enumerate(self.processes):
                if on.uuid == gpu.uuid:
                    uid, id = f"{n:08x}-0000-4000-8000-000000000000", f"{n:064x}"
                    path = f"/kubepods/burstable/pod{uid}/{id}" if holder is not None or n % 2 else "/system.slice/x"
                    if holder is not None and (container := container_of([path])) is not None:
                        names[container] = holder
                    processes.append(
                        ProcessSample(
                            pid=n + 1,
                            started=1,
                            cgroups=(path,),
                            memory_mib=memory,
                            sm_percent=None if gpu.mig_enabled else time,
                            gpu_instance=instance,
                        )
                    )
            samples.append(self._gpu_sample(gpu, tuple(processes)))
        sample = Sample(taken_at=self.clock, gpus=tuple(samples))
        self.state = next_state(self.state, self.snapshot, sample, names, self.clock)

    def _gpu_sample(self, gpu: Gpu, processes: tuple[ProcessSample, ...]) -> GpuSample:
        parts = tuple(
            MigDeviceSample(each.uuid, {"DCGM_FI_DEV_FB_USED": self.used(gpu, each.gpu_instance)})
            for each in gpu.mig_devices
        )
        readings = {"DCGM_FI_DEV_FB_USED": self.used(gpu, None), "DCGM_FI_DEV_GPU_TEMP": 40.0}
        return GpuSample(uuid=gpu.uuid, readings=readings, mig_devices=parts, processes=processes)

    def used(self, gpu: Gpu, instance: int | None) -> float:
        """MiB that a GPU or an instance tells as used: those of its processes, and 100 of the driver's own."""
        own = [each for each in self.processes if each[0].uuid == gpu.uuid and instance in (None, each[1])]
        return 100.0 + sum(each[3] for each in own)

    def series(self, name: str) -> list[tuple[Labels, float]]:
        """The series of a metric."""
        found = [each for each in device_metrics(self.snapshot, self.state, "n1") if each.name == name]
        return [series for metric in found for series in metric.series]

    def check(self, gone: set[str]) -> None:
        """All that has to hold of what is shown now."""
        holders: dict[tuple[str, str], set[PodRef]] = {}
        for (_, id), holder in self.held.items():
            unit = id.split("::")[0]
            for gpu in self.machine.gpus or ():
                for key in [(gpu.uuid, "")] if gpu.uuid == unit else []:
                    holders.setdefault(key, set()).add(holder)
                for mig in gpu.mig_devices:
                    if mig.uuid == unit:
                        holders.setdefault((gpu.uuid, str(mig.gpu_instance)), set()).add(holder)
        for metric in device_metrics(self.snapshot, self.state, "n1"):
            assert len({labels.text for labels, _ in metric.series}) == len(metric.series), "Prometheus refuses twins"
            for labels, _ in metric.series:
                assert labels.get("pod", "") not in gone, metric.name
                if metric.name.startswith(("DCGM_", "gpuplane_held", "gpuplane_device_info")):
                    own = holders.get((labels["UUID"], labels.get("GPU_I_ID", "")), set())
                    assert labels.get("pod", "") == (next(iter(own)).name if len(own) == 1 else "")
                    assert labels.get("shared") == ("true" if len(own) > 1 else None)
        allocated = {(labels["UUID"], labels.get("GPU_I_ID", ""), labels.get("pod", "")) for labels, _ in self.series(
            "gpuplane_allocation_info"
        )}  # fmt: skip
        assert allocated == {(*key, each.name) for key, pods in holders.items() for each in pods}
        self._check_memory()

    def _check_memory(self) -> None:
        by_device: dict[tuple[str, str], float] = {}
        for name in ("gpuplane_container_memory_used_bytes", "gpuplane_unattributed_memory_used_bytes"):
            for labels, value in self.series(name):
                key = labels["UUID"], labels.get("GPU_I_ID", "")
                by_device[key] = by_device.get(key, 0.0) + value
        told = {
            (labels["UUID"], labels.get("GPU_I_ID", "")): value for labels, value in self.series("DCGM_FI_DEV_FB_USED")
        }
        for key, value in told.items():
            assert round(by_device[key] / MIB, 3) == value
        own = {
            (labels["UUID"], labels.get("GPU_I_ID", ""), labels["pod"]): value / MIB
            for labels, value in self.series("gpuplane_container_memory_used_bytes")
        }
        expected: dict[tuple[str, str, str], float] = {}
        for gpu, instance, holder, memory, _ in self.processes:
            if holder is not None and holder.name:
                at = gpu.uuid, "" if instance is None else str(instance), holder.name
                expected[at] = expected.get(at, 0.0) + memory
        assert own == expected


@given(machines(), st.sampled_from(sorted(MODES)), st.data())
@settings(max_examples=length(100, 1_500))
def test_each_series_is_of_whom_it_says(machine: Machine, mode: str, data: st.DataObject) -> None:
    """Pods come and go under every way of sharing. The sums are the device's, and nothing is left of who went."""
    node, gone = Node(machine, MODES[mode]), set[str]()
    for number in range(data.draw(st.integers(1, 8))):
        what = data.draw(st.sampled_from(("start", "start", "outside", "end")))
        if what == "start":
            node.start(data.draw, number)
        elif what == "outside":
            node.compute_outside(data.draw)
        elif node.held:
            holder = data.draw(st.sampled_from(sorted(set(node.held.values()), key=str)))
            node.end(holder)
            gone |= {holder.name} - {""}
        node.sample()
        node.check(gone)
    check_page(node)


def check_page(node: Node) -> None:
    """The whole page has the series that it is made of, and no others, for prometheus_client's parsers."""
    shown = (*metrics(node.snapshot), *device_metrics(node.snapshot, node.state, "n1"))
    expected = sorted(
        (each.name, sorted(labels.items()), float(value)) for each in shown for labels, value in each.series
    )
    pages = StatusPages("n1")
    pages.show(node.snapshot, node.state)
    text, open_metrics = (pages.page("/metrics", accept).body.decode() for accept in ("", OPENMETRICS))
    families: list[Any] = list(parse_openmetrics(open_metrics))  # type: ignore[no-untyped-call]
    for found in (list(parse_text(text)), families):
        told = sorted(
            (each.name, sorted(each.labels.items()), float(each.value))
            for family in found
            for each in family.samples
            if not each.name.startswith(("process_", "gpuplane_build_info"))
        )
        assert told == expected
