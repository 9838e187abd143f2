"""The devices of an inspection: those that the driver counts, in its order; then those that are held and not there."""

from collections.abc import Iterator, Mapping, Sequence

from gpuplane.core.availability import availability
from gpuplane.core.reports.inspection.clock import Clock
from gpuplane.core.shares import unit_of
from gpuplane.model.control import NodeState
from gpuplane.model.health import NODE, DeviceHealth
from gpuplane.model.inspection import Device, Holder, Id, Reason
from gpuplane.model.machine import Gpu, MigDevice
from gpuplane.model.snapshot import Allocation
from gpuplane.model.text import Text, join
from gpuplane.model.views import OfferedDevice

MIB = 1 << 20
GONE, UNSEEN = "the driver does not count it", "the GPUs have not been counted yet"


def devices(picture: NodeState, stand: Sequence[DeviceHealth], clock: Clock) -> tuple[Device, ...]:
    """Every GPU and MIG device of which anything is known; `stand` is how they stand."""
    return tuple(_Devices(picture, stand, clock).all())


def node(stand: Sequence[DeviceHealth]) -> DeviceHealth:
    """How the node stands: what ails the driver ails every device."""
    well = DeviceHealth(device=NODE, index="", state="healthy")
    return next((each for each in stand if each.device == NODE), well)


class _Devices:
    """One picture, sorted by devices: by their indices, for two may bear one UUID. What is not counted has no index."""

    def __init__(self, picture: NodeState, stand: Sequence[DeviceHealth], clock: Clock) -> None:
        self.clock = clock
        gpus = picture.snapshot.machine.gpus if picture.snapshot.machine else None
        self.gpus, self.counted = gpus or (), gpus is not None
        self.diagnoses = {each.index or each.device: each for each in stand if each.device != NODE}
        self.against = {each.index: each.reasons for each in availability(picture.snapshot, picture.offer)}
        self.left = {each.index: each.reason for each in picture.offer.not_offered}
        self.offered: dict[str, tuple[str, list[OfferedDevice]]] = {}
        for resource in picture.offer.resources:
            for each in resource.devices:
                self.offered.setdefault(each.unit.index, (resource.name, []))[1].append(each)
        self.held = _held(picture.snapshot.allocations)

    def all(self) -> Iterator[Device]:
        there = set()
        for gpu in self.gpus:
            there.add(gpu.uuid)
            yield self.gpu(gpu)
            for part in gpu.mig_devices:
                there.add(part.uuid)
                yield self.part(gpu, part)
        known = (each.device for each in self.diagnoses.values())
        for uuid in dict.fromkeys((*known, *(self.held or {}))):
            if uuid not in there:
                yield self.absent(uuid)

    def gpu(self, gpu: Gpu) -> Device:
        return self.device(
            _blank(str(gpu.index), gpu.uuid, gpu).but(memory_bytes=gpu.memory_mib * MIB or None),
            self.left.get(str(gpu.index), ""),
        )

    def part(self, gpu: Gpu, part: MigDevice) -> Device:
        why = self.left.get(f"{gpu.index}:{part.slot}") or self.left.get(str(gpu.index), "")
        if not why and str(gpu.index) in self.offered:
            why = f"it is offered with all of GPU {gpu.index}"
        return self.device(
            _blank(f"{gpu.index}:{part.slot}", part.uuid, gpu).but(
                mig_profile=part.profile, memory_bytes=part.memory_mib * MIB or None
            ),
            why,
        )

    def absent(self, uuid: str) -> Device:
        device = self.device(_blank("", uuid, Gpu(index=-1)), "")
        if device.state != "healthy":
            return device
        return device.but(state="absent", reason=f"a container holds it, and {GONE if self.counted else UNSEEN}")

    def device(self, device: Device, not_offered: Text) -> Device:
        against = self.against.get(device.index, ())
        resource, ids = self.offered.get(device.index, ("", []))
        well = DeviceHealth(device=device.uuid, index=device.index, state="healthy")
        nameless = well.but(state="unhealthy", reason=join("; ", (each.text for each in against)))
        found = self.diagnoses.get(device.index or device.uuid, well if device.uuid else nameless)
        return device.but(
            resource=resource,
            not_offered="" if resource else not_offered,
            ids=tuple(Id(id=each.id, healthy=not each.reasons, reason=each.unavailable) for each in ids),
            reasons=tuple(Reason(each.kind, each.code, each.part, each.text) for each in against),
            holders=None if self.held is None else tuple(map(self.holder, self.held.get(device.uuid, ()))),
            **ail(found, self.clock),
        )

    def holder(self, allocation: Allocation) -> Holder:
        holder = allocation.holder
        return Holder(
            namespace=holder.namespace,
            pod=holder.name or holder.uid,
            pod_uid=holder.uid,
            container=holder.container,
            resource=allocation.resource,
            ids=allocation.devices,
            since=self.clock.time(allocation.granted_at) if allocation.granted_at else None,
        )


def _held(allocations: tuple[Allocation, ...] | None) -> Mapping[str, list[Allocation]] | None:
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


def _blank(index: str, uuid: str, gpu: Gpu) -> Device:
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


def ail(found: DeviceHealth, clock: Clock) -> dict[str, object]:
    """The fields that a diagnosis fills of a `Device` or the `Node`."""
    return {
        "state": found.state,
        "code": found.code,
        "reason": found.reason,
        "since": clock.perhaps(found.since),
        "until": clock.perhaps(found.until),
        "ends": found.cleared_by,
        "advice": found.advice,
        "counts": found.fault_counts,
    }
