"""The ResourceSlices of a node: what is published, under which names, and with which taints."""

from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.node.core.dra.slices import resource_slices, slice_name
from gpuplane.node.core.dra.taints import MAX_TAINTS, device_taints
from gpuplane.node.model.config import DraSettings, NodeObjectRequests, Settings
from gpuplane.node.model.facts import (
    AllocationsListed,
    ClaimPrepareRequested,
    ConfigLoaded,
    DrainRequested,
    Fact,
    MachineObserved,
    NodeRequestsChanged,
)
from gpuplane.node.model.health import Drain
from gpuplane.node.model.machine import Fault, Mig, MigDevice
from gpuplane.node.model.partitions import GpuPartitionState, SetMigMode
from gpuplane.node.model.reasons import Reason
from gpuplane.node.model.resourceslices import DeviceTaint, ResourceSlice
from gpuplane.node.model.snapshot import Allocation, Snapshot
from tests.node.core.dra.nodes import DRA, GPUS, MACHINE, after, claim, node

MIG_UUID = "MIG-GPU-1/7/0"


def published(snapshot: Snapshot) -> Mapping[str, ResourceSlice]:
    """Device name → its slice, each with this one device."""
    found = resource_slices(snapshot, "n1")
    assert found is not None
    return {device.name: each for each in found for device in each.devices}


def taints(snapshot: Snapshot) -> Mapping[str, list[str]]:
    """Device name → its taints as kubectl writes them; without those that have none."""
    shown = {
        name: [shown_taint(each) for each in found.devices[0].taints] for name, found in published(snapshot).items()
    }
    return {name: each for name, each in shown.items() if each}


def shown_taint(taint: DeviceTaint) -> str:
    return f"{taint.key}={taint.value}:{taint.effect}"


def sick(snapshot: Snapshot, gpu: int, *codes: str) -> Snapshot:
    """After looks that show faults of a GPU for long enough."""
    faults = tuple(Fault(code, "it happened") for code in codes)
    gpus = tuple(each.but(faults=faults) if each.index == gpu else each for each in GPUS)
    for now in (200.0, 300.0):
        snapshot = after(snapshot, MachineObserved(MACHINE.but(gpus=gpus)), now=now)
    return snapshot


def test_a_pool_for_each_gpu() -> None:
    """Named after the UUID, with one slice of one device, for this node alone."""
    found = published(node())
    assert list(found) == ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]
    one = found["gpu-1"]
    assert (one.name, one.driver, one.node, one.pool) == ("n1-gpu.nvidia.com-gpu-1", "gpu.nvidia.com", "n1", "n1/gpu-1")
    assert not one.allocated
    assert taints(node()) == {}


def test_the_driver_has_the_configured_name() -> None:
    """Everywhere: in the slice, in its name, and in the keys of taints."""
    snapshot = sick(node(Settings(dra=DraSettings(enabled=True, driver="gpu.example.com"))), 1, "gpu-lost")
    assert published(snapshot)["gpu-0"].driver == "gpu.example.com"
    assert published(snapshot)["gpu-0"].name == "n1-gpu.example.com-gpu-0"
    assert taints(snapshot)["gpu-1"] == ["gpu.example.com/gpu-lost=:NoSchedule"]


@pytest.mark.parametrize("lacks", ["settings", "machine", "allocations"])
def test_nothing_is_known_before_all_is(lacks: str) -> None:
    """Not even that nothing is to be published."""
    facts: dict[str, Fact] = {
        "settings": ConfigLoaded(DRA),
        "machine": MachineObserved(MACHINE),
        "allocations": AllocationsListed((), 0.0),
    }
    snapshot = after(Snapshot(), *(fact for name, fact in facts.items() if name != lacks))
    assert resource_slices(snapshot, "n1") is None


def test_health_is_taints() -> None:
    """By the severity of the fault; a sick GPU stays in its slice, and its neighbours' slices are what they were."""
    before = published(node())
    snapshot = sick(node(), 1, "remap-failed", "nvlink-down")
    assert taints(snapshot) == {
        "gpu-1": ["gpuplane.io/unhealthy=remap-failed:NoSchedule"]
    }  # why it is unhealthy comes before why it would be degraded
    after_fault = published(snapshot)
    assert [name for name in before if before[name] != after_fault[name]] == ["gpu-1"]
    assert taints(sick(node(), 2, "nvlink-down")) == {"gpu-2": ["gpuplane.io/degraded=nvlink-down:None"]}


def test_a_fault_that_may_pass_is_no_taint() -> None:
    """A device that is suspect may be given out."""
    gpus = (GPUS[0].but(faults=(Fault("driver-failed", "perhaps"),)), *GPUS[1:])
    suspect = after(node(), MachineObserved(MACHINE.but(faults=(Fault("driver-failed", "perhaps"),))))
    assert taints(suspect) == {}
    assert taints(after(node(), MachineObserved(MACHINE.but(gpus=gpus)))) == {}


def test_a_fault_of_the_node_taints_all() -> None:
    """After its grace period."""
    snapshot = node()
    for now in (200.0, 300.0):
        failing = MACHINE.but(faults=(Fault("driver-failed", "it fails"),))
        snapshot = after(snapshot, MachineObserved(failing), now=now)
    assert taints(snapshot) == {f"gpu-{n}": ["gpuplane.io/unhealthy=driver-failed:NoSchedule"] for n in range(4)}


def test_xids_have_nvidias_key() -> None:
    """With the number as value. A fault of the driver's bus has NVIDIA's key too."""
    reasons = [
        Reason(kind="problem", text="", code="xid-79"),
        Reason(kind="problem", text="", code="xid-48"),
        Reason(kind="degraded", text="", code="xid-63"),
        Reason(kind="problem", text="", code="gpu-lost"),
    ]
    assert [shown_taint(each) for each in device_taints(reasons, DRA.dra)] == [
        "gpu.nvidia.com/gpu-lost=:NoSchedule",
        "gpu.nvidia.com/xid=48:NoSchedule",
        "gpu.nvidia.com/xid=79:NoSchedule",
        "gpu.nvidia.com/xid=63:None",
    ]


def test_effects_are_those_that_are_configured() -> None:
    """Of faults and drains; what a container holds is never evicted for that."""
    dra = DraSettings(enabled=True, unhealthy="NoExecute", degraded="NoSchedule", drained="None")
    reasons = [
        Reason(kind=kind, text="", code="some-code")
        for kind in ("problem", "degraded", "drained", "released", "held", "configured", "waiting")
    ]
    assert [shown_taint(each) for each in device_taints(reasons, dra)] == [
        "gpuplane.io/unhealthy=some-code:NoExecute",
        "gpuplane.io/degraded=some-code:NoSchedule",
        "gpuplane.io/held=some-code:NoSchedule",
        "gpuplane.io/released=some-code:NoSchedule",
        "gpuplane.io/drained=some-code:None",
    ]


REASONS = st.builds(
    Reason, kind=st.sampled_from(["problem", "held", "drained"]), text=st.just(""), code=st.text(max_size=70)
)


@given(st.lists(REASONS))
def test_taints_are_few_legal_and_in_order(reasons: list[Reason]) -> None:
    """Whatever the codes: at most 16, each key and value once, the same for the same reasons in any order."""
    found = device_taints(reasons, DRA.dra)
    assert len(found) <= MAX_TAINTS
    assert found == device_taints(reversed(reasons), DRA.dra)
    assert len({(each.key, each.value) for each in found}) == len(found)
    for each in found:
        assert len(each.value) <= 63
        assert each.value.isascii()


def test_drains_are_taints() -> None:
    """Of one device, and of the node: by a command or by our Node object."""
    why = Drain(reason="a person wants it")
    assert taints(after(node(), DrainRequested("GPU-2", why))) == {"gpu-2": ["gpuplane.io/drained=drained:NoSchedule"]}
    whole = {f"gpu-{n}": ["gpuplane.io/drained=drained:NoSchedule"] for n in range(4)}
    assert taints(after(node(), DrainRequested("", why))) == whole
    asked = NodeRequestsChanged(NodeObjectRequests(drain_reasons={"all": "maintenance"}))
    assert taints(after(node(), asked)) == whole
    assert taints(after(node(), DrainRequested("", why), DrainRequested("", None))) == {}


def test_the_release_of_the_driver_taints_all() -> None:
    """Nothing is to be started on the GPUs; nothing is evicted."""
    asked = NodeRequestsChanged(NodeObjectRequests(driver_release_reason="an upgrade"))
    assert taints(after(node(), asked)) == {
        f"gpu-{n}": ["gpuplane.io/released=driver-released:NoSchedule"] for n in range(4)
    }


def test_what_the_device_plugin_gave_out_is_held() -> None:
    """A GPU, a share of one, a part of one, and what another plugin calls a part of one; until it is free."""
    held = [
        Allocation("nvidia.com/gpu", ("GPU-0",)),
        Allocation("nvidia.com/gpu.shared", ("GPU-2::3",), granted_at=9.0),
        Allocation("example.com/part", ("GPU-3-part-7",)),
    ]
    found = node(held=held)
    expected = {f"gpu-{n}": ["gpuplane.io/held=held-as-other-resource:NoSchedule"] for n in (0, 2, 3)}
    assert taints(found) == expected
    assert taints(after(found, AllocationsListed((), 500.0))) == {}


def test_a_mig_device_that_is_held_keeps_its_gpu() -> None:
    """Also when it is gone; of one whose GPU nobody remembers, each GPU that can have one is held."""
    mig = Mig(enabled=True, devices=(MigDevice(uuid=MIG_UUID, profile="1g.10gb", gpu_instance=7),))
    before = MACHINE.but(gpus=(GPUS[0], GPUS[1].but(mig=mig), GPUS[2].but(mig=Mig()), GPUS[3]))
    whole = MACHINE.but(gpus=(GPUS[0], GPUS[1].but(mig=Mig()), GPUS[2].but(mig=Mig()), GPUS[3]))
    held = [Allocation("nvidia.com/mig-1g.10gb", (MIG_UUID,))]
    remembered = after(node(machine=before, held=held), MachineObserved(whole))
    assert taints(remembered) == {"gpu-1": ["gpuplane.io/held=held-as-other-resource:NoSchedule"]}
    unknown = node(machine=whole, held=[Allocation("nvidia.com/mig-1g.10gb", ("MIG-0a0b0c",))])
    assert taints(unknown) == {f"gpu-{n}": ["gpuplane.io/held=held-on-unknown-gpu:NoSchedule"] for n in (1, 2)}


def test_what_a_claim_holds_is_no_taint_and_never_left_out() -> None:
    """A promise of ours, or what kubelet reports; whatever becomes of the GPU."""
    snapshot = after(node(), ClaimPrepareRequested(claim("u1", 1)))
    assert taints(snapshot) == {}
    assert published(snapshot)["gpu-1"].allocated == {"gpu-1"}
    assert not published(snapshot)["gpu-0"].allocated

    gone = after(snapshot, MachineObserved(MACHINE.but(gpus=GPUS[2:])))
    assert list(published(gone)) == ["gpu-2", "gpu-3", "gpu-1"]
    assert taints(gone) == {"gpu-1": ["gpuplane.io/unhealthy=claim-device-unknown:NoSchedule"]}
    assert published(gone)["gpu-1"].pool == published(snapshot)["gpu-1"].pool

    by_kubelet = node(held=[Allocation("gpu.nvidia.com", ("GPU-9",), claim="default/of-before")])
    assert published(by_kubelet)["gpu-9"].allocated == {"gpu-9"}
    other = node(held=[Allocation("dra.example.com", ("GPU-9",), claim="default/of-others")])
    assert "gpu-9" not in published(other)


def test_a_gpu_in_mig_mode_is_published_only_while_a_claim_has_it() -> None:
    """It cannot be given out as a whole."""
    mig = MACHINE.but(gpus=(GPUS[0], GPUS[1].but(mig=Mig(enabled=True)), *GPUS[2:]))
    assert list(published(node(machine=mig))) == ["gpu-0", "gpu-2", "gpu-3"]
    held = after(node(), ClaimPrepareRequested(claim("u1", 1)), MachineObserved(mig))
    assert "gpuplane.io/unhealthy=mig-mode:NoSchedule" in taints(held)["gpu-1"]


def test_a_gpu_without_a_name_is_not_published() -> None:
    """Its UUID is not known, or makes no name; of two with one UUID there is one device, which no claim gets."""
    nameless = (GPUS[0].but(uuid=""), GPUS[1].but(uuid="GPU-" + "x" * 70), GPUS[1].but(index=4, uuid="gpu-1"))
    found = node(machine=MACHINE.but(gpus=(*nameless, GPUS[2], GPUS[3].but(uuid="GPU-2"))))
    assert list(published(found)) == ["gpu-2"]
    assert "gpuplane.io/unhealthy=duplicate-uuid:NoSchedule" in taints(found)["gpu-2"]


def test_what_is_against_a_gpu_without_a_uuid_is_against_no_other() -> None:
    """Two of them are no duplicates of each other, and a drain of one by its index is its own."""
    found = node(machine=MACHINE.but(gpus=(GPUS[0].but(uuid=""), GPUS[1].but(uuid=""), *GPUS[2:])))
    assert taints(found) == {}
    drained = NodeRequestsChanged(NodeObjectRequests(drain_reasons={"0": "its fan is broken"}))
    assert taints(after(found, drained)) == {}


def test_a_layout_that_is_being_changed_keeps_claims_away() -> None:
    """A GPU that is about to be partitioned: no claim is to get it any more."""
    mig_capable = MACHINE.but(gpus=(GPUS[0].but(mig=Mig()), *GPUS[1:]))
    snapshot = node(machine=mig_capable)
    state = GpuPartitionState(pending=True, last_change=SetMigMode(enabled=True))
    changing = snapshot.but(ledger=snapshot.ledger.but(partitions={"GPU-0": state}))
    assert taints(changing) == {"gpu-0": ["gpuplane.io/held=layout-changing:NoSchedule"]}


def test_while_dra_is_disabled_only_what_claims_hold_is_published() -> None:
    """And no other claim gets it meanwhile."""
    off = ConfigLoaded(Settings())
    assert published(after(node(), off)) == {}
    held = after(node(), ClaimPrepareRequested(claim("u1", 1)), off)
    assert taints(held) == {"gpu-1": ["gpuplane.io/held=dra-disabled:NoSchedule"]}


def test_an_allocation_elsewhere_changes_nothing() -> None:
    """The very same slices after a grant of a device of another kind: nobody has anything to do."""
    before = node()
    later = after(before, AllocationsListed((Allocation("example.com/nic", ("nic-0",)),), 200.0))
    assert resource_slices(before, "n1") is resource_slices(later, "n1")


def test_names_of_slices_are_short_enough() -> None:
    """A long name is cut, and differs from another that begins alike."""
    device = "gpu-8d0e3a54-0000-4000-8000-000000000000"
    long = ".".join(["a" * 60] * 4)
    found = [slice_name(f"{long}.{each}", "gpu.nvidia.com", device) for each in "bc"]
    assert all(len(each) <= 253 and each.endswith(device) for each in found)
    assert len(set(found)) == 2


def test_slices_are_encoded_as_the_api_has_them() -> None:
    """Attributes as {"string": …}, {"int": …}."""
    device = msgspec.to_builtins(published(node())["gpu-0"].devices[0])
    assert device["attributes"]["index"] == {"int": 0}
    assert device["attributes"]["type"] == {"string": "gpu"}
    assert device["capacity"] == {"memory": {"value": "81559Mi"}}
