"""How an unhealthy device becomes healthy again: when its faults are cleared, and the recovery probes after that.

- Once all faults that make a device unhealthy are cleared, and have been for one probe period, a probe is requested: a
  new process observes the GPU. If it finds nothing wrong, the device is healthy again; else it is probed again later.
- A device that becomes unhealthy soon after a recovery has to stay without faults twice as long, each time.
"""

from collections.abc import Collection

from gpuplane.base.text import Text
from gpuplane.node.core.health.context import HealthContext
from gpuplane.node.core.health.findings import is_unhealthy, unhealthy_findings
from gpuplane.node.model.health import DeviceRecord, Finding, ProbeState

MAX_RELAPSES = 7
"""The most relapses in a row that are counted: a device waits for 128 probe periods at the most."""
MAX_PROBE_PAUSE = 60.0
"""The most seconds between two probes that hang or crash, however many did; between others it is two periods."""
PROBE_TIMEOUT = 120.0
"""Seconds after which a probe without a result has failed."""


def cleared_at(finding: Finding, record: DeviceRecord, context: HealthContext) -> float | None:
    """When a fault was or will be cleared, if that is known without a probe; None: more has to happen first."""
    if finding.last_seen is None:
        return finding.since if needs_probe(record, context) else None
    if record.declared_repaired_at >= finding.last_seen:
        return record.declared_repaired_at
    entry = context.effective_entry(finding.code)
    match entry.clear_when:
        case "no-longer-seen":
            return finding.last_seen
        case "process-ended":
            return (
                finding.last_seen if _all_holders_ended(finding, context) else _reset_time_after_fault(finding, record)
            )
        case "gpu-reset":
            return _reset_time_after_fault(finding, record)
        case "time-passed":
            return finding.last_seen + entry.clear_after
        case "node-rebooted" | "restored-by-admin":
            return None


def needs_probe(record: DeviceRecord, context: HealthContext) -> bool:
    """Whether observations leave the device out, so that only a probe can tell how it is."""
    return any(
        each.last_seen is None and each.code in context.catalogue.codes_that_need_probe for each in record.findings
    )


def _reset_time_after_fault(finding: Finding, record: DeviceRecord) -> float | None:
    """When the device was reset after the fault; a reset ends every process that ran on the device."""
    return record.last_reset_at if finding.last_seen is not None and record.last_reset_at >= finding.last_seen else None


def _all_holders_ended(finding: Finding, context: HealthContext) -> bool:
    """Whether no container that the fault affected is known to run. Only a probe can tell about processes."""
    return not finding.holders or (
        context.holders is not None and not any(map(context.holds_any_device, finding.holders))
    )


def affected_pids(record: DeviceRecord, context: HealthContext) -> Collection[int]:
    """The processes that were affected by what makes this device unhealthy. A probe fails while one of them runs."""
    faults = unhealthy_findings(record, context)
    return {pid for each in faults if _reset_time_after_fault(each, record) is None for pid in each.pids}


def schedule_probe(record: DeviceRecord, context: HealthContext, now: float) -> DeviceRecord:
    """The record with a probe requested, if it is time for one; a probe without a result fails."""
    if not is_unhealthy(record, context):
        return record.but(probe=None) if record.probe is not None else record
    probe = record.probe or ProbeState()
    if not context.can_probe:
        return record if probe.requested_at is None else record.but(probe=probe.but(requested_at=None))
    if probe.requested_at is not None:
        if now < probe.requested_at + PROBE_TIMEOUT:
            return record
        return record_failed_probe(record, "the probe got no answer in time", context, now, hung_or_crashed=True)
    due = next_probe_at(record, context)
    if due is None or due > now:
        return record
    return record.but(probe=probe.but(requested_at=now))


def next_probe_at(record: DeviceRecord, context: HealthContext) -> float | None:
    """When the device may be probed; None: more has to happen first."""
    if record.absent or not context.can_probe or _would_next_probe_fail(record, context):
        return None
    quiet_time = context.probe_period * 2 ** min(record.relapses, MAX_RELAPSES)  # a file that was edited may say more
    times = [record.probe.not_before if record.probe else 0.0]
    for each in unhealthy_findings(record, context):
        cleared = cleared_at(each, record, context)
        if cleared is None:
            return None
        times.append(cleared + quiet_time)
    return max(times)


def _would_next_probe_fail(record: DeviceRecord, context: HealthContext) -> bool:
    """Whether a probe has failed, and observations show a fault for which the next one would fail too."""
    if record.probe is None or not record.probe.failure or needs_probe(record, context):
        return False
    shown = (each.code for each in record.findings if each.last_seen is None)
    blocking = context.catalogue.codes_that_block_recovery
    return any(code in blocking and context.effective_entry(code).severity != "note" for code in shown)


def record_failed_probe(
    record: DeviceRecord, failure: Text, context: HealthContext, now: float, *, hung_or_crashed: bool, code: str = ""
) -> DeviceRecord:
    """The record after a probe that did not find the device healthy. `code`: of the fault that it found; "" for none.

    A probe that hung or crashed may do so again: the pause before the next one becomes longer.
    """
    tries = record.probe.failed_tries if record.probe else 0
    pause = context.probe_period * 2 ** min(tries, 16)
    longest = max(MAX_PROBE_PAUSE, context.probe_period) if hung_or_crashed else 2 * context.probe_period
    not_before = now + min(pause, longest)
    probe = ProbeState(not_before=not_before, failed_tries=tries + 1, failure=failure, failure_code=code)
    return record.but(probe=probe)


def record_passed_probe(record: DeviceRecord, context: HealthContext, now: float) -> DeviceRecord:
    """The record after a probe that found the device healthy. If faults occurred meanwhile, it is probed again."""
    due = next_probe_at(record, context)
    if due is None or due > now:
        return record.but(probe=None)
    cleared = set(unhealthy_findings(record, context))
    remaining = tuple(each for each in record.findings if each not in cleared)
    assert record.probe is not None
    return record.but(findings=remaining, probe=None, last_recovered_at=record.probe.requested_at)
