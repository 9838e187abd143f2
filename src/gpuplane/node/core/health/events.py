"""What a fault event does to the records: which devices it affects, and that each event counts once."""

from collections.abc import Iterable, Iterator, Mapping

from gpuplane.node.core.health import state_machine
from gpuplane.node.core.health.context import HealthContext
from gpuplane.node.core.health.holders import holders_of_units, unit_ids
from gpuplane.node.core.health.records import mark_gpus_as_reset, without_empty_records
from gpuplane.node.core.kinds.nvidia.gpu import GPU, is_mig_uuid
from gpuplane.node.core.kinds.table import kind_of
from gpuplane.node.model.facts import FaultOccurred
from gpuplane.node.model.health import DeviceRecord, Finding, HealthRecords
from gpuplane.node.model.machine import Machine, MigDevice
from gpuplane.node.model.snapshot import Allocation

DRIVER_LOADED_CODE = "driver-loaded"
"""The code of the kernel log's line that the driver was loaded: that resets every GPU."""


def apply_fault_event(
    health: HealthRecords,
    event: FaultOccurred,
    machine: Machine | None,
    allocations: Iterable[Allocation] | None,
    context: HealthContext,
    now: float,
) -> HealthRecords:
    """The records after an event. One of the kernel log counts once, however often it is read."""
    if event.kernel_log_number is not None:
        if event.kernel_log_number <= health.last_kernel_log_number:
            return health
        health = health.but(last_kernel_log_number=event.kernel_log_number)
    if event.code == DRIVER_LOADED_CODE:
        return without_empty_records(health, mark_gpus_as_reset(health.devices, event.at))
    devices = dict(health.devices)
    for key, units in _affected_devices(event, machine, health, context):
        finding = Finding(
            code=event.code,
            message=event.message or context.effective_entry(event.code).title,
            since=event.at,
            last_seen=event.at,
            is_event=True,
            pids=event.pids,
            holders=() if event.pids else holders_of_units(units, allocations),
        )
        record = devices.get(key) or _new_record_with_reset_time(units, devices)
        devices[key] = state_machine.apply_event(record, finding, context, now)
    return without_empty_records(health, devices)


def _new_record_with_reset_time(unit_uuids: set[str], devices: Mapping[str, DeviceRecord]) -> DeviceRecord:
    """The record of a device that had none: a MIG device was reset with its GPU."""
    resets = (devices[each].last_reset_at for each in unit_uuids if each in devices)
    return DeviceRecord(last_reset_at=max(resets, default=DeviceRecord().last_reset_at))


def _affected_devices(
    event: FaultOccurred, machine: Machine | None, health: HealthRecords, context: HealthContext
) -> Iterator[tuple[str, set[str]]]:
    """(UUID, ids of the units that a holder of it can hold) of each device that an event affects.

    These are MIG devices, or a whole GPU. A GPU that is not counted now is known by its record. Its MIG devices no
    longer exist, so an event of one of them affects nothing. An event that names no GPU affects all with NVLinks.
    """
    gpus = [gpu for gpu in (machine.gpus if machine else None) or () if gpu.uuid]
    if not event.gpu:  # of an NVSwitch, which does not name those that are behind it
        yield from ((gpu.uuid, unit_ids(gpu)) for gpu in gpus if gpu.links)
        return
    gpu = next((gpu for gpu in gpus if event.gpu in (gpu.uuid, gpu.pci)), None)
    within_instance = context.effective_entry(event.code).scope in ("process", "instance")
    if gpu is None:
        recorded = (
            (key, each.pci) for key, each in health.devices.items() if kind_of(key) is GPU and not is_mig_uuid(key)
        )
        if not (within_instance and event.gpu_instance is not None):
            yield from ((key, {key}) for key, pci in recorded if event.gpu in (key, pci))
        return
    if within_instance and gpu.mig_enabled:
        affected = [device for device in gpu.mig_devices if _event_affects_mig_device(event, device)]
        if affected:
            yield from ((device.uuid, {device.uuid, gpu.uuid}) for device in affected)
            return
    yield gpu.uuid, unit_ids(gpu)


def _event_affects_mig_device(event: FaultOccurred, device: MigDevice) -> bool:
    """Whether an event names the GPU instance of a MIG device, and its compute instance or none."""
    return event.gpu_instance == device.gpu_instance and event.compute_instance in (None, device.compute_instance)
