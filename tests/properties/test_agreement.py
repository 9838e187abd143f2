"""What kubelet is told, the Node's condition, readiness, `gpuplane inspect` and the metrics agree about one snapshot.

The snapshots are those of random histories: of devices and their faults (tests/node/core/health/histories.py), and of
all that can keep a device back: the driver's files, CDI specifications, MPS, the state directory, kubelet.
"""

import random
from collections.abc import Iterator, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import settings as of
from hypothesis import strategies as st

from gpuplane.kubernetes.contracts.nodeannotation import decode_node_gpus, encode_node_gpus
from gpuplane.kubernetes.podref import PodRef
from gpuplane.node.agent.statuspages import StatusPages
from gpuplane.node.core.advertising import offer
from gpuplane.node.core.availability import availability, device_health_with_availability
from gpuplane.node.core.containers.cdi.desiredspecs import desired_specs
from gpuplane.node.core.containers.cdi.specstatus import spec_fingerprints
from gpuplane.node.core.health.reasons import direct_health_reasons
from gpuplane.node.core.kinds.nvidia.units import list_units
from gpuplane.node.core.reports.inspection.report import build_inspection
from gpuplane.node.core.reports.nodeannotation import node_gpus
from gpuplane.node.core.reports.nodecondition import MAX_MESSAGE_CHARACTERS, node_condition
from gpuplane.node.core.reports.readiness import not_ready_reason
from gpuplane.node.core.shares import unit_of
from gpuplane.node.core.step import step
from gpuplane.node.core.telemetry.agentmetrics import metrics
from gpuplane.node.kubelet.plugin import _list_response
from gpuplane.node.model.config import (
    DraSettings,
    MemorySharedResource,
    NodeObjectRequests,
    ReplicatedResource,
    Settings,
    Sharing,
)
from gpuplane.node.model.control import AgentInfo, NodeState
from gpuplane.node.model.facts import (
    AllocationsListed,
    ClaimPrepareRequested,
    ClaimUnprepareRequested,
    ConfigLoaded,
    DevicesObserved,
    DrainRequested,
    DriverReleaseRequested,
    Fact,
    FaultOccurred,
    LedgerStored,
    MachineObserved,
    NodeRequestsChanged,
    StatusChanged,
)
from gpuplane.node.model.health import Drain
from gpuplane.node.model.machine import Device, DeviceList, DeviceNodeStat, Fault, Gpu, Machine, Mig, MigDevice
from gpuplane.node.model.sharelayout import memory_layout
from gpuplane.node.model.snapshot import Allocation, DriverRelease, Ledger, Snapshot, StoredLedger
from gpuplane.node.model.status import (
    CDI_FILES_PART,
    CONFIG_PART,
    DRIVER_PART,
    KUBELET_LOCK_PART,
    MPS_COMPUTE_MODES_PART,
    MPS_SUPERVISOR_PART,
    POD_RESOURCES_PART,
    STATE_DIRECTORY_PART,
    AnyPart,
    CdiConflictStatus,
    CdiFilesStatus,
    ComputeModeStatus,
    DriverStatus,
    MpsDaemonStatus,
    Status,
    TurnStatus,
    cdi_conflict_part,
    mps_daemon_part,
    plugin_part,
)
from gpuplane.node.model.views import Reason
from tests.golden import Golden
from tests.lengths import length
from tests.node.core.containers.documents import CONTROL
from tests.node.core.containers.documents import DRIVER as INSTALLED
from tests.node.core.dra.nodes import claim
from tests.node.core.health.histories import Maker
from tests.node.core.health.lives import Life
from tests.texts import as_shown

GPU, SMALL, KVM = "nvidia.com/gpu", "nvidia.com/mig-3g.40gb", "gpuplane.io/kvm"
NOT_GIVEN_OUT = ("unhealthy", "probing", "drained", "withheld")
NO_PROBLEM = {
    "drained", "driver-released", "not-looked", "cdi-not-written", "mps-not-seen", "mps-without-device",
    "held-as-other-resource", "held-in-other-layout", "held-in-unknown-layout", "held-on-unknown-gpu",
    "layout-not-stored", "mps-compute-mode",  # both may be one, if their part fails
}  # fmt: skip
"""The codes of the reasons for which a device is not given out though nothing is wrong."""


EMPTY = Reason(kind="waiting", text="")
"""Stands for a device that is given out."""


def told(snapshot: Snapshot) -> Mapping[str, Mapping[str, str]]:
    """Resource → id → health, by the very messages that go to kubelet."""
    return {
        each.name: {d.ID: d.health for d in _list_response(each.devices).devices} for each in offer(snapshot).resources
    }


def given_out(snapshot: Snapshot) -> dict[str, bool]:
    """Each GPU and MIG device that the machine has to give → whether kubelet believes that it can be had."""
    machine, settings = snapshot.machine or Machine(), snapshot.config.settings or Settings(mig_strategy="mixed")
    there = list_units(
        machine, with_mig_devices=settings.mig_strategy != "none", whole_mig_gpus=settings.whole_mig_gpus
    )
    plain = (f"{each.kind}:{each.id}" for of_kind in snapshot.devices.values() for each in of_kind.devices or ())
    found = {**{unit.id or f"GPU {unit.index}": False for unit, _ in there}, **dict.fromkeys(plain, False)}
    for resource, devices in told(snapshot).items():
        plugin = snapshot.statuses.get(plugin_part(resource), Status("ok"))
        ill = {unit_of(id) for id, health in devices.items() if health == "Unhealthy"}
        found |= {unit_of(id): plugin.state == "ok" and unit_of(id) not in ill for id in devices}
    return found


def troubles(snapshot: Snapshot) -> Iterator[Reason]:
    """Each reason why kubelet is told that a device is unhealthy."""
    for resource in offer(snapshot).resources:
        for device in resource.devices:
            yield from device.reasons


def series(snapshot: Snapshot, name: str) -> dict[tuple[str, ...], float]:
    """The values of a metric, by the values of its labels in their order."""
    [metric] = [each for each in metrics(snapshot) if each.name == name]
    return {tuple(labels.values()): value for labels, value in metric.series}


def agree(snapshot: Snapshot) -> None:
    """All say what kubelet is told."""
    the_metrics_agree(snapshot)
    inspect_agrees(snapshot)
    the_condition_agrees(snapshot)
    readiness_agrees(snapshot)
    the_annotation_agrees(snapshot)


def the_annotation_agrees(snapshot: Snapshot) -> None:
    """A device that can be had is one there; one that cannot is none, but for what is over in a moment."""
    said = node_gpus(snapshot)
    if said is None:
        return
    there = given_out(snapshot)
    in_a_moment = {
        each.device for each in availability(snapshot) if {"waiting"} >= {reason.kind for reason in each.reasons}
    }
    of_index = {each.index: each.device for each in availability(snapshot)}
    states = {each.index: (each.state, each.code) for each in said.gpus}
    states |= {each.index: (each.state, each.code) for gpu in said.gpus for each in gpu.mig}
    for index, (state, code) in states.items():
        device = of_index.get(index, "")
        if device in there and (there[device] or device not in in_a_moment):
            assert (state in NOT_GIVEN_OUT) == (not there[device]), device
            assert there[device] or code, device
    assert decode_node_gpus(encode_node_gpus(said)) == said


def the_metrics_agree(snapshot: Snapshot) -> None:
    """Kubelet's list is counted; each device that is not given out has a series that says why, and no other has."""
    assert series(snapshot, "gpuplane_devices") == {
        (resource, health.lower()): sum(each == health for each in devices.values())
        for resource, devices in told(snapshot).items()
        for health in ("Healthy", "Unhealthy")
    }
    withheld = {device or f"GPU {index}" for device, index, *_ in series(snapshot, "gpuplane_device_withheld")}
    assert withheld == {device for device, had in given_out(snapshot).items() if not had}
    states = {(each.device or "node", each.index, each.state): 1 for each in device_health_with_availability(snapshot)}
    assert series(snapshot, "gpuplane_device_health") == states
    now = node_condition(snapshot)
    assert series(snapshot, "gpuplane_node_problem") == ({(now.status, now.reason): 1} if now is not None else {})


def inspect_agrees(snapshot: Snapshot) -> None:
    """The states of `gpuplane inspect health` are those of devices that can be had, or that cannot."""
    states, there = {each.device: each for each in device_health_with_availability(snapshot)}, given_out(snapshot)
    for device, had in there.items():
        if stands := states.get(device):
            assert (stands.state in NOT_GIVEN_OUT) == (not had), stands
            assert had or stands.reason
    shown = build_inspection(NodeState(snapshot, offer(snapshot), 0.0), AgentInfo(), 0.0)
    assert {(each.name, each.healthy, each.unhealthy) for each in shown.resources} == {
        (name, sum(each == "Healthy" for each in ids.values()), sum(each != "Healthy" for each in ids.values()))
        for name, ids in told(snapshot).items()
    }
    assert {id.id: id.healthy for each in shown.devices for id in each.ids} == {
        id: health == "Healthy" for ids in told(snapshot).values() for id, health in ids.items()
    }
    for each in shown.devices:
        named = each.uuid or f"GPU {each.index}"
        if named in there:
            assert (each.state in NOT_GIVEN_OUT) == (not there[named]), each
            assert bool(each.reasons) == (not there[named]), each


def the_condition_agrees(snapshot: Snapshot) -> None:
    """It counts all devices that are not given out, with all reasons; it is "True" where one of them is a problem."""
    now, there = node_condition(snapshot), given_out(snapshot)
    against = list(troubles(snapshot))
    if now is None:  # nobody has looked at the GPUs: not yet, or not since the driver was let go of
        not_looked = snapshot.machine is None or any(each.code == "not-looked" for each in against)
        assert not_looked or not any(there.values())
        return
    if now.status != "Unknown":
        out = sum(not each for each in there.values())
        assert (f"{out} of {len(there)} " in as_shown(now.message)) == bool(out)
        assert [each for each in against if as_shown(each.text) not in as_shown(now.message)] == [] or len(
            now.message
        ) == MAX_MESSAGE_CHARACTERS
    ill = [
        each for each in device_health_with_availability(snapshot) if each.state in ("unhealthy", "probing", "degraded")
    ]
    if any(each.kind != "waiting" and each.code not in NO_PROBLEM for each in against):
        assert now.status == "True"
    if now.status == "False":
        assert [each for each in ill if each.code != "not-looked"] == []
    if now.status == "True":
        assert ill or not all(there.values()) or now.reason == "DriverFailing" or degraded_and_suspect(snapshot)


def degraded_and_suspect(snapshot: Snapshot) -> bool:
    """Whether a degraded device is shown as suspect, which is worse: its reason says both."""
    own = {each.device: each for each in device_health_with_availability(snapshot) if each.state == "suspect"}
    slight = (each for device in own for each in direct_health_reasons(snapshot, device) if each.kind == "degraded")
    return any(as_shown(each.text) in as_shown(own[each.faulty_device].reason) for each in slight)


def readiness_agrees(snapshot: Snapshot) -> None:
    """/readyz and the metric are one; a resource of which nothing is given out for want of CDI devices is not ready."""
    pages = StatusPages()
    pages.show(snapshot)
    page = pages.page("/readyz")
    why = not_ready_reason(snapshot)
    assert (page.status, page.body) == ((503, f"{why.text}\n".encode()) if why else (200, b"ok\n"))
    assert series(snapshot, "gpuplane_ready") == {(): float(not why)}
    for resource in offer(snapshot).resources:
        stands = snapshot.statuses.get(plugin_part(resource.name))
        if stands is None or stands.state != "ok":
            assert why
        codes = {reason.code for each in resource.devices for reason in each.reasons or (EMPTY,)}
        if codes <= {"cdi-conflict", "cdi-no-device", "cdi-write-failed"}:
            now = node_condition(snapshot)
            assert why
            assert now is not None
            assert now.status == "True"


def mig(index: int) -> Mig:
    """Two halves of a GPU."""
    return Mig(
        enabled=True,
        devices=tuple(
            MigDevice(f"MIG-{index}-{n}", "3g.40gb", gpu_instance=n + 1, mig_index=n, memory_mib=40192)
            for n in range(2)
        ),
    )


FAULTS = (
    *[()] * 8,
    (Fault("gpu-lost", "it has fallen off the bus"),),
    (Fault("remap-pending", "2 rows"),),
    (Fault("query-failed", "nvmlDeviceGetTemperature: Unknown Error"),),
)
OF_DRIVER = (Fault("driver-hang", "it hangs in nvmlInit"), Fault("driver-missing", "no libnvidia-ml.so.1"))


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """Some GPUs, whole or in MIG mode, perhaps with faults or without a UUID; with the driver's files, or without."""
    if draw(st.integers(0, 9)) == 9:
        return Machine(faults=(draw(st.sampled_from(OF_DRIVER)),))
    gpus = []
    for index in range(draw(st.sampled_from((3, 2, 4, 1, 0)))):
        gpu = Gpu(
            index=index, uuid=f"GPU-{index}", minor=index, memory_mib=81559, device_nodes=(f"/dev/nvidia{index}",)
        )
        gpus.append(gpu.but(faults=draw(st.sampled_from(FAULTS)), mig=draw(st.sampled_from((None, None, mig(index))))))
    if gpus and draw(st.integers(0, 9)) == 9:
        gpus[0] = gpus[0].but(uuid="", mig=None, faults=FAULTS[5])
    known = {f"/dev/nvidia{index}": DeviceNodeStat(195, index) for index in range(draw(st.sampled_from((4, 4, 3))))}
    driver = INSTALLED.but(files=draw(st.sampled_from((INSTALLED.files, INSTALLED.files, INSTALLED.files, None))))
    return Machine(driver=driver, gpus=tuple(gpus), shared_nodes=tuple(CONTROL), device_node_stats={**CONTROL, **known})


SHARINGS = (
    Sharing(),
    Sharing(replicated_resources=(ReplicatedResource(GPU, 3),)),
    Sharing(strategy="mps", replicated_resources=(ReplicatedResource(GPU, 2),)),
    Sharing(memory_resources=(MemorySharedResource(name=GPU, rename=f"{GPU}.shared", share_mib=20480),)),
)
CONFIGURED = st.builds(
    lambda mig, lists, sharing, dra: ConfigLoaded(
        Settings(mig_strategy=mig, device_list_strategy=lists, sharing=sharing, dra=DraSettings(enabled=dra))
    ),
    st.sampled_from(("none", "single", "mixed")),
    st.sampled_from((("cdi-cri",), ("cdi-cri",), ("envvar",), ("auto",))),
    st.sampled_from(SHARINGS),
    st.booleans(),
)
NODES = (
    Device(id="kvm", kind="device-node", device_nodes=("/dev/kvm",)),
    Device(id="fuse", kind="device-node", device_nodes=("/dev/fuse",), attributes={"resource": "kvm"}),
    Device(id="tun", kind="device-node", device_nodes=("/dev/net/tun",), attributes={"resource": "Tun"}),
    Device(id="kvm", kind="device-node", device_nodes=("/dev/kvm",), attributes={"resource": "virt"}),
    Device(
        id="kvm", kind="device-node", device_nodes=("/dev/kvm",), faults=(Fault("device-node-missing", "no /dev/kvm"),)
    ),
)
PLAIN = st.one_of(
    st.lists(st.sampled_from(NODES), max_size=3, unique_by=lambda each: each.id).map(
        lambda devices: DevicesObserved("device-node", DeviceList(devices=tuple(devices)))
    ),
    st.just(DevicesObserved("device-node", DeviceList(faults=(Fault("devices-not-counted", "no /dev"),)))),
    st.just(DevicesObserved("rdma", DeviceList(devices=(Device(id="mlx5_0", kind="rdma"),)))),
)
HELD_NODE = Allocation(resource=KVM, devices=("device-node:kvm",), holder=PodRef.parse("ns/p/c"))
HELD = (
    HELD_NODE,
    *(
        Allocation(resource=name, devices=(id,), holder=PodRef.parse("ns/p/c"))
        for name in (GPU, SMALL, f"{GPU}.shared")
        for id in ("GPU-0", "GPU-1::0", "MIG-1-0", "MIG-2-7")
    ),
)
BY_CLAIM = tuple(
    Allocation(resource="gpu.nvidia.com", devices=(f"GPU-{n}",), holder=PodRef.parse("ns/p/c"), claim="default/a")
    for n in range(2)
)
CLAIMS = tuple(claim(f"uid-{n}", n, name="a", admin=n == 3) for n in range(4))
TWICE = "k8s.device-plugin.nvidia.com/gpu=GPU-0"
STATUSES: tuple[tuple[AnyPart, Status], ...] = (
    *((plugin_part(name), Status("ok")) for name in (GPU, GPU, SMALL, SMALL, f"{GPU}.shared", KVM, "gpuplane.io/virt")),
    *((plugin_part(GPU), Status("waiting", "kubelet's socket was removed")),) * 4,
    *((plugin_part(GPU), Status("failing", "refused")),) * 4,
    (CDI_FILES_PART, CdiFilesStatus("waiting", "it is not known yet what is wanted")),
    (CDI_FILES_PART, CdiFilesStatus("ok", "some file")),
    (CDI_FILES_PART, CdiFilesStatus("failing", "/var/run/cdi: No space left on device")),
    (cdi_conflict_part("/etc/cdi/other.yaml"), CdiConflictStatus("failing", "twice", devices=(TWICE,))),
    (STATE_DIRECTORY_PART, TurnStatus("failing", "disk full")),
    (STATE_DIRECTORY_PART, TurnStatus("ok")),
    (CONFIG_PART, Status("failing", "config.yaml:2: no such key")),
    (POD_RESOURCES_PART, Status("failing", "no socket")),
    (DRIVER_PART, DriverStatus("ok")),
    (DRIVER_PART, DriverStatus("waiting", "released", released=True)),
    (DRIVER_PART, DriverStatus("failing", "it hangs in nvmlInit", code="driver-hang")),
    (KUBELET_LOCK_PART, TurnStatus("waiting", "process 1 serves", turn="standby")),
    (KUBELET_LOCK_PART, TurnStatus("ok")),
    (MPS_SUPERVISOR_PART, Status("ok")),
    (MPS_SUPERVISOR_PART, Status("failing", "no MPS supervisor serves the directory")),
    (mps_daemon_part(GPU), MpsDaemonStatus("ok", devices=("GPU-0", "GPU-1", "GPU-2", "GPU-3"))),
    (mps_daemon_part(GPU), MpsDaemonStatus("waiting", "starting")),
    (mps_daemon_part(GPU), MpsDaemonStatus("failing", "no such file")),
    (MPS_COMPUTE_MODES_PART, ComputeModeStatus("ok", exclusive_gpus=("GPU-1",))),
    (MPS_COMPUTE_MODES_PART, ComputeModeStatus("failing", "denied", exclusive_gpus=("GPU-1",))),
)
DEVICES = st.sampled_from(("", "GPU-0", "GPU-1", "MIG-1-0", "MIG-2-1", "device-node:kvm"))
WRITTEN = "the files are written that are wanted"
Step = Fact | str
FACTS: st.SearchStrategy[Step] = st.one_of(
    machines().map(MachineObserved),
    machines().map(MachineObserved),
    PLAIN,
    CONFIGURED,
    st.sampled_from(STATUSES).map(lambda each: StatusChanged(*each)),
    st.sampled_from(STATUSES).map(lambda each: StatusChanged(*each)),
    st.sampled_from(STATUSES).map(lambda each: StatusChanged(each[0], None)),
    st.just(WRITTEN),
    st.lists(st.sampled_from((*HELD, *BY_CLAIM)), max_size=2).map(lambda held: AllocationsListed(tuple(held), 0.0)),
    st.sampled_from(CLAIMS).map(ClaimPrepareRequested),
    st.sampled_from(CLAIMS).map(lambda each: ClaimUnprepareRequested(each.claim)),
    st.builds(DrainRequested, DEVICES, st.sampled_from((None, Drain("a fan is loud")))),
    st.sampled_from((None, DriverRelease(until=1e9, reason="a reset"))).map(DriverReleaseRequested),
    st.builds(
        lambda code, gpu: FaultOccurred(code=code, gpu=gpu, message="it happened", at=1.0),
        st.sampled_from(("xid-79", "xid-94", "xid-13", "xid-63")),
        st.sampled_from(("GPU-0", "GPU-1", "GPU-2")),
    ),
    st.sampled_from(
        (
            NodeObjectRequests(),
            NodeObjectRequests(container_runtime="containerd://2.1.4", drain_reasons={"0": "RMA", "77": "nobody's"}),
            NodeObjectRequests(drain_reasons={"all": "moving"}),
            NodeObjectRequests(driver_release_reason="upgrade"),
        )
    ).map(NodeRequestsChanged),
    st.sampled_from(({"GPU-0": memory_layout(1024, mps=False).encoded}, {})).map(
        lambda layouts: LedgerStored(StoredLedger(ledger=Ledger(), possible_share_layouts=(layouts,)))
    ),
)


def play(steps: Sequence[Step]) -> Iterator[Snapshot]:
    """The snapshots of a history, a second apart."""
    snapshot = Snapshot()
    for at, each in enumerate(steps):
        if isinstance(each, str):
            specs = (document.spec for document in desired_specs(snapshot).values() if document.spec is not None)
            each = StatusChanged(
                CDI_FILES_PART, CdiFilesStatus("ok", "some file", fingerprints=spec_fingerprints(specs))
            )
        snapshot = step(snapshot, each, float(at))
        yield snapshot


READY: tuple[Step, ...] = (
    StatusChanged(CDI_FILES_PART, CdiFilesStatus("waiting")),
    AllocationsListed((), 0.0),
    StatusChanged(plugin_part(GPU), Status("ok")),
    StatusChanged(plugin_part(SMALL), Status("ok")),
)


@of(max_examples=length(80, 5000))
@given(machines(), CONFIGURED, st.sampled_from((True, True, True, False)), st.lists(FACTS, max_size=25))
def test_all_say_what_kubelet_is_told(
    machine: Machine, configured: ConfigLoaded, ready: bool, steps: list[Step]
) -> None:
    """At every moment of a random history, of an agent that has just begun or one that serves."""
    start = (*READY, MachineObserved(machine), configured, WRITTEN) if ready else ()
    for snapshot in play((*start, *steps)):
        agree(snapshot)


class Agreeing(Life):
    """A life in which all agree after each fact."""

    def follow(self, before: Ledger) -> None:
        """The rooms around follow, then all are asked."""
        super().follow(before)
        agree(self.snapshot)


@pytest.mark.parametrize("number", range(length(5, 100)))
def test_all_agree_in_random_histories_of_faults(number: int, seed: int) -> None:
    """With a kernel log, probes that are answered, and times that pass."""
    life = Agreeing()
    for moment in Maker(seed).history(random.Random(seed).randint(5, 30)):
        life.wait(moment.after, answer=True)
        life.live(moment)
    life.mend()


EIGHT = tuple(Gpu(index=n, uuid=f"GPU-{n}", minor=n, device_nodes=(f"/dev/nvidia{n}",)) for n in range(8))
NO_LIBCUDA = Machine(driver=INSTALLED.but(files=None, files_error="no libcuda.so.1 below /"), gpus=EIGHT)


def test_what_a_node_without_libcuda_says(golden: Golden) -> None:
    """None of its eight GPUs is given out: the condition, `inspect health`, /readyz and the metrics all say it."""
    by_cdi = ConfigLoaded(Settings(device_list_strategy=("cdi-cri",)))
    *_, now = play((*READY, MachineObserved(NO_LIBCUDA), by_cdi, WRITTEN))

    assert set(told(now)[GPU].values()) == {"Unhealthy"}
    stands = node_condition(now)
    assert stands is not None
    assert (stands.status, stands.reason) == ("True", "GPUUnavailable")
    assert {each.state for each in device_health_with_availability(now)} == {"withheld"}
    [why] = {each.reason for each in device_health_with_availability(now)}
    unready_reason = not_ready_reason(now)
    assert unready_reason is not None
    assert unready_reason.code == "no-device-available"
    for text in (stands.message, unready_reason.text):
        assert as_shown(why) in as_shown(text)
        assert "8 GPUs (0 to 7)" in as_shown(text)
    golden([stands.message, unready_reason.text, why])
    assert series(now, "gpuplane_devices") == {(GPU, "healthy"): 0, (GPU, "unhealthy"): 8}


def test_a_uuid_that_two_gpus_bear_is_that_of_the_first() -> None:
    """It is given out, and nothing is held against it; the other is not, and that is said of it alone."""
    gpus = tuple(Gpu(index=n, uuid=f"GPU-{min(n, 1)}") for n in range(3))
    snapshot = Snapshot()
    for fact in (ConfigLoaded(Settings()), AllocationsListed((), 0.0), MachineObserved(Machine(gpus=gpus))):
        snapshot = step(snapshot, fact, 1.0)
    shown = build_inspection(NodeState(snapshot, offer(snapshot), 1.0), AgentInfo(), 0.0).devices

    assert told(snapshot) == {GPU: {"GPU-0": "Healthy", "GPU-1": "Healthy"}}
    assert [(each.state, len(each.ids), bool(each.not_offered)) for each in shown] == [
        ("healthy", 1, False), ("healthy", 1, False), ("withheld", 0, True)
    ]  # fmt: skip
    assert "device 1" in as_shown(shown[2].not_offered)
    assert set(series(snapshot, "gpuplane_device_health")) == {
        ("GPU-0", "0", "healthy"), ("GPU-1", "1", "healthy"), ("GPU-1", "2", "withheld")
    }  # fmt: skip
