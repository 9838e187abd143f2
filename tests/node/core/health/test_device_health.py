"""How devices stand, for people: each by its own record, and overall by what it is a part of."""

from gpuplane.kubernetes.podref import PodRef
from gpuplane.node.core.health.context import health_context
from gpuplane.node.core.health.devicehealth import health_with_parents, health_without_parents
from gpuplane.node.core.health.drains import drain_reason
from gpuplane.node.core.health.reasons import unavailable_reasons
from gpuplane.node.core.health.records import apply_reboot
from gpuplane.node.core.lookup import find_device
from gpuplane.node.core.step import step
from gpuplane.node.model.config import NodeObjectRequests, Settings
from gpuplane.node.model.facts import (
    AllocationsListed,
    ConfigLoaded,
    DrainRequested,
    DriverReleaseRequested,
    Fact,
    FaultOccurred,
    MachineObserved,
    NodeRequestsChanged,
    StatusChanged,
)
from gpuplane.node.model.health import Drain, FaultOverride, HealthRecords
from gpuplane.node.model.machine import Fault, Gpu, Machine, Mig, MigDevice
from gpuplane.node.model.snapshot import Allocation, DriverRelease, Snapshot
from gpuplane.node.model.status import DRIVER_PART, DriverStatus
from tests.golden import Golden
from tests.node.core.health.world import trouble
from tests.texts import as_shown

PARTS = tuple(
    MigDevice(uuid=f"MIG-{slot}", profile="1g.10gb", gpu_instance=7 + slot, compute_instance=0, mig_index=slot)
    for slot in (0, 1)
)
GPUS = (
    Gpu(index=0, uuid="GPU-0"),
    Gpu(index=1, uuid="GPU-1", pci="0000:3b:00.0", mig=Mig(enabled=True, devices=PARTS)),
)


def after(*facts: Fact) -> Snapshot:
    """The node after these facts, one a second from 2 s on. No container holds anything yet."""
    snapshot = Snapshot()
    for now, fact in enumerate(
        (AllocationsListed((), 0.0), ConfigLoaded(Settings()), MachineObserved(Machine(gpus=GPUS)), *facts), start=-1
    ):
        snapshot = step(snapshot, fact, float(now))
    return snapshot


def words(snapshot: Snapshot) -> list[str]:
    """Each device as people read of it: index, reason, what ends it."""
    return [
        f"{each.index or 'node'}: {each.reason} | {each.clear_when_text}".rstrip(" |")
        for each in health_with_parents(snapshot)
    ]


def states(snapshot: Snapshot) -> dict[str, str]:
    """index → how it stands overall; "" is the node."""
    return {each.index: each.state for each in health_with_parents(snapshot)}


def test_what_ails_the_node_ails_its_gpus(golden: Golden) -> None:
    """And what is worse of a GPU's own is told of it alone."""
    missing = Machine(gpus=None, faults=(Fault("driver-missing", "no libnvidia-ml.so.1"),))
    snapshot = after(MachineObserved(missing))

    assert states(snapshot) == {
        "": "unhealthy",
        "0": "unhealthy",
        "1": "unhealthy",
        "1:0": "unhealthy",
        "1:1": "unhealthy",
    }
    assert all("driver-missing" in as_shown(each.reason) for each in health_with_parents(snapshot))
    golden(words(snapshot))
    assert {each.state for each in health_without_parents(snapshot) if each.device} == {"healthy"}


def test_all_that_is_wrong_is_said(golden: Golden) -> None:
    """A GPU's own fault beside the node's that is as bad; what is worse comes first."""
    hang = Machine(gpus=None, faults=(Fault("driver-hang", "no answer"),))
    ill = FaultOccurred(code="xid-79", gpu="GPU-0", message="off the bus", at=2.0)
    snapshot = after(
        ill, DrainRequested("GPU-1", Drain(reason="fan")), ConfigLoaded(Settings(faults=AT_ONCE)), MachineObserved(hang)
    )
    stands = {each.index: each for each in health_with_parents(snapshot)}

    assert stands[""].state == "unhealthy"
    assert stands["0"].code == "xid-79"
    golden(words(snapshot))


AT_ONCE = {"driver-hang": FaultOverride(grace_period=0.0)}


def test_while_the_driver_is_let_go_of_the_node_says_why_and_what_ends_it(golden: Golden) -> None:
    """The reason that its operator gave, until when; or that our Node object asks for it. Then that a look is due."""
    away = StatusChanged(DRIVER_PART, DriverStatus("waiting", "released", released=True))
    by_hand = after(DriverReleaseRequested(DriverRelease(until=602.0, reason="firmware")), away)
    node, gpu, *_ = health_with_parents(by_hand)

    assert (node.code, node.until) == ("not-looked", 602.0)
    assert "firmware" in as_shown(node.reason)
    assert "not-looked" in as_shown(gpu.reason)
    assert [each.kind for each in unavailable_reasons(by_hand, health_context(by_hand), GPUS[0])] == ["released"]

    from_afar = after(NodeRequestsChanged(NodeObjectRequests(driver_release_reason="upgrade")), away)
    assert (health_with_parents(from_afar)[0].code, health_with_parents(from_afar)[0].until) == ("not-looked", None)
    assert "upgrade" in as_shown(health_with_parents(from_afar)[0].reason)

    due = step(by_hand, DriverReleaseRequested(None), 9.0)
    assert health_with_parents(due)[0].until is None
    assert [each.code for each in unavailable_reasons(due, health_context(due), GPUS[0])] == ["not-looked"]

    for case, snapshot in {"by hand": by_hand, "by the Node": from_afar, "a look is due": due}.items():
        golden([*words(snapshot), trouble(snapshot, GPUS[0])], case)


def test_what_ails_a_gpu_ails_its_mig_devices_and_no_other_gpu(golden: Golden) -> None:
    snapshot = after(FaultOccurred(code="xid-79", gpu="GPU-1", message="", at=2.0))

    assert states(snapshot) == {"0": "healthy", "1": "unhealthy", "1:0": "unhealthy", "1:1": "unhealthy"}
    [part] = [each for each in health_with_parents(snapshot) if each.index == "1:1"]
    assert (part.device, part.since, part.clear_when_text, part.advice) == ("MIG-1", 2.0, "", "")
    assert "xid-79" in as_shown(part.reason)
    golden(words(snapshot))


def test_what_ails_a_mig_device_leaves_its_siblings() -> None:
    snapshot = after(FaultOccurred(code="xid-94", gpu="GPU-1", message="", at=2.0, gpu_instance=8))

    assert states(snapshot) == {"0": "healthy", "1": "healthy", "1:0": "healthy", "1:1": "probing"}


def test_a_drain_has_a_beginning_and_an_end(golden: Golden) -> None:
    """Of a GPU it is its MIG devices' as well; what ends it is said at the GPU."""
    snapshot = after(DrainRequested("GPU-1", Drain(reason="fan", since=2.0, until=62.0, until_wall_clock=1062.0)))
    _, gpu, part, _ = health_with_parents(snapshot)

    assert (gpu.state, gpu.since, gpu.until, gpu.reason) == ("drained", 2.0, 62.0, "fan")
    assert (part.state, part.clear_when_text) == ("drained", "")
    golden(words(snapshot))
    assert drain_reason(snapshot, GPUS[1], PARTS[0]) == "fan"


def test_a_drain_of_our_node_object_says_so(golden: Golden) -> None:
    """It has no beginning that we know."""
    snapshot = after(NodeRequestsChanged(NodeObjectRequests(drain_reasons={"1:0": "noisy"})))

    assert states(snapshot) == {"0": "healthy", "1": "healthy", "1:0": "drained", "1:1": "healthy"}
    [part] = [each for each in health_with_parents(snapshot) if each.index == "1:0"]
    assert part.since is None
    golden(words(snapshot))


def test_what_is_of_an_earlier_boot_has_no_beginning() -> None:
    """Its times counted from that boot. A drain ends when it was to, by the clock on the wall."""
    snapshot = after(
        FaultOccurred(code="dram-retirement-failed", gpu="GPU-0", message="", at=2.0),
        DrainRequested("GPU-1", Drain(reason="fan", since=3.0, until=63.0, until_wall_clock=1063.0)),
    )
    health = apply_reboot(snapshot.ledger.health or HealthRecords(), wall_clock=1013.0, now=5.0)
    gpu, other, *_ = health_with_parents(snapshot.but(ledger=snapshot.ledger.but(health=health)))

    assert (gpu.state, gpu.code, gpu.since) == ("unhealthy", "dram-retirement-failed", None)
    assert (other.state, other.since, other.until) == ("drained", None, 55.0)


def test_a_fault_that_time_ends_says_when() -> None:
    snapshot = after(
        ConfigLoaded(
            Settings(faults={"xid-62": FaultOverride(severity="degraded", clear_when="time-passed", clear_after=30.0)})
        ),
        FaultOccurred(code="xid-62", gpu="GPU-0", message="", at=3.0),
    )

    assert (health_with_parents(snapshot)[0].state, health_with_parents(snapshot)[0].until) == ("degraded", 33.0)


def test_it_is_probing_from_when_nothing_but_a_probe_is_missing() -> None:
    """The pod that a fault befell has ended, and the driver answers."""
    pod = Allocation(resource="nvidia.com/mig-1g.10gb", devices=("MIG-1",), holder=PodRef.parse("ml/train/main"))
    befallen = (
        AllocationsListed((pod,), 2.0),
        FaultOccurred(code="xid-94", gpu="GPU-1", message="", at=3.0, gpu_instance=8),
    )

    assert states(after(*befallen))["1:1"] == "unhealthy"
    assert states(after(*befallen, AllocationsListed((), 4.0)))["1:1"] == "probing"
    silent = StatusChanged(DRIVER_PART, DriverStatus("failing", "it does not answer"))
    assert states(after(*befallen, silent, AllocationsListed((), 5.0)))["1:1"] == "unhealthy"


def test_people_name_devices_as_what_they_look_at_does() -> None:
    """By index, UUID or address, as sysfs writes it and as nvidia-smi does; in the annotation too."""
    named = {
        name: find_device(after(), name) for name in ("1", "GPU-1", "0000:3b:00.0", "00000000:3B:00.0", "1:1", "MIG-1")
    }

    assert named == dict.fromkeys(("1", "GPU-1", "0000:3b:00.0", "00000000:3B:00.0"), "GPU-1") | dict.fromkeys(
        ("1:1", "MIG-1"), "MIG-1"
    )
    for address in ("3b:00.0", "3B:00.0", "0000:3B:00.0", "00000000:3b:00.0"):
        assert find_device(after(), address) == "GPU-1"
        assert states(after(NodeRequestsChanged(NodeObjectRequests(drain_reasons={address: "x"}))))["1"] == "drained"
    assert [find_device(after(), name) for name in ("", "2", "1:2", "GPU-", "0001:3b:00.0", "b:00.0")] == [None] * 6
    assert (
        states(after(NodeRequestsChanged(NodeObjectRequests(drain_reasons={"00000000:3B:00.0": "x"}))))["1"]
        == "drained"
    )
