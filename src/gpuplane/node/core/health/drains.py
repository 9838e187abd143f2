"""Drains: which devices are given to no container because a person requested it."""

from collections.abc import Collection

from gpuplane.base.text import Text
from gpuplane.node.core.health.context import HealthContext, device_record
from gpuplane.node.core.health.observations import observe_gpu
from gpuplane.node.core.health.records import without_empty_records
from gpuplane.node.core.kinds.kind import Kind
from gpuplane.node.core.lookup import (
    ALL_DEVICES_NAME,
    accepted_device_names,
    normalize_device_name,
    plain_device_names,
)
from gpuplane.node.core.requests import node_requests
from gpuplane.node.model.facts import DrainRequested
from gpuplane.node.model.health import NODE_RECORD_KEY, DeviceRecord, HealthRecords
from gpuplane.node.model.machine import Device, Gpu, Machine, MigDevice
from gpuplane.node.model.snapshot import Snapshot


def apply_drain_request(
    health: HealthRecords, request: DrainRequested, machine: Machine | None, context: HealthContext, now: float
) -> HealthRecords:
    """The records after a person drains or restores a device.

    Who restores a GPU accepts the NVLinks that are active now as all that it has; if the driver cannot be asked, those
    of the next observation. Who restores a device that is absent has taken it out: of it only that moment is kept, so
    that an older event which is read later does not count if it comes back.
    """
    record = health.devices.get(request.device_uuid, DeviceRecord()).but(drain=request.drain)
    if request.drain is None and record.absent:
        taken_out = DeviceRecord(declared_repaired_at=now)
        return without_empty_records(health, {**health.devices, request.device_uuid: taken_out})
    if request.drain is None:
        record = record.but(declared_repaired_at=now, max_active_nvlinks=0, relapses=0, probe=None)
        gpu = machine.gpu(request.device_uuid) if machine else None
        if gpu is not None and context.can_probe:
            record = observe_gpu(record, gpu, (), context, now, observed_before=True)
    return without_empty_records(health, {**health.devices, request.device_uuid: record})


def drain_reason(snapshot: Snapshot, gpu: Gpu, device: MigDevice | None = None) -> Text:
    """Why a GPU, or a MIG device of it, is drained; "" if it is not.

    The command line, our Node object, or a record that was not understood may have drained it, its GPU or the node.
    """
    whole = direct_drain_reason(snapshot, NODE_RECORD_KEY, ()) or direct_drain_reason(
        snapshot, gpu.uuid, (ALL_DEVICES_NAME, *accepted_device_names(gpu))
    )
    return whole or (direct_drain_reason(snapshot, device.uuid, accepted_device_names(gpu, device)) if device else "")


def plain_drain_reason(snapshot: Snapshot, kind: Kind, device: Device) -> Text:
    """Why a device of a plain kind is drained; "" if it is not."""
    return direct_drain_reason(snapshot, NODE_RECORD_KEY, ()) or direct_drain_reason(
        snapshot, kind.unit_id(device.id), (ALL_DEVICES_NAME, *plain_device_names(kind, device))
    )


def direct_drain_reason(snapshot: Snapshot, key: str, accepted_names: Collection[str]) -> Text:
    """Why a device itself is drained: by its record, or by one of these names on our Node object; "" if it is not."""
    drain = device_record(snapshot, key).drain
    if drain is not None:
        return drain.reason
    drains = node_requests(snapshot).drain_reasons.items()
    return next((reason for name, reason in drains if normalize_device_name(name) in accepted_names), "")
