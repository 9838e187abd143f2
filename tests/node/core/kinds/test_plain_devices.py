"""Devices that are no GPUs: every row of the table of kinds, from what is observed to what a container gets."""

from collections.abc import Iterable
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.kubernetes.podref import PodRef
from gpuplane.node.core.advertising import missing_kind_reasons, offer
from gpuplane.node.core.allocate.plain import plain_response
from gpuplane.node.core.allocate.response import allocate
from gpuplane.node.core.availability import availability
from gpuplane.node.core.choice.preference import preferred_ids
from gpuplane.node.core.containers.cdi.desiredspecs import desired_spec_of_file, desired_specs
from gpuplane.node.core.containers.cdi.plainspecs import build_plain_spec
from gpuplane.node.core.containers.cdi.specstatus import spec_fingerprints
from gpuplane.node.core.health.devicehealth import health_with_parents
from gpuplane.node.core.inventory.resources import list_resources
from gpuplane.node.core.kinds.kind import Kind, plain_kind
from gpuplane.node.core.kinds.table import FAULTS, KINDS, PLAIN_KINDS, kind_of
from gpuplane.node.core.ledger import adapt_to_new_boot
from gpuplane.node.core.lookup import find_device
from gpuplane.node.core.reports.nodecondition import node_condition
from gpuplane.node.core.reports.nodeevents import event_states, node_events
from gpuplane.node.core.reports.readiness import not_ready_reason
from gpuplane.node.core.step import step
from gpuplane.node.core.telemetry.agentmetrics import metrics
from gpuplane.node.model.cdi import ContainerEdits
from gpuplane.node.model.cdi import Mount as CdiMount
from gpuplane.node.model.config import Settings
from gpuplane.node.model.facts import (
    AllocateAnswered,
    AllocationsListed,
    ConfigLoaded,
    DevicesObserved,
    DrainRequested,
    Fact,
    LedgerLoaded,
    MachineObserved,
    StatusChanged,
)
from gpuplane.node.model.health import Drain
from gpuplane.node.model.machine import UNCOUNTED_CODE, Device, DeviceList, Fault, Gpu, Machine
from gpuplane.node.model.snapshot import Allocation, Snapshot
from gpuplane.node.model.status import CDI_FILES_PART, KUBELET_LOCK_PART, CdiFilesStatus, TurnStatus
from gpuplane.node.model.views import RequestRefused

KIND, KVM = "device-node", "gpuplane.io/kvm"
GPU = "nvidia.com/gpu"
MISSING = Fault(code="device-node-missing", message="/dev/kvm: no such file")
UNCOUNTED = DeviceList(faults=(Fault(code=UNCOUNTED_CODE, message="/dev cannot be read"),))
WITH_GPU = MachineObserved(Machine(gpus=(Gpu(index=0, uuid="GPU-0", device_nodes=("/dev/nvidia0",)),)))
WITHOUT_DRIVER = MachineObserved(Machine(faults=(Fault(code="driver-missing", message="there is none"),)))


def kvm(id: str = "kvm", *faults: Fault, resource: str = "kvm", numa: int | None = None) -> Device:
    """A device node that is offered as gpuplane.io/kvm."""
    return Device(
        id=id, kind=KIND, numa=numa, device_nodes=(f"/dev/{id}",), attributes={"resource": resource}, faults=faults
    )


def seen(*devices: Device) -> DevicesObserved:
    """A look at these."""
    return DevicesObserved(KIND, DeviceList(devices=devices))


def told(*facts: Fact, settings: Settings = Settings(), before: Snapshot | None = None, at: float = 1.0) -> Snapshot:  # noqa: B008
    """A node that was told these facts."""
    after = before
    if after is None:
        after = step(step(Snapshot(), ConfigLoaded(settings), 0.0), AllocationsListed((), 0.0), 0.0)
    for fact in facts:
        after = step(after, fact, at)
    return after


def healths(snapshot: Snapshot) -> dict[str, dict[str, bool]]:
    """Resource → id → whether kubelet is told that it is healthy."""
    return {
        resource.name: {device.id: not device.reasons for device in resource.devices}
        for resource in offer(snapshot).resources
    }


def codes(snapshot: Snapshot) -> dict[str, list[str]]:
    """Device → why it is not given out."""
    return {each.device: [reason.code for reason in each.reasons] for each in availability(snapshot)}


def test_the_rows_of_the_table_do_not_overlap() -> None:
    """An id tells its kind, and a code of a fault means the same for each kind that has it."""
    prefixes = [prefix for kind in KINDS.values() for prefix in kind.id_prefixes]

    assert not [(one, other) for one in prefixes for other in prefixes if one != other and one.startswith(other)]
    for kind in KINDS.values():
        assert all(FAULTS.entries[code] == entry for code, entry in kind.faults.entries.items())
        assert all(kind_of(f"{prefix}x") is kind for prefix in kind.id_prefixes)


@pytest.mark.parametrize("kind", PLAIN_KINDS.values(), ids=PLAIN_KINDS)
def test_a_plain_kind_is_healthy_again_when_its_faults_are_gone(kind: Kind) -> None:
    """No probe could tell more, so it has no fault that waits for one."""
    entries = kind.faults.entries.values()

    assert {each.clear_when for each in entries} == {"no-longer-seen"}
    assert {each.detected_by for each in entries} == {"look"}
    assert not kind.recovers_by_probe


def test_a_device_is_offered_and_given_with_its_node() -> None:
    node = told(WITH_GPU, seen(kvm()))

    assert healths(node) == {GPU: {"GPU-0": True}, KVM: {"device-node:kvm": True}}
    got = allocate(node, KVM, ["device-node:kvm"])
    assert [(each.host_path, each.container_path, each.permissions) for each in got.device_specs] == [
        ("/dev/kvm", "/dev/kvm", "rw")
    ]
    assert (got.env, got.mounts, got.cdi_devices) == ({}, (), ())
    assert not_ready_reason(told(WITH_GPU, seen(kvm()))) is not None  # its plugin is not registered


@pytest.mark.parametrize("strategy", ["cdi-cri", "cdi-annotations"])
def test_a_device_is_given_by_cdi_once_its_specification_is_on_disk(strategy: str) -> None:
    """Until then it is not, and the GPU beside it does not wait for it."""
    settings = Settings(device_list_strategy=(strategy,))  # type: ignore[arg-type]
    node = told(StatusChanged(CDI_FILES_PART, CdiFilesStatus("ok", "")), seen(kvm()), settings=settings)
    spec = desired_specs(node)["gpuplane.io/device-node"].spec

    assert spec is not None
    assert [(each.name, [n.path for n in each.container_edits.device_nodes]) for each in spec.devices] == [
        ("kvm", ["/dev/kvm"])
    ]
    assert codes(node) == {"device-node:kvm": ["cdi-not-written"]}
    stored = CdiFilesStatus("ok", "", fingerprints=spec_fingerprints([spec]))
    node = told(StatusChanged(CDI_FILES_PART, stored), before=node)
    got = allocate(node, KVM, ["device-node:kvm"])
    assert got.device_specs == ()
    assert ("gpuplane.io/device-node=kvm" in (*got.cdi_devices, *got.annotations.values())) is True


def test_a_held_device_stays_in_its_specification_after_it_is_gone() -> None:
    """Kubelet names it again whenever the container restarts."""
    kind = "gpuplane.io/device-node"
    settings = Settings(device_list_strategy=("cdi-cri",))
    node = told(StatusChanged(CDI_FILES_PART, CdiFilesStatus("ok", "")), seen(kvm(), kvm("b")), settings=settings)
    spec = desired_specs(node)[kind].spec
    assert spec is not None
    held = Allocation(KVM, ("device-node:b",), holder=PodRef.parse("ns/p/c"))
    gone = told(AllocationsListed((held,), 1.0), seen(), before=node)

    kept = desired_spec_of_file(gone, kind, spec)
    assert kept is not None
    assert [each.name for each in kept.devices] == ["b"]
    assert desired_spec_of_file(told(DevicesObserved(KIND, UNCOUNTED), before=node), kind, spec) == spec
    assert desired_spec_of_file(told(AllocationsListed((), 2.0), before=gone, at=3.0), kind, spec) is None


def test_a_device_without_its_node_is_unhealthy_until_the_node_is_back() -> None:
    node = told(WITH_GPU, seen(kvm("kvm", MISSING), kvm("b")))

    assert healths(node)[KVM] == {"device-node:b": True, "device-node:kvm": False}
    assert codes(node) == {"GPU-0": [], "device-node:b": [], "device-node:kvm": ["device-node-missing"]}
    with pytest.raises(RequestRefused, match="device-node-missing"):
        allocate(node, KVM, ["device-node:kvm"])
    condition = node_condition(node)
    assert condition is not None
    assert (condition.status, condition.reason) == ("True", "DeviceUnhealthy")
    [event] = node_events(event_states(told(WITH_GPU, seen(kvm(), kvm("b")))), event_states(node))
    assert (event.reason, event.devices) == ("DeviceUnhealthy", ("device-node:kvm",))

    assert all(healths(told(seen(kvm(), kvm("b")), before=node))[KVM].values())


def test_a_renamed_device_is_withheld_while_a_container_holds_it() -> None:
    node = told(seen(kvm(), kvm("b")), AllocateAnswered(KVM, ("device-node:kvm",)))
    renamed = told(seen(kvm(resource="virt"), kvm("b")), before=node)

    assert codes(renamed) == {"device-node:b": [], "device-node:kvm": ["held-as-other-resource"]}
    assert healths(told(AllocationsListed((), 50.0), before=renamed, at=60.0))["gpuplane.io/virt"] == {
        "device-node:kvm": True
    }


@pytest.mark.parametrize("name", ["kvm", "device-node:kvm", "all"])
def test_a_drained_device_is_given_to_nobody(name: str) -> None:
    """By each of its names. The drain survives a reboot, and the device that goes away and comes back."""
    node = told(WITH_GPU, seen(kvm(), kvm("b")))
    key = find_device(node, name)
    assert key is not None
    drained = told(DrainRequested(key, Drain(reason="repair")), before=node)

    assert codes(drained)["device-node:kvm"] == ["drained"]
    assert (codes(drained)["device-node:b"] == ["drained"]) == (name == "all")
    back = told(seen(), seen(kvm()), before=drained)
    assert codes(back)["device-node:kvm"] == ["drained"]
    ledger = adapt_to_new_boot(back.ledger, "another boot", 1e9, 5.0)
    assert codes(told(LedgerLoaded(ledger), WITH_GPU, seen(kvm())))["device-node:kvm"] == ["drained"]
    assert codes(told(DrainRequested(key, None), before=back))["device-node:kvm"] == []


def test_a_missing_driver_hides_no_other_kind() -> None:
    """Its fault is every GPU's, and no other device's."""
    node = told(WITHOUT_DRIVER, seen(kvm()))

    assert offer(node).waiting_reason == ""
    assert healths(node) == {KVM: {"device-node:kvm": True}}
    assert missing_kind_reasons(node).keys() == {"nvidia-gpu"}
    assert {each.device: each.state for each in health_with_parents(node)} == {
        "": "unhealthy",
        "device-node:kvm": "healthy",
    }
    assert healths(told(WITH_GPU, before=node)).keys() == {GPU, KVM}


def test_devices_that_cannot_be_counted_hide_no_gpu() -> None:
    """Those that were seen before stay, and are given out until the fault has lasted."""
    never = told(WITH_GPU, DevicesObserved(KIND, UNCOUNTED))
    assert healths(never) == {GPU: {"GPU-0": True}}
    assert missing_kind_reasons(never).keys() == {KIND}

    node = told(WITH_GPU, seen(kvm()), DevicesObserved(KIND, UNCOUNTED))
    assert healths(node) == {GPU: {"GPU-0": True}, KVM: {"device-node:kvm": True}}
    late = told(DevicesObserved(KIND, UNCOUNTED), before=node, at=40.0)
    assert healths(late) == {GPU: {"GPU-0": True}, KVM: {"device-node:kvm": False}}
    assert codes(late)["device-node:kvm"] == [UNCOUNTED_CODE]
    assert healths(told(seen(kvm()), before=late, at=41.0))[KVM] == {"device-node:kvm": True}
    [missing] = (each for each in metrics(late) if each.name == "gpuplane_kind_not_counted")
    assert [labels["kind"] for labels, _ in missing.series] == [KIND]


def test_the_agent_is_not_ready_before_the_gpus_are_observed() -> None:
    """A rollout must not go on because of a device node."""
    reason = not_ready_reason(told(seen(kvm())))
    assert reason is not None
    assert reason.code == "machine-not-observed"


@pytest.mark.parametrize(
    ("device", "code"),
    [
        (Device(id="a", kind=KIND), "device-invalid"),
        (Device(id="a::0", kind=KIND, device_nodes=("/dev/a",)), "device-invalid"),
        (kvm("-"), "device-invalid"),
        (Device(id="a", kind=KIND, device_nodes=("dev/a",)), "device-invalid"),
        (Device(id="a", kind=KIND, device_nodes=("/dev/../etc/a",)), "device-invalid"),
        (kvm(resource="Kvm"), "device-invalid"),
        (kvm(resource="a/b/c"), "device-invalid"),
        (Device(id="a", kind=KIND, device_nodes=("/dev/a",), attributes={"name": "x"}), "device-invalid"),
        (kvm(resource=GPU), "resource-of-other-kind"),
        (Device(id="mlx5_0", kind="rdma"), "kind-unknown"),
    ],
)
def test_what_cannot_be_offered_is_said(device: Device, code: str) -> None:
    """It keeps nothing else from being offered."""
    facts = seen(kvm("b")), DevicesObserved(device.kind, DeviceList(devices=(device, kvm("b"))))
    node = told(WITH_GPU, *(facts if device.kind != KIND else facts[1:]))

    assert healths(node).get(KVM) == {"device-node:b": True}
    assert healths(node)[GPU] == {"GPU-0": True}
    assert code in [each.code for each in offer(node).not_offered]


def test_an_agent_that_takes_over_judges_what_it_saw() -> None:
    """The ledger of the agent before it knows nothing of this."""
    standby = StatusChanged(KUBELET_LOCK_PART, TurnStatus("waiting", "another agent serves", turn="standby"))
    node = told(WITH_GPU, seen(kvm("kvm", MISSING)), standby)
    after = told(LedgerLoaded(Snapshot().ledger, previous_agent_ended=False), before=node)

    assert codes(after)["device-node:kvm"] == ["device-node-missing", "standby"]


def test_devices_of_one_numa_node_are_preferred() -> None:
    devices = [kvm(f"d{n}", numa=n % 2) for n in range(6)]
    node = told(seen(*devices))
    ids = [f"device-node:{each.id}" for each in devices]

    assert preferred_ids(node, KVM, ids, [], 3) == ("device-node:d0", "device-node:d2", "device-node:d4")
    assert preferred_ids(node, KVM, ids, ids[1:2], 2) == ("device-node:d1", "device-node:d3")
    assert preferred_ids(node, KVM, ids[:1], [], 3) == ("device-node:d0",)
    assert preferred_ids(node, KVM, ["nobody's"], ["nobody's"], 1) == ()


@given(st.permutations([kvm("a"), kvm("b", MISSING), kvm("c", resource="other"), Device(id="x", kind="rdma")]))
def test_the_order_of_an_observation_changes_nothing(devices: Iterable[Device]) -> None:
    plain = {
        KIND: DeviceList(devices=tuple(each for each in devices if each.kind == KIND)),
        "rdma": DeviceList(devices=tuple(each for each in devices if each.kind != KIND)),
    }
    resources, left = list_resources(None, Settings(), plain)

    assert [(each.name, [device.id for device in each.devices]) for each in resources] == [
        (KVM, ["device-node:a", "device-node:b"]),
        ("gpuplane.io/other", ["device-node:c"]),
    ]
    assert [each.device for each in left] == ["rdma:x"]


def test_a_kind_may_give_more_than_device_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """By kubelet and by CDI alike: here a variable and a mount."""
    mount = CdiMount(host_path="/opt/shells", container_path="/shells", options=("ro", "bind"))
    card = plain_kind(
        "card",
        resource_name=lambda device: f"example.com/{device.attributes['model']}",
        faults={},
        attributes=["model"],
        more_edits=lambda unit: ContainerEdits(env=(f"MODEL={dict(unit.attributes)['model']}",), mounts=(mount,)),
    )
    monkeypatch.setitem(cast(dict[str, Kind], PLAIN_KINDS), "card", card)
    device = Device(id="0000:3b:00.0", kind="card", device_nodes=("/dev/card0",), attributes={"model": "u250"})
    [each] = card.unit_resources(None, DeviceList(devices=(device,)), Settings())

    got = plain_response([each.unit], Settings(device_list_strategy=("envvar",)), each.resource)
    assert (each.resource, got.env) == ("example.com/u250", {"MODEL": "u250"})
    assert [spec.host_path for spec in got.device_specs] == ["/dev/card0"]
    assert [(m.host_path, m.container_path, m.read_only) for m in got.mounts] == [("/opt/shells", "/shells", True)]
    spec = build_plain_spec("card", [each.unit]).spec
    assert spec is not None
    assert [(one.name, one.container_edits.env) for one in spec.devices] == [("0000:3b:00.0", ("MODEL=u250",))]
