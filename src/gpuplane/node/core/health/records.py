"""The records of all devices of a node: how time and a reboot change them.

A fault belongs to NVIDIA's driver (the node's record), to a GPU, to a MIG device, to another device, or to a whole kind
of these. A fault of a GPU also affects its MIG devices and its shares: views derive that, it is not written into their
records.
"""

from collections.abc import Mapping

from gpuplane.node.core.health import state_machine
from gpuplane.node.core.health.context import HealthContext
from gpuplane.node.core.kinds.table import kind_of
from gpuplane.node.model.health import NODE_RECORD_KEY, DeviceRecord, HealthRecords


def without_empty_records(health: HealthRecords, devices: Mapping[str, DeviceRecord]) -> HealthRecords:
    """The records, with these of the devices in the place of those before; the same object if none has changed.

    Records that say nothing are left out.
    """
    kept = {key: record for key, record in sorted(devices.items()) if record.but(absent=False) != DeviceRecord()}
    return health if kept == health.devices else health.but(devices=kept)


def have_no_pending_change(health: HealthRecords) -> bool:
    """Whether time changes no record, whatever the context."""
    return all(state_machine.has_no_pending_change(record) for record in health.devices.values())


def apply_elapsed_time(health: HealthRecords, context: HealthContext, now: float) -> HealthRecords:
    """The records as time changes them."""
    devices = {
        key: record
        if record == DeviceRecord()
        else state_machine.apply_elapsed_time(record, _context_of_record(key, context), now)
        for key, record in health.devices.items()
    }
    return without_empty_records(health, devices)


def _context_of_record(key: str, context: HealthContext) -> HealthContext:
    """The context of one record: neither the node nor a plain kind, nor a device of one, is ever probed."""
    return context.but(can_probe=False) if key == NODE_RECORD_KEY or _is_of_plain_kind(key) else context


def _is_of_plain_kind(key: str) -> bool:
    return (kind := kind_of(key)) is not None and not kind.recovers_by_probe


def next_due_time(health: HealthRecords, context: HealthContext) -> float | None:
    """When time alone changes a record next; None: never."""
    times = (
        at
        for key, record in health.devices.items()
        for at in state_machine.due_times(record, _context_of_record(key, context))
    )
    return min(times, default=None)


def mark_gpus_as_reset(devices: Mapping[str, DeviceRecord], at: float) -> dict[str, DeviceRecord]:
    """The records after the driver was loaded: that resets every GPU."""
    return {
        key: each
        if key == NODE_RECORD_KEY or _is_of_plain_kind(key)
        else each.but(last_reset_at=max(each.last_reset_at, at))
        for key, each in devices.items()
    }


def apply_reboot(health: HealthRecords, wall_clock: float, now: float) -> HealthRecords:
    """The records after a reboot, at `wall_clock` seconds since 1970 and `now` of the new boot.

    Drains end by the wall clock. A fault is forgotten once the configuration says that no operator has to clear it.
    Counts, and what was learnt about the machine, belong to the boot before.
    """
    devices = {key: _after_reboot(record, wall_clock, now) for key, record in health.devices.items()}
    devices[NODE_RECORD_KEY] = DeviceRecord(drain=devices.get(NODE_RECORD_KEY, DeviceRecord()).drain)
    return without_empty_records(HealthRecords(), devices)


def _after_reboot(record: DeviceRecord, wall_clock: float, now: float) -> DeviceRecord:
    drain = record.drain
    if drain is not None:
        until = None if drain.until_wall_clock is None else now + drain.until_wall_clock - wall_clock
        drain = drain.but(since=None, until=until)
    findings = tuple(
        each.but(since=0.0, last_seen=0.0, from_earlier_boot=True, pids=(), holders=())
        for each in record.findings
        if each.confirmed
    )
    return DeviceRecord(
        drain=drain, findings=findings, pci=record.pci, absent=record.absent, last_listed_at=record.last_listed_at
    )
