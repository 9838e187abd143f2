"""Devices of plain kinds in Dynamic Resource Allocation: published, chosen, prepared, and given to nobody else."""

import re
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.kubernetes.podref import PodRef
from gpuplane.node.core.advertising import offer
from gpuplane.node.core.dra.claimspecs import claim_specs
from gpuplane.node.core.dra.healthlist import claim_device_health
from gpuplane.node.core.dra.listed import held_unit
from gpuplane.node.core.dra.names import DNS_LABEL
from gpuplane.node.core.dra.preparing import claim_problem, prepare_problem
from gpuplane.node.core.dra.slices import resource_slices
from gpuplane.node.core.dra.twice import devices_offered_twice
from gpuplane.node.core.kinds.attributes import MAX_NAMES, UNKNOWN, text_attribute
from gpuplane.node.core.kinds.kind import DEVICE_ID_PATTERN, plain_kind
from gpuplane.node.core.kinds.plaindra import plain_device_name
from gpuplane.node.core.kinds.table import KINDS
from gpuplane.node.core.reports.claims import report_claims
from gpuplane.node.core.reports.slices import report_slices
from gpuplane.node.model.claims import AllocatedClaim, AllocatedDevice, ClaimName, OpaqueConfig
from gpuplane.node.model.facts import (
    AllocationsListed,
    ClaimPrepareRequested,
    ConfigLoaded,
    DevicesObserved,
    DrainRequested,
    LedgerLoaded,
    MachineObserved,
    StatusChanged,
)
from gpuplane.node.model.health import Drain
from gpuplane.node.model.machine import UNCOUNTED_CODE, Device, DeviceList, Fault, Machine
from gpuplane.node.model.resourceslices import SliceDevice
from gpuplane.node.model.snapshot import Allocation, Snapshot
from gpuplane.node.model.status import SLICES_PART, SlicesStatus
from tests.node.core.dra.nodes import DRA, MACHINE, after, node, written

KVM, FUSE = "device-node-kvm", "device-node-fuse"
UNIT = "device-node:kvm"
MISSING = Fault("device-node-missing", "/dev/kvm: no such file")
UNCOUNTED = DeviceList(faults=(Fault(UNCOUNTED_CODE, "/dev cannot be read"),))
C_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
CONTAINER = PodRef("ns", "vm", container="main")


def seen(*faults: Fault, ids: Iterable[str] = ("fuse", "kvm")) -> DevicesObserved:
    """A look at some devices, of which the last has these faults."""
    devices = [
        Device(id=each, kind="device-node", numa=1, pci="0000:3B:00.0", device_nodes=(f"/dev/{each}",)) for each in ids
    ]
    devices[-1:] = [each.but(faults=faults) for each in devices[-1:]]
    return DevicesObserved("device-node", DeviceList(devices=tuple(devices)))


def published(snapshot: Snapshot) -> dict[str, SliceDevice]:
    """Name → each device that is no GPU."""
    found = resource_slices(snapshot, "n1")
    assert found is not None
    return {each.devices[0].name: each.devices[0] for each in found if not each.devices[0].name.startswith("gpu-")}


def taints(snapshot: Snapshot, device: str = KVM) -> list[str]:
    return [f"{each.key}={each.value}:{each.effect}" for each in published(snapshot)[device].taints]


def wants(uid: str, *devices: str, configs: tuple[OpaqueConfig, ...] = (), admin: bool = False) -> AllocatedClaim:
    """A claim that was allocated these, each by the request "r"."""
    results = tuple(AllocatedDevice("r", f"n1/{each}", each, is_admin=admin) for each in devices)
    return AllocatedClaim(ClaimName("default", uid, uid), results, configs, pods={"vm": "pod-uid"})


def code(snapshot: Snapshot, asked: AllocatedClaim) -> str:
    why = prepare_problem(snapshot, asked)
    return why.code if why is not None else ""


def unhealthy(snapshot: Snapshot) -> list[str]:
    return [device.id for resource in offer(snapshot).resources for device in resource.devices if device.reasons]


def test_a_device_stands_in_a_slice_of_its_own() -> None:
    """With the attributes of every device, so that no selector fails on it; the GPUs' slices are what they were."""
    before, found = resource_slices(node(), "n1"), after(node(), seen())
    slices = resource_slices(found, "n1")
    assert before is not None
    assert slices is not None
    assert slices[: len(before)] == before
    [_, kvm] = slices[len(before) :]
    assert (kvm.name, kvm.driver, kvm.pool) == (f"n1-gpu.nvidia.com-{KVM}", "gpu.nvidia.com", f"n1/{KVM}")
    [device] = kvm.devices
    assert device.name == KVM
    assert device.attributes.keys() == {*UNKNOWN, "gpuplane.io/resource"}
    assert {name: each for name, each in device.attributes.items() if UNKNOWN.get(name) != each} == {
        "type": text_attribute("device-node"),
        "uuid": text_attribute(UNIT),
        "numa": device.attributes["resource.kubernetes.io/numaNode"],
        "resource.kubernetes.io/numaNode": device.attributes["numa"],
        "resource.kubernetes.io/pciBusID": text_attribute("0000:3b:00.0"),
        "gpuplane.io/resource": text_attribute("gpuplane.io/kvm"),
    }
    assert device.attributes["numa"].integer == 1
    assert [each.value for each in device.capacity.values()] == ["0"]
    [*_, shown] = report_slices(found, "n1", is_published=False).slices
    assert (shown.uuid, shown.index) == (UNIT, "")


def test_nothing_is_published_of_what_cannot_be_offered_or_is_switched_off() -> None:
    assert published(after(node(), ConfigLoaded(DRA.but(dra=DRA.dra.but(enabled=False))), seen())) == {}
    assert published(after(node(), DevicesObserved("device-node", UNCOUNTED))) == {}
    without_nodes = DeviceList(devices=(Device(id="kvm", kind="device-node"),))
    assert published(after(node(), DevicesObserved("device-node", without_nodes))) == {}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_the_names_and_attributes_of_a_kind_are_legal(kind: object) -> None:
    """Those of a device of which only the id is known are those of every device of the kind."""
    kind = KINDS[kind.name]  # type: ignore[attr-defined]
    device = kind.dra.absent_device(f"{kind.id_prefixes[0]}a1")
    assert device.name.startswith(kind.dra.name_prefix)
    assert kind.dra.device_name(device.unit) == device.name
    assert {*UNKNOWN} <= device.attributes.keys()
    assert len(device.attributes) + len(device.capacity) <= MAX_NAMES
    own = [name.rpartition("/")[2] for name in device.attributes]
    assert all(C_IDENTIFIER.fullmatch(name) for name in own)
    prefixes = [each.dra.name_prefix for each in KINDS.values()]
    assert [each for each in prefixes if device.name.startswith(each)] == [kind.dra.name_prefix]


def test_a_kind_may_have_attributes_of_its_own() -> None:
    """In our domain, and also on a device that is gone."""
    card = plain_kind(
        "card",
        resource_name=lambda device: "example.com/card",
        faults={},
        attributes=["model"],
        slice_attributes=lambda unit: {"model": text_attribute(dict(unit.attributes).get("model", ""))},
    )
    device = Device(id="0000:3b:00.0", kind="card", device_nodes=("/dev/card0",), attributes={"model": "u250"})
    found = card.dra.devices(None, DeviceList(devices=(device,)))
    assert found is not None
    assert found[0].attributes["gpuplane.io/model"].string == "u250"
    assert re.fullmatch("card-0000-3b-00-0-[0-9a-f]{10}", found[0].name)
    absent = card.dra.absent_device(found[0].unit)
    assert (absent.name, absent.attributes["gpuplane.io/model"].string) == (found[0].name, "")
    assert card.dra.devices(None, DeviceList()) is None


@given(st.lists(st.from_regex(DEVICE_ID_PATTERN, fullmatch=True), unique=True, max_size=20))
def test_each_id_makes_a_name_of_its_own(ids: list[str]) -> None:
    names = [plain_device_name("device-node", each) for each in ids]
    assert len(set(names)) == len(ids)
    assert all(DNS_LABEL.fullmatch(each) for each in names)


def test_a_claim_gets_the_edits_of_its_device_and_nothing_of_the_driver() -> None:
    """Beside a GPU, both; without any GPU on the node, too."""
    ready = written(after(node(), seen(), ClaimPrepareRequested(wants("a", KVM))))
    assert claim_problem(ready, "a") is None
    [prepared] = (ready.ledger.claims or {})["a"].devices
    assert (prepared.unit, prepared.cdi_id) == (UNIT, f"k8s.gpu.nvidia.com/claim=a-{KVM}")
    spec = claim_specs(ready)["a"]
    assert spec.container_edits == type(spec.container_edits)()
    assert [(each.name, [one.path for one in each.container_edits.device_nodes]) for each in spec.devices] == [
        (f"a-{KVM}", ["/dev/kvm"])
    ]
    [shown] = report_claims(ready)
    assert [(each.uuid, each.index) for each in shown.devices] == [(UNIT, "")]

    both = written(after(node(), seen(), ClaimPrepareRequested(wants("b", "gpu-1", KVM))))
    assert claim_problem(both, "b") is None
    assert [each.name for each in claim_specs(both)["b"].devices] == ["b-gpu-1", f"b-{KVM}"]
    assert "NVIDIA_VISIBLE_DEVICES=void" in claim_specs(both)["b"].container_edits.env

    driverless = node(machine=Machine(faults=(Fault("driver-missing", "there is none"),)))
    alone = after(driverless, seen(), ClaimPrepareRequested(wants("c", KVM)))
    assert [each.name for each in claim_specs(alone)["c"].devices] == [f"c-{KVM}"]


def test_a_device_is_given_to_one_at_a_time() -> None:
    """To another claim or a pod of the device plugin only when it is free; a claim with admin access is beside all."""
    claimed = after(node(), seen(), ClaimPrepareRequested(wants("a", KVM)))
    assert code(claimed, wants("b", KVM)) == "claim-device-in-use"
    assert code(claimed, wants("b", FUSE)) == ""
    assert code(claimed, wants("b", KVM, admin=True)) == ""
    assert unhealthy(claimed) == [UNIT]
    assert (taints(claimed), taints(claimed, FUSE)) == ([], [])

    listed = AllocationsListed((Allocation("gpuplane.io/kvm", (UNIT,), CONTAINER),), 50.0)
    held = after(node(), seen(), listed)
    assert code(held, wants("a", KVM)) == "claim-device-in-use"
    assert taints(held) == ["gpuplane.io/held=held-as-other-resource:NoSchedule"]
    assert taints(held, FUSE) == []


def test_health_and_drains_are_taints() -> None:
    """Of the device, and of all devices of its kind where those cannot be counted; never of a GPU."""
    sick = after(after(node(), seen()), seen(MISSING), now=300.0)
    assert taints(sick) == ["gpuplane.io/unhealthy=device-node-missing:NoSchedule"]
    assert taints(sick, FUSE) == []
    states = {each.device: each.state for each in claim_device_health(sick, "n1") or ()}
    assert (states[KVM], states[FUSE], states["gpu-0"]) == ("unhealthy", "healthy", "healthy")
    assert code(sick, wants("a", KVM)) == ""  # a taint has kept those away that do not tolerate it

    drained = after(node(), seen(), DrainRequested(UNIT, Drain(reason="repair")))
    assert taints(drained) == ["gpuplane.io/drained=drained:NoSchedule"]

    blind = after(node(), seen(), DevicesObserved("device-node", UNCOUNTED))
    blind = after(blind, DevicesObserved("device-node", UNCOUNTED), now=300.0)
    assert taints(blind) == taints(blind, FUSE) == [f"gpuplane.io/unhealthy={UNCOUNTED_CODE}:NoSchedule"]
    found = resource_slices(blind, "n1")
    assert found is not None
    assert not [each.name for each in found if "gpu-0" in each.name and each.devices[0].taints]


def test_a_claimed_device_stays_published() -> None:
    """Tainted once it is gone; not while its kind has only not been counted yet, after a start of the agent."""
    claimed = after(node(), seen(), ClaimPrepareRequested(wants("a", KVM)))
    gone = after(claimed, seen(ids=["fuse"]))
    assert taints(gone) == ["gpuplane.io/unhealthy=claim-device-unknown:NoSchedule"]
    assert published(gone)[KVM].attributes.keys() == published(claimed)[KVM].attributes.keys()

    restarted = after(Snapshot(), LedgerLoaded(claimed.ledger), ConfigLoaded(DRA), MachineObserved(MACHINE))
    restarted = after(restarted, AllocationsListed((), 0.0))
    assert published(restarted).keys() == {KVM}
    assert taints(restarted) == []
    why = prepare_problem(restarted, wants("b", FUSE))
    assert why is not None
    assert why.kind == "waiting"
    assert code(after(restarted, seen()), wants("b", FUSE)) == ""
    assert code(after(restarted, seen(ids=["kvm"])), wants("b", FUSE)) == "claim-device-unknown"


def test_what_a_lost_promise_held_is_not_given_out() -> None:
    """Kubelet names the device: until its kind has been counted, any device of the kind may be meant."""
    pool = f"n1/{KVM}"
    unit = held_unit(node(), "default/a", "gpu.nvidia.com", pool, KVM)
    assert unit == "device-node:"
    listed = AllocationsListed((Allocation("gpu.nvidia.com", (unit,), CONTAINER, claim="default/a"),), 60.0)
    assert unhealthy(after(node(), listed, seen())) == ["device-node:fuse", UNIT]

    assert held_unit(after(node(), seen()), "default/a", "gpu.nvidia.com", pool, KVM) == UNIT
    assert held_unit(after(node(), seen(ids=["fuse"])), "default/a", "gpu.nvidia.com", pool, KVM) == ""
    assert held_unit(node(), "default/a", "gpu.nvidia.com", "n1/other", "other") == ""


@pytest.mark.parametrize(("requests", "refused"), [((), ""), (("r",), "claim-config-invalid"), (("gpu",), "")])
def test_a_plain_device_has_no_configuration(requests: tuple[str, ...], refused: str) -> None:
    """One for all requests is the GPUs'; one that names the request of the device is a mistake."""
    config = OpaqueConfig('{"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig"}', requests)
    assert code(after(node(), seen()), wants("a", KVM, configs=(config,))) == refused


def test_devices_that_are_offered_twice_are_named() -> None:
    """A plain device is, as a GPU is."""
    snapshot = after(node(), seen(ids=["kvm"]), StatusChanged(SLICES_PART, SlicesStatus("ok", published=("any",))))
    assert devices_offered_twice(snapshot) == (*((f"GPU-{n}", f"{n}") for n in range(4)), (UNIT, ""))
