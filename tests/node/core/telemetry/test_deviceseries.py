"""What is shown of GPUs: each figure once, with the pod that it belongs to, and none of a pod that left."""

import pytest

from gpuplane.base.metrics import Labels
from gpuplane.kubernetes.podref import ContainerId, PodRef
from gpuplane.node.core.config.resolve import resolve_settings
from gpuplane.node.core.step import step
from gpuplane.node.core.telemetry.deviceseries import device_metrics
from gpuplane.node.core.telemetry.sampling import sampling_request
from gpuplane.node.core.telemetry.state import TelemetryState, next_state
from gpuplane.node.model.config import MetricsSettings, ReplicatedResource, Settings, Sharing
from gpuplane.node.model.facts import (
    AllocationsListed,
    ConfigLoaded,
    CountersLoaded,
    DrainRequested,
    Fact,
    FaultOccurred,
    MachineObserved,
    StatusChanged,
)
from gpuplane.node.model.health import Drain
from gpuplane.node.model.machine import Driver, Fault, Gpu, Machine, Mig, MigDevice
from gpuplane.node.model.snapshot import Allocation, Snapshot
from gpuplane.node.model.status import KUBELET_LOCK_PART, TurnStatus
from gpuplane.node.model.telemetry import DcgmCounter, GpuSample, MigDeviceSample, ProcessSample, Sample
from tests.node.core.health.world import World, machine

WHOLE = Gpu(index=0, uuid="GPU-a", model="NVIDIA H100 80GB HBM3", pci="0000:1b:00.0", memory_mib=81559)
SPLIT = Gpu(
    index=1,
    uuid="GPU-b",
    model="NVIDIA H100 80GB HBM3",
    pci="0000:43:00.0",
    mig=Mig(
        enabled=True,
        devices=(
            MigDevice(uuid="MIG-1", profile="1g.10gb", gpu_instance=7),
            MigDevice(uuid="MIG-2", profile="1c.3g.40gb", gpu_instance=2, mig_index=1),
            MigDevice(uuid="MIG-3", profile="1c.3g.40gb", gpu_instance=2, compute_instance=1, mig_index=2),
        ),
    ),
)
MACHINE = Machine(driver=Driver(version="570.172.08", cuda="12.8"), gpus=(WHOLE, SPLIT))
TRAIN, SERVE, OTHER = (PodRef(namespace="team", name=name, container="main") for name in ("train", "serve", "other"))


def cgroup(number: int) -> tuple[ContainerId, tuple[str, ...]]:
    """A container, and the paths of a process in it."""
    uid, container = f"0000000{number}-0000-0000-0000-000000000000", f"{number:064x}"
    return ContainerId(uid, container), (f"/kubepods/burstable/pod{uid}/{container}",)


def node(*facts: Fact, settings: Settings | None = None, allocations: tuple[Allocation, ...] = ()) -> Snapshot:
    """A node with one whole GPU and one in MIG mode, after these facts."""
    snapshot = Snapshot()
    seen = (
        ConfigLoaded(settings or Settings(mig_strategy="mixed")),
        MachineObserved(MACHINE),
        AllocationsListed(allocations, 1.0),
    )
    for fact in (*seen, *facts):
        snapshot = step(snapshot, fact, 10.0)
    return snapshot


def held(holder: PodRef, *ids: str, resource: str = "nvidia.com/gpu") -> Allocation:
    """Ids that a container holds."""
    return Allocation(resource=resource, devices=ids, holder=holder)


def sample(*gpus: GpuSample, at: float = 10.0) -> Sample:
    """A sample that was taken then."""
    return Sample(taken_at=at, gpus=gpus)


def after(snapshot: Snapshot, *samples: Sample, names: dict[ContainerId, PodRef] | None = None) -> TelemetryState:
    """The state after these samples."""
    state = TelemetryState()
    for each in samples:
        state = next_state(state, snapshot, each, names or {}, 1_700_000_000.0 + each.taken_at)
    return state


def series(snapshot: Snapshot, state: TelemetryState, name: str, *shown: str) -> dict[tuple[str, ...], float]:
    """The values of a metric by these labels."""
    found = [each for each in device_metrics(snapshot, state, "node-1") if each.name == name]
    return {
        tuple(labels.get(label, "") for label in shown): value for metric in found for labels, value in metric.series
    }


def labels_of(snapshot: Snapshot, state: TelemetryState, name: str) -> list[Labels]:
    """The labels of each series of a metric."""
    found = [each for each in device_metrics(snapshot, state, "node-1") if each.name == name]
    return [labels for metric in found for labels, _ in metric.series]


def test_a_series_names_its_device_as_dcgm_exporter_does() -> None:
    """All labels of its default format, and those of the only holder."""
    snapshot = node(allocations=(held(TRAIN, "GPU-a"),))
    state = after(snapshot, sample(GpuSample(uuid="GPU-a", readings={"DCGM_FI_DEV_GPU_UTIL": 93.0})))

    assert labels_of(snapshot, state, "DCGM_FI_DEV_GPU_UTIL") == [
        {
            "gpu": "0",
            "UUID": "GPU-a",
            "pci_bus_id": "00000000:1B:00.0",
            "device": "nvidia0",
            "modelName": "NVIDIA H100 80GB HBM3",
            "Hostname": "node-1",
            "DCGM_FI_DRIVER_VERSION": "570.172.08",
            "namespace": "team",
            "pod": "train",
            "container": "main",
        }
    ]


@pytest.mark.parametrize(
    ("written", "label", "other"),
    [("{}", "Hostname", "hostname"), ("{hostnameLabel: hostname}", "hostname", "Hostname")],
)
def test_the_label_of_the_node_has_the_name_of_either_release(written: str, label: str, other: str) -> None:
    """dcgm-exporter renamed it in 4.8.3 (its pull request 655). No series has both."""
    settings = resolve_settings(f"version: v1\nmetrics: {written}\n".encode(), "config.yaml", {}, {})
    snapshot = node(settings=settings)
    state = after(snapshot, sample(GpuSample(uuid="GPU-a", readings={"DCGM_FI_DEV_GPU_UTIL": 93.0})))

    for name in ("DCGM_FI_DEV_GPU_UTIL", "gpuplane_device_info"):
        assert {labels[label] for labels in labels_of(snapshot, state, name)} == {"node-1"}, name
    for metric in device_metrics(snapshot, state, "node-1"):
        assert not [labels for labels, _ in metric.series if other in labels], metric.name


def test_what_an_instance_tells_is_not_told_of_its_gpu_again() -> None:
    """A sum over all series is the machine's. The GPU keeps what is its own, such as its temperature."""
    snapshot = node(
        allocations=(
            held(TRAIN, "MIG-1", resource="nvidia.com/mig-1g.10gb"),
            held(SERVE, "MIG-2", resource="nvidia.com/mig-1c.3g.40gb"),
            held(OTHER, "MIG-3", resource="nvidia.com/mig-1c.3g.40gb"),
        )
    )
    split = GpuSample(
        uuid="GPU-b",
        readings={"DCGM_FI_DEV_FB_USED": 700.0, "DCGM_FI_DEV_GPU_TEMP": 40.0},
        mig_devices=(
            MigDeviceSample("MIG-1", {"DCGM_FI_DEV_FB_USED": 100.0}),
            MigDeviceSample("MIG-2", {"DCGM_FI_DEV_FB_USED": 600.0}),
            MigDeviceSample("MIG-3", {"DCGM_FI_DEV_FB_USED": 600.0}),
        ),
    )
    state = after(snapshot, sample(split))
    shown = ("UUID", "GPU_I_ID", "GPU_I_PROFILE", "pod", "shared")

    assert series(snapshot, state, "DCGM_FI_DEV_GPU_TEMP", *shown) == {("GPU-b", "", "", "", ""): 40.0}
    assert series(snapshot, state, "DCGM_FI_DEV_FB_USED", *shown) == {
        ("GPU-b", "7", "1g.10gb", "train", ""): 100.0,
        ("GPU-b", "2", "3g.40gb", "", "true"): 600.0,
    }
    assert series(snapshot, state, "gpuplane_allocation_info", "UUID", "GPU_I_ID", "pod", "shared") == {
        ("GPU-b", "7", "train", ""): 1.0,
        ("GPU-b", "2", "serve", "true"): 1.0,
        ("GPU-b", "2", "other", "true"): 1.0,
    }


def test_shares_of_a_gpu_are_told_by_process() -> None:
    """The device once, without a pod; each container what its processes use; and the rest."""
    sharing = Sharing(replicated_resources=(ReplicatedResource(name="nvidia.com/gpu", replicas=4),))
    (one, in_one), (two, in_two), (_, unknown) = cgroup(1), cgroup(2), cgroup(3)
    snapshot = node(
        settings=Settings(sharing=sharing, mig_strategy="mixed"),
        allocations=(held(TRAIN, "GPU-a::0", "GPU-a::3"), held(SERVE, "GPU-a::1")),
    )
    processes = (
        ProcessSample(pid=1, cgroups=in_one, memory_mib=1000.0, sm_percent=30.0),
        ProcessSample(pid=2, cgroups=in_one, memory_mib=500.0, sm_percent=10.0),
        ProcessSample(pid=3, cgroups=in_two, memory_mib=250.0, sm_percent=5.0),
        ProcessSample(pid=4, cgroups=unknown, memory_mib=50.0, sm_percent=1.0),
        ProcessSample(pid=5, cgroups=("/user.slice/session-1.scope",), memory_mib=50.0, sm_percent=2.0),
    )
    readings = {"DCGM_FI_DEV_FB_USED": 2000.0, "DCGM_FI_DEV_GPU_UTIL": 50.0}
    state = after(
        snapshot,
        sample(GpuSample(uuid="GPU-a", readings=readings, processes=processes)),
        names={one: TRAIN, two: SERVE},
    )
    mib = 1 << 20

    assert series(snapshot, state, "DCGM_FI_DEV_GPU_UTIL", "pod", "shared") == {("", "true"): 50.0}
    memory = series(snapshot, state, "gpuplane_container_memory_used_bytes", "pod", "container")
    rest = series(snapshot, state, "gpuplane_unattributed_memory_used_bytes", "UUID")
    assert memory == {("train", "main"): 1500.0 * mib, ("serve", "main"): 250.0 * mib}
    assert sum(memory.values()) + rest["GPU-a",] == 2000.0 * mib
    assert series(snapshot, state, "gpuplane_container_sm_utilization_ratio", "pod") == {
        ("train",): 0.4,
        ("serve",): 0.05,
    }
    assert series(snapshot, state, "gpuplane_unattributed_sm_utilization_ratio", "UUID") == {("GPU-a",): 0.03}


def test_without_sight_of_processes_nothing_is_told_of_containers() -> None:
    """Neither a figure nor a rest that would look like one."""
    snapshot = node(allocations=(held(TRAIN, "GPU-a"),))
    seen = sample(GpuSample(uuid="GPU-a", readings={"DCGM_FI_DEV_FB_USED": 2000.0})).but(processes_visible=False)
    names = {each.name for each in device_metrics(snapshot, after(snapshot, seen), "node-1") if each.series}

    assert not [name for name in names if name.startswith(("gpuplane_container_", "gpuplane_unattributed_"))]
    assert "DCGM_FI_DEV_FB_USED" in names


def test_a_lost_gpu_keeps_its_name_and_loses_its_readings() -> None:
    """The driver then tells neither its model nor its address."""
    snapshot = node(allocations=(held(TRAIN, "GPU-a"),))
    before = after(snapshot, sample(GpuSample(uuid="GPU-a", readings={"DCGM_FI_DEV_GPU_TEMP": 40.0})))
    lost = Gpu(index=0, uuid="GPU-a", faults=(Fault("gpu-lost", "gone"),))
    snapshot = step(snapshot, MachineObserved(MACHINE.but(gpus=(lost, SPLIT))), 11.0)
    state = next_state(before, snapshot, sample(GpuSample(uuid="GPU-a"), at=11.0), {}, 1_700_000_011.0)
    [info] = [labels for labels in labels_of(snapshot, state, "gpuplane_device_info") if labels["UUID"] == "GPU-a"]

    assert (info["modelName"], info["pci_bus_id"], info["pod"]) == (WHOLE.model, "00000000:1B:00.0", "train")
    assert not series(snapshot, state, "DCGM_FI_DEV_GPU_TEMP", "UUID")


def test_no_series_is_left_of_a_pod_that_ended() -> None:
    """Neither of the device, nor of what its processes used."""
    one, in_one = cgroup(1)
    process = ProcessSample(pid=1, cgroups=in_one, memory_mib=1000.0)
    snapshot = node(allocations=(held(TRAIN, "GPU-a"),))
    state = after(snapshot, sample(GpuSample(uuid="GPU-a", processes=(process,))), names={one: TRAIN})
    snapshot = step(snapshot, AllocationsListed((), 11.0), 11.0)
    state = next_state(state, snapshot, sample(GpuSample(uuid="GPU-a"), at=11.0), {}, 1_700_000_011.0)

    for metric in device_metrics(snapshot, state, "node-1"):
        assert all("pod" not in labels for labels, _ in metric.series), metric.name


def test_held_time_is_counted_and_idle_time_too() -> None:
    """From sample to sample, by holder. What did something is not idle; what tells nothing is no series."""
    snapshot = node(allocations=(held(TRAIN, "GPU-a"), held(SERVE, "MIG-1", resource="nvidia.com/mig-1g.10gb")))

    def at(time: float, utilization: float) -> Sample:
        return sample(GpuSample(uuid="GPU-a", readings={"DCGM_FI_DEV_GPU_UTIL": utilization}), at=time)

    state = after(snapshot, at(10.0, 50.0), at(11.0, 0.0), at(12.0, 0.0), at(15.0, 0.0))

    assert series(snapshot, state, "gpuplane_held_seconds_total", "UUID", "pod") == {
        ("GPU-a", "train"): 5.0,
        ("GPU-b", "serve"): 5.0,
    }
    assert series(snapshot, state, "gpuplane_held_idle_seconds_total", "UUID") == {("GPU-a",): 4.0}
    assert series(snapshot, state, "gpuplane_idle_duration_seconds", "UUID") == {("GPU-a",): 4.0}
    busy = next_state(state, snapshot, at(16.0, 1.0), {}, 0.0)
    assert series(snapshot, busy, "gpuplane_idle_duration_seconds", "UUID") == {("GPU-a",): 0.0}
    assert series(snapshot, busy, "gpuplane_held_idle_seconds_total", "UUID") == {("GPU-a",): 4.0}
    other = step(snapshot, AllocationsListed((held(OTHER, "GPU-a"),), 16.5), 16.5)
    state = next_state(busy, other, at(17.0, 0.0), {}, 0.0)
    assert series(other, state, "gpuplane_held_seconds_total", "pod") == {("other",): 0.0}
    late = next_state(state, other, at(5000.0, 0.0), {}, 0.0)
    assert series(other, late, "gpuplane_held_seconds_total", "pod") == {("other",): 0.0}, "nobody looked for so long"


def test_the_last_xid_is_told() -> None:
    """0 where there was none. XIDs of a MIG device are its GPU's."""
    snapshot = node(FaultOccurred(code="xid-13", gpu="GPU-a", message="", at=10.0))
    state = after(snapshot, sample())
    assert series(snapshot, state, "DCGM_FI_DEV_XID_ERRORS", "UUID") == {("GPU-a",): 13.0, ("GPU-b",): 0.0}
    snapshot = step(snapshot, FaultOccurred(code="xid-79", gpu="GPU-a", message="", at=11.0), 11.0)
    state = next_state(state, snapshot, sample(at=12.0), {}, 0.0)
    snapshot = step(snapshot, FaultOccurred(code="xid-13", gpu="GPU-a", message="", at=12.0), 12.0)
    assert series(snapshot, state, "DCGM_FI_DEV_XID_ERRORS", "UUID")["GPU-a",] == 79.0
    state = next_state(state, snapshot, sample(at=13.0), {}, 0.0)
    assert series(snapshot, state, "DCGM_FI_DEV_XID_ERRORS", "UUID")["GPU-a",] == 13.0


@pytest.mark.parametrize(("written", "then"), [("{}", 79.0), ("{clearXids: on}", 0.0)])
def test_the_last_xid_is_0_again_when_the_fault_has_ended(written: str, then: float) -> None:
    """By a switch. It has ended when the GPU had a reset and is healthy again, here also the note that came before."""
    world = World(machine(2), resolve_settings(f"version: v1\nmetrics: {written}\n".encode(), "config.yaml", {}, {}))
    state = next_state(TelemetryState(), world.snapshot, sample(at=world.now), {}, 0.0)

    def last_xids() -> dict[tuple[str, ...], float]:
        nonlocal state
        state = next_state(state, world.snapshot, sample(at=world.now), {}, 0.0)
        return series(world.snapshot, state, "DCGM_FI_DEV_XID_ERRORS", "UUID")

    world.happen(0, "xid-13", ago=1.0)
    assert last_xids() == {("GPU-0",): 13.0, ("GPU-1",): 0.0}
    world.happen(0, "xid-79")
    assert last_xids() == {("GPU-0",): 79.0, ("GPU-1",): 0.0}
    whole = world.machine
    world.machine = whole.but(gpus=(whole.gpus or ())[1:])
    world.look()
    world.machine = whole
    world.look()
    world.wait(60, answer=True)
    assert world.ill() == set()
    assert last_xids() == {("GPU-0",): then, ("GPU-1",): 0.0}


@pytest.mark.parametrize("clears", [False, True])
def test_an_xid_of_a_mig_device_is_its_gpus(clears: bool) -> None:
    """The newest of all, whichever device of the GPU had it."""
    settings = Settings(mig_strategy="mixed", metrics=MetricsSettings(clear_xids=clears))
    snapshot, state = node(settings=settings), TelemetryState()
    for at, code, instance in ((11.0, "xid-43", 7), (12.0, "xid-13", 2)):
        fact = FaultOccurred(code=code, gpu="GPU-b", message="", at=at, gpu_instance=instance)
        snapshot = step(snapshot, fact, at)
        state = next_state(state, snapshot, sample(at=at), {}, 0.0)
        told = series(snapshot, state, "DCGM_FI_DEV_XID_ERRORS", "UUID")
        assert told == {("GPU-a",): 0.0, ("GPU-b",): float(code.removeprefix("xid-"))}


def test_what_cannot_be_told_is_listed() -> None:
    """With NVML's name of the reason; and it is absent, never 0."""
    snapshot = node()
    state = after(snapshot, sample(GpuSample(uuid="GPU-a", missing={"DCGM_FI_DEV_MEMORY_TEMP": "NOT_SUPPORTED"})))

    assert series(snapshot, state, "gpuplane_reading_missing", "UUID", "field", "reason") == {
        ("GPU-a", "DCGM_FI_DEV_MEMORY_TEMP", "NOT_SUPPORTED"): 1.0
    }
    assert not series(snapshot, state, "DCGM_FI_DEV_MEMORY_TEMP", "UUID")


def test_dcgm_names_can_be_off_and_the_list_another() -> None:
    """Off while a dcgm-exporter shows them. A list of one's own decides names, kinds and labels."""
    readings = {"DCGM_FI_DEV_GPU_TEMP": 40.0, "DCGM_FI_DEV_FAN_SPEED": 30.0}
    told = sample(GpuSample(uuid="GPU-a", readings=readings, texts={"DCGM_FI_DEV_SERIAL": "1234"}))
    off = node(settings=Settings(metrics=MetricsSettings(dcgm_names=False)))
    names = {each.name for each in device_metrics(off, after(off, told), "node-1")}
    assert not [name for name in names if name.startswith("DCGM_")]
    assert "gpuplane_allocation_info" in names

    counters = (
        DcgmCounter("DCGM_FI_DEV_FAN_SPEED", "gauge", "Fan speed"),
        DcgmCounter("DCGM_FI_DEV_SERIAL", "label", "Serial"),
    )
    own = node(CountersLoaded(counters))
    shown = [each for each in device_metrics(own, after(own, told), "node-1") if each.name.startswith("DCGM_")]
    assert [each.name for each in shown] == ["DCGM_FI_DEV_FAN_SPEED"]
    assert shown[0].series[0][0]["DCGM_FI_DEV_SERIAL"] == "1234"
    assert "DCGM_FI_DRIVER_VERSION" not in shown[0].series[0][0]


def test_a_number_may_be_a_label_and_a_field_have_its_former_name() -> None:
    """As dcgm-exporter shows them; the last XID too."""
    readings = {"DCGM_FI_DEV_GPU_TEMP": 40.0, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 123456789.0}
    counters = (
        DcgmCounter("DCGM_FI_DEV_GPU_TEMP", "untyped", "Temperature", former_name="dcgm_gpu_temp"),
        DcgmCounter("DCGM_FI_DEV_XID_ERRORS", "gauge", "XID", former_name="dcgm_xid_errors"),
        DcgmCounter("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "label", "Energy"),
        DcgmCounter("DCGM_FI_DEV_GPU_TEMP", "label", "Temperature"),
        DcgmCounter("DCGM_FI_DEV_XID_ERRORS", "label", "XID"),
        DcgmCounter("DCGM_FI_DEV_FAN_SPEED", "label", "Fan speed"),
    )
    snapshot = node(CountersLoaded(counters), FaultOccurred(code="xid-13", gpu="GPU-a", message="", at=10.0))
    state = after(snapshot, sample(GpuSample("GPU-a", readings)))
    shown = [each for each in device_metrics(snapshot, state, "node-1") if each.name.lower().startswith("dcgm_")]

    assert [(each.name, each.kind) for each in shown] == [("dcgm_gpu_temp", "untyped"), ("dcgm_xid_errors", "gauge")]
    [(labels, value)] = shown[0].series
    assert value == 40.0
    assert {name: each for name, each in labels.items() if name.startswith("DCGM_")} == {
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": "123456789",
        "DCGM_FI_DEV_GPU_TEMP": "40",
        "DCGM_FI_DEV_XID_ERRORS": "13",
    }
    assert series(snapshot, state, "dcgm_xid_errors", "UUID") == {("GPU-a",): 13.0, ("GPU-b",): 0.0}
    assert {"DCGM_FI_DEV_FAN_SPEED", "DCGM_FI_DEV_GPU_TEMP"} <= {*sampling_request(snapshot, is_read=True).fields}


def test_nvlinks_are_told_one_by_one() -> None:
    """Bytes of each link; the GPU's sum is not beside them under one name."""
    snapshot = node()
    links = {0: {"DCGM_FI_DEV_NVLINK_TX_BYTES": 10.0}, 3: {"DCGM_FI_DEV_NVLINK_TX_BYTES": 20.0}}
    state = after(snapshot, sample(GpuSample(uuid="GPU-a", links=links)))

    assert series(snapshot, state, "gpuplane_nvlink_transmit_bytes_total", "UUID", "nvlink") == {
        ("GPU-a", "0"): 10.0,
        ("GPU-a", "3"): 20.0,
    }


def test_drains_and_what_the_driver_asks_for() -> None:
    """By device, for alerts."""
    sick = WHOLE.but(faults=(Fault("recovery-reset", "the driver asks for a reset of the GPU"),))
    snapshot = node(
        MachineObserved(MACHINE.but(gpus=(sick, SPLIT))), DrainRequested("GPU-b", Drain(reason="a fan is loud"))
    )

    nothing = TelemetryState()

    assert series(snapshot, nothing, "gpuplane_recovery_action", "device", "action") == {("GPU-a", "reset"): 1.0}
    assert ("GPU-b",) in series(snapshot, nothing, "gpuplane_drained", "device")


@pytest.mark.parametrize("turn", ["standby", "left"])
def test_an_agent_that_does_not_serve_shows_no_devices(turn: str) -> None:
    """The one that serves does: together they would count each GPU twice."""
    status = TurnStatus("waiting", "another agent serves", turn="standby" if turn == "standby" else "left")
    snapshot = node(StatusChanged(KUBELET_LOCK_PART, status), allocations=(held(TRAIN, "GPU-a"),))

    assert not list(device_metrics(snapshot, after(snapshot, sample(GpuSample(uuid="GPU-a"))), "node-1"))
