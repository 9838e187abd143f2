"""What an observation of the machine does to the records of its devices."""

from collections.abc import Iterable, Mapping

from gpuplane.base.text import Text
from gpuplane.kubernetes.podref import PodRef
from gpuplane.node.core.health import absence, state_machine
from gpuplane.node.core.health.context import HealthContext
from gpuplane.node.core.health.findings import is_unhealthy
from gpuplane.node.core.health.holders import holders_of_units, unit_ids
from gpuplane.node.core.health.records import mark_gpus_as_reset, without_empty_records
from gpuplane.node.core.kinds.table import PLAIN_KINDS, kind_of
from gpuplane.node.core.observation import NOT_OBSERVED_FAULT
from gpuplane.node.model.health import NODE_RECORD_KEY, DeviceRecord, Finding, HealthRecords
from gpuplane.node.model.machine import DeviceList, Fault, Gpu, Machine
from gpuplane.node.model.snapshot import Allocation

DRIVER_NOT_LOADED_CODE = "driver-not-loaded"
"""The code of the fault that observations show while the driver is not loaded."""


def apply_observation(
    health: HealthRecords,
    before: Machine | None,
    machine: Machine,
    gpu_list_is_complete: bool,
    allocations: Iterable[Allocation] | None,
    context: HealthContext,
    now: float,
    wall_clock: float | None = None,
) -> HealthRecords:
    """The records after an observation.

    `machine`: the machine after the observation is merged. `gpu_list_is_complete`: whether the observation counted the
    GPUs. `wall_clock`: `now` in seconds since 1970.
    """
    known = _device_uuids(before)
    devices = dict(health.devices)
    observed_before = before is not None and not any(fault.code == NOT_OBSERVED_FAULT.code for fault in before.faults)
    node, faults = devices.pop(NODE_RECORD_KEY, DeviceRecord()), _messages_by_code(machine.faults)
    if any(each.code == DRIVER_NOT_LOADED_CODE for each in node.findings) and DRIVER_NOT_LOADED_CODE not in faults:
        devices = mark_gpus_as_reset(devices, now)
    devices[NODE_RECORD_KEY] = _observe_without_probe(node, faults, context, now, observed_before=observed_before)
    if not gpu_list_is_complete:
        return without_empty_records(health, devices)
    for gpu in machine.gpus or ():
        _observe_gpu_and_mig_devices(devices, gpu, known, allocations, context, now)
        if gpu.uuid:
            devices[gpu.uuid] = absence.with_last_listing(devices[gpu.uuid], wall_clock)
    new = _device_uuids(machine) - known - health.devices.keys()
    absence.mark_absent_devices(devices, machine, known, new, context, now, wall_clock)
    return without_empty_records(health, devices)


def apply_devices_observation(
    health: HealthRecords,
    kind_name: str,
    before: DeviceList | None,
    observed: DeviceList,
    context: HealthContext,
    now: float,
) -> HealthRecords:
    """The records after an observation of the devices of a plain kind."""
    kind = PLAIN_KINDS.get(kind_name)
    if kind is None:
        return health
    devices = dict(health.devices)
    faults = _messages_by_code(observed.faults)
    record = devices.get(kind.record_key, DeviceRecord())
    devices[kind.record_key] = _observe_without_probe(record, faults, context, now, observed_before=before is not None)
    if observed.devices is None:
        return without_empty_records(health, devices)
    known = {device.id for device in (before.devices if before else None) or ()}
    present = {kind.record_key}
    for device in observed.devices:
        key, faults = kind.unit_id(device.id), _messages_by_code(device.faults)
        record, was_known = devices.get(key, DeviceRecord()), device.id in known
        devices[key] = _observe_without_probe(record, faults, context, now, observed_before=was_known)
        present.add(key)
    for key in devices.keys() - present:
        if kind_of(key) is kind:
            devices[key] = DeviceRecord(drain=devices[key].drain, absent=True)
    return without_empty_records(health, devices)


def _observe_without_probe(
    record: DeviceRecord, faults: Mapping[str, Text], context: HealthContext, now: float, *, observed_before: bool
) -> DeviceRecord:
    """The record, after an observation, of the node or of a device that needs no probe: what is not seen is over.

    Its faults count from the first of them, while one follows another.
    """
    unhealthy = (each.since for each in record.findings if context.effective_entry(each.code).severity == "unhealthy")
    since = min(unhealthy, default=None)
    with_grace_period = observed_before and not is_unhealthy(record, context)
    shown = state_machine.apply_observed_faults(
        record, faults, context, now, observed_before=with_grace_period, others_hidden=False
    )
    findings = (
        each.but(since=each.since if since is None else since) for each in shown.findings if each.last_seen is None
    )
    return DeviceRecord(findings=tuple(findings), drain=record.drain)


def _observe_gpu_and_mig_devices(
    devices: dict[str, DeviceRecord],
    gpu: Gpu,
    known_uuids: set[str],
    allocations: Iterable[Allocation] | None,
    context: HealthContext,
    now: float,
) -> None:
    """Puts the records of a GPU and of its MIG devices into `devices`. `known_uuids`: what was observed before."""
    if gpu.uuid:
        record = absence.without_absence(devices.get(gpu.uuid, DeviceRecord()))
        holders = holders_of_units(unit_ids(gpu), allocations)
        devices[gpu.uuid] = observe_gpu(record, gpu, holders, context, now, observed_before=gpu.uuid in known_uuids)
    reset_at = devices.get(gpu.uuid, DeviceRecord()).last_reset_at
    for device in gpu.mig_devices:
        record, faults = devices.get(device.uuid, DeviceRecord()), _messages_by_code(device.faults)
        if faults or device.uuid in devices:
            record = state_machine.apply_observed_faults(
                record.but(last_reset_at=max(record.last_reset_at, reset_at)),
                faults,
                context,
                now,
                observed_before=device.uuid in known_uuids,
                others_hidden=_has_fault_hiding_others((*gpu.faults, *device.faults), context),
            )
            devices[device.uuid] = record.but(absent=False, pci=gpu.pci)


def observe_gpu(
    record: DeviceRecord,
    gpu: Gpu,
    holders: tuple[PodRef, ...],
    context: HealthContext,
    now: float,
    *,
    observed_before: bool,
) -> DeviceRecord:
    """The record of a GPU after an observation. `holders`: the containers that hold it."""
    faults, others_hidden = _messages_by_code(gpu.faults), _has_fault_hiding_others(gpu.faults, context)
    links, links_known = count_links(gpu), not others_hidden and not gpu.mig_enabled
    if links_known and links < record.max_active_nvlinks:
        faults.setdefault("nvlink-down", describe_links(links, record.max_active_nvlinks))
    if record.absent or (_was_reset(record, faults, context) and not others_hidden):
        record = record.but(last_reset_at=now)
    record = state_machine.apply_observed_faults(
        record, faults, context, now, observed_before=observed_before, others_hidden=others_hidden
    )
    if not others_hidden and (message := describe_new_memory_errors(record, gpu)):
        event = Finding(
            code="ecc-uncorrectable", message=message, since=now, last_seen=now, is_event=True, holders=holders
        )
        record = state_machine.apply_event(record, event, context, now)
    keep_errors = gpu.uncorrected_errors is None or others_hidden
    return record.but(
        absent=False,
        pci=gpu.pci or record.pci,
        uncorrected_errors=record.uncorrected_errors if keep_errors else gpu.uncorrected_errors,
        max_active_nvlinks=max(links, record.max_active_nvlinks) if links_known else record.max_active_nvlinks,
    )


def _was_reset(record: DeviceRecord, faults: Mapping[str, Text], context: HealthContext) -> bool:
    """Whether faults are gone that only a reset clears, and none of that kind is left."""
    codes = context.catalogue.codes_cleared_only_by_reset
    shown = (each.code for each in record.findings if not each.is_event and each.last_seen is None)
    return any(code not in faults for code in shown if code in codes) and faults.keys().isdisjoint(codes)


def describe_new_memory_errors(record: DeviceRecord, gpu: Gpu) -> Text:
    """How many uncorrectable memory errors are new; "" for none. In MIG mode "": only an XID tells the instance."""
    known = record.uncorrected_errors
    if gpu.uncorrected_errors is None or known is None or gpu.uncorrected_errors <= known or gpu.mig_enabled:
        return ""
    return f"{gpu.uncorrected_errors - known} more uncorrectable memory errors"


def count_links(gpu: Gpu) -> int:
    """How many of its NVLinks are active."""
    return sum(link.nvlink_count for link in gpu.links)


def describe_links(active: int, most: int) -> Text:
    """How many of the NVLinks are active."""
    return f"{active} of {most} NVLinks are active"


def _has_fault_hiding_others(faults: Iterable[Fault], context: HealthContext) -> bool:
    """Whether one of these faults hides whether others are there."""
    return any(fault.code in context.catalogue.codes_that_hide_others for fault in faults)


def _messages_by_code(faults: Iterable[Fault]) -> dict[str, Text]:
    """code → message; the messages of one code are joined."""
    messages: dict[str, Text] = {}
    for fault in faults:
        known = messages.get(fault.code)
        messages[fault.code] = fault.message if known is None else f"{known}; {fault.message}"
    return messages


def _device_uuids(machine: Machine | None) -> set[str]:
    """UUIDs of the GPUs and MIG devices of a machine."""
    gpus = (machine.gpus if machine else None) or ()
    mig_devices = (device.uuid for gpu in gpus for device in gpu.mig_devices)
    return {uuid for uuid in (*(gpu.uuid for gpu in gpus), *mig_devices) if uuid}
