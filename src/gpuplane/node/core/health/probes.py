"""Recovery probes: which are requested, and what the result of one does to the records."""

from collections.abc import Iterable, Mapping

from gpuplane.base.text import Text
from gpuplane.node.core.health import recovery
from gpuplane.node.core.health.context import HealthContext, health_records
from gpuplane.node.core.health.observations import count_links, describe_links, describe_new_memory_errors
from gpuplane.node.core.health.records import without_empty_records
from gpuplane.node.model.facts import ProbeFinished
from gpuplane.node.model.health import DeviceRecord, HealthRecords
from gpuplane.node.model.machine import Fault, Machine
from gpuplane.node.model.snapshot import Snapshot


def requested_probe_times(snapshot: Snapshot) -> Mapping[str, float]:
    """The probes that are requested: UUID of a GPU → when."""
    parents = snapshot.machine.mig_parents if snapshot.machine else {}
    requested: dict[str, float] = {}
    for key, record in health_records(snapshot).devices.items():
        if record.probe is not None and record.probe.requested_at is not None:
            gpu = parents.get(key, key)
            requested[gpu] = max(record.probe.requested_at, requested.get(gpu, 0.0))
    return requested


def apply_probe_result(
    health: HealthRecords, probe: ProbeFinished, machine: Machine | None, context: HealthContext, now: float
) -> tuple[HealthRecords, bool]:
    """The records after a probe, and whether it found a device healthy: then it is the newest observation of that GPU.

    It answers every request for that GPU and its MIG devices that is not newer than the one for which it was begun.
    """
    devices, any_healthy = dict(health.devices), False
    known = (machine.gpu(probe.gpu.uuid) if machine else None) or probe.gpu
    seen = {device.uuid: device.faults for device in probe.gpu.mig_devices}
    for key in (probe.gpu.uuid, *(device.uuid for device in known.mig_devices)):
        record = devices.get(key, DeviceRecord())
        requested_at = record.probe.requested_at if record.probe else None
        if requested_at is None or requested_at > probe.requested_at:
            continue
        faults = (*probe.gpu.faults, *seen.get(key, ()))
        code, problem = _probe_failure(devices.get(probe.gpu.uuid, DeviceRecord()), probe, faults, context)
        problem = problem or _describe_running_processes(record, probe.pids, context)
        if not problem and key not in (probe.gpu.uuid, *seen):
            problem = "the device is missing"
        if problem:
            stuck = any(fault.code in context.catalogue.codes_that_need_probe for fault in faults)
            devices[key] = recovery.record_failed_probe(record, problem, context, now, hung_or_crashed=stuck, code=code)
        else:
            devices[key] = recovery.record_passed_probe(record, context, now)
        any_healthy |= not problem
    return without_empty_records(health, devices), any_healthy


def _probe_failure(
    record: DeviceRecord, probe: ProbeFinished, faults: Iterable[Fault], context: HealthContext
) -> tuple[str, Text]:
    """(code of the fault, why the probe does not find the device healthy); ("", "") if it does."""
    for fault in faults:
        severity = context.effective_entry(fault.code).severity
        blocking = fault.code in context.catalogue.codes_that_block_recovery
        if severity == "unhealthy" or (severity == "degraded" and blocking):
            return fault.code, f"{fault.code}: {fault.message}"
    links = count_links(probe.gpu)
    if (
        not probe.gpu.mig_enabled
        and links < record.max_active_nvlinks
        and context.effective_entry("nvlink-down").severity != "note"
    ):
        return "nvlink-down", f"nvlink-down: {describe_links(links, record.max_active_nvlinks)}"
    return "", describe_new_memory_errors(record, probe.gpu)


def _describe_running_processes(record: DeviceRecord, pids: Iterable[int], context: HealthContext) -> Text:
    """Which affected processes still run on the device; "" for none."""
    running = sorted(set(recovery.affected_pids(record, context)) & set(pids))
    return f"affected process {', '.join(map(str, running))} still runs on the device" if running else ""
