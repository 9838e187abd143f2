"""The devices of an inspection: those that the driver counts, in its order; then those that are held and not there."""

from collections.abc import Iterator, Mapping, Sequence

from gpuplane.base.text import Text, join
from gpuplane.node.core.allocations import held_allocations
from gpuplane.node.core.availability import availability
from gpuplane.node.core.health.absence import last_listing
from gpuplane.node.core.health.context import device_record, devices_of_kind
from gpuplane.node.core.kinds.table import PLAIN_KINDS, kind_of
from gpuplane.node.core.kinds.unitresource import plain_unit_id
from gpuplane.node.core.reports.inspection.clock import Clock
from gpuplane.node.core.shares import unit_of
from gpuplane.node.model.control import NodeState
from gpuplane.node.model.health import NODE_RECORD_KEY, DeviceHealth
from gpuplane.node.model.inspection import Device, Holder, Id, Reason
from gpuplane.node.model.machine import NVIDIA_GPU, Gpu, MigDevice
from gpuplane.node.model.machine import Device as PlainDevice
from gpuplane.node.model.snapshot import Allocation
from gpuplane.node.model.views import OfferedDevice

MIB = 1 << 20
PLAIN_ABSENT_TEXT = "the node no longer has it"
ABSENT_TEXT, GPUS_NOT_COUNTED_TEXT = (
    "the driver does not list this device any more",
    "the GPUs have not been counted yet",
)


def inspect_devices(state: NodeState, device_health: Sequence[DeviceHealth], clock: Clock) -> tuple[Device, ...]:
    """Every GPU and MIG device of which anything is known; `stand` is how they stand."""
    return tuple(_DeviceInspector(state, device_health, clock).inspect_all_devices())


def node_health(device_health: Sequence[DeviceHealth]) -> DeviceHealth:
    """How the node stands: what ails the driver ails every device."""
    well = DeviceHealth(device=NODE_RECORD_KEY, index="", state="healthy")
    return next((each for each in device_health if each.device == NODE_RECORD_KEY), well)


class _DeviceInspector:
    """One picture, sorted by devices: by their indices, for two may bear one UUID. What is not counted has no index."""

    def __init__(self, state: NodeState, device_health: Sequence[DeviceHealth], clock: Clock) -> None:
        self.clock, self.snapshot = clock, state.snapshot
        gpus = state.snapshot.machine.gpus if state.snapshot.machine else None
        self.gpus, self.gpus_are_known = gpus or (), gpus is not None
        self.health_by_device = {
            each.index or each.device: each for each in device_health if each.device != NODE_RECORD_KEY
        }
        self.reasons_by_device = {
            each.index or each.device: each.reasons for each in availability(state.snapshot, state.offer)
        }
        self.not_offered_by_device = {each.index or each.device: each.reason for each in state.offer.not_offered}
        self.plain_devices = {
            plain_unit_id(kind, each.id): each
            for kind in state.snapshot.devices
            for each in devices_of_kind(state.snapshot, kind)
        }
        self.offered_by_device: dict[str, tuple[str, list[OfferedDevice]]] = {}
        for resource in state.offer.resources:
            for each in resource.devices:
                self.offered_by_device.setdefault(each.unit.index or each.unit.id, (resource.name, []))[1].append(each)
        self.allocations_by_unit = _allocations_by_unit(held_allocations(state.snapshot))

    def inspect_all_devices(self) -> Iterator[Device]:
        there = set()
        for gpu in self.gpus:
            there.add(gpu.uuid)
            yield self.inspect_gpu_without_mig_devices(gpu)
            for part in gpu.mig_devices:
                there.add(part.uuid)
                yield self.inspect_mig_device(gpu, part)
        for unit_id, plain in sorted(self.plain_devices.items()):
            there.add(unit_id)
            yield self.inspect_plain_device(unit_id, plain)
        there.update(kind.record_key for kind in PLAIN_KINDS.values())
        known = (each.device for each in self.health_by_device.values())
        for uuid in dict.fromkeys((*known, *(self.allocations_by_unit or {}))):
            if uuid not in there:
                yield self.inspect_absent_device(uuid)

    def inspect_gpu_without_mig_devices(self, gpu: Gpu) -> Device:
        return self.add_health_and_holders(
            _device_with_identity_only(str(gpu.index), gpu.uuid, gpu).but(memory_bytes=gpu.memory_mib * MIB or None),
            self.not_offered_by_device.get(str(gpu.index), ""),
        )

    def inspect_mig_device(self, gpu: Gpu, mig_device: MigDevice) -> Device:
        why = self.not_offered_by_device.get(f"{gpu.index}:{mig_device.mig_index}") or self.not_offered_by_device.get(
            str(gpu.index), ""
        )
        if not why and str(gpu.index) in self.offered_by_device:
            why = f"it is a part of GPU {gpu.index}, which is offered as a whole"
        return self.add_health_and_holders(
            _device_with_identity_only(f"{gpu.index}:{mig_device.mig_index}", mig_device.uuid, gpu).but(
                mig_profile=mig_device.profile, memory_bytes=mig_device.memory_mib * MIB or None
            ),
            why,
        )

    def inspect_plain_device(self, unit_id: str, plain: PlainDevice) -> Device:
        device = _device_with_identity_only("", unit_id, Gpu(index=-1, pci=plain.pci, numa=plain.numa))
        return self.add_health_and_holders(device.but(kind=plain.kind), self.not_offered_by_device.get(unit_id, ""))

    def inspect_absent_device(self, uuid: str) -> Device:
        record = device_record(self.snapshot, uuid)
        identity = _device_with_identity_only("", uuid, Gpu(index=-1, pci=record.pci))
        kind = kind_of(uuid)
        identity = identity.but(kind=kind.name if kind is not None else NVIDIA_GPU, last_seen=last_listing(record))
        device = self.add_health_and_holders(identity, "")
        if device.state != "healthy":
            return device
        return device.but(
            state="absent",
            reason=(f"a container holds this device, but {self.why_absent(device)}"),
        )

    def why_absent(self, device: Device) -> Text:
        if device.kind != NVIDIA_GPU:
            return PLAIN_ABSENT_TEXT
        return ABSENT_TEXT if self.gpus_are_known else GPUS_NOT_COUNTED_TEXT

    def add_health_and_holders(self, device: Device, not_offered: Text) -> Device:
        key = device.index or device.uuid
        against, (resource, ids) = self.reasons_by_device.get(key, ()), self.offered_by_device.get(key, ("", []))
        well = DeviceHealth(device=device.uuid, index=device.index, state="healthy")
        nameless = well.but(state="unhealthy", reason=join("; ", (each.text for each in against)))
        found = self.health_by_device.get(device.index or device.uuid, well if device.uuid else nameless)
        return device.but(
            resource=resource,
            not_offered="" if resource else not_offered,
            ids=tuple(Id(id=each.id, healthy=not each.reasons, reason=each.unavailable_reason) for each in ids),
            reasons=tuple(Reason(each.kind, each.code, each.part, each.text) for each in against),
            holders=None
            if self.allocations_by_unit is None
            else tuple(map(self.inspect_holder, self.allocations_by_unit.get(device.uuid, ()))),
            **health_fields(found, self.clock),
        )

    def inspect_holder(self, allocation: Allocation) -> Holder:
        holder = allocation.holder
        return Holder(
            namespace=holder.namespace,
            pod=holder.name or holder.uid,
            pod_uid=holder.uid,
            container=holder.container,
            resource=allocation.resource,
            ids=allocation.devices,
            since=self.clock.to_utc(allocation.granted_at) if allocation.granted_at else None,
            claim=allocation.claim,
        )


def _allocations_by_unit(allocations: tuple[Allocation, ...] | None) -> Mapping[str, list[Allocation]] | None:
    """Unit → what containers hold of it; None while kubelet has not said."""
    if allocations is None:
        return None
    held: dict[str, list[Allocation]] = {}
    for each in allocations:
        units: dict[str, list[str]] = {}
        for id in each.devices:
            units.setdefault(unit_of(id), []).append(id)
        for unit, ids in units.items():
            held.setdefault(unit, []).append(each.but(devices=tuple(ids)))
    return held


def _device_with_identity_only(index: str, uuid: str, gpu: Gpu) -> Device:
    return Device(
        index=index,
        uuid=uuid,
        gpu=gpu.uuid,
        model=gpu.model,
        mig_profile="",
        pci=gpu.pci,
        numa=gpu.numa,
        memory_bytes=None,
        resource="",
        not_offered="",
        ids=(),
        reasons=(),
        holders=None,
    )


def health_fields(health: DeviceHealth, clock: Clock) -> dict[str, object]:
    """The fields that a diagnosis fills of a `Device` or the `Node`."""
    return {
        "state": health.state,
        "code": health.code,
        "reason": health.reason,
        "since": clock.to_utc_or_none(health.since),
        "until": clock.to_utc_or_none(health.until),
        "clear_when_text": health.clear_when_text,
        "advice": health.advice,
        "fault_counts": health.fault_counts,
    }
