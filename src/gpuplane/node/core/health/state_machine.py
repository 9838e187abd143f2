"""The state machine of one device's health: a function of its record.

    healthy → suspect → unhealthy → probing → healthy

- A fault that observations show is suspect during its grace period; then it is confirmed. An event is confirmed at
  once; one with a grace period, when it occurs again.
- A confirmed fault ends once it is no longer seen and what clears it has happened. A fault that makes the device
  unhealthy also needs a recovery probe (`recovery.py`); a fault that only degrades it does not.
"""

from collections.abc import Iterator, Mapping

from gpuplane.base.text import Text
from gpuplane.node.core.health.context import HealthContext
from gpuplane.node.core.health.findings import (
    is_unhealthy,
    join_affected_pids,
    merge_repeated_event,
    replace_finding,
    unhealthy_findings,
)
from gpuplane.node.core.health.recovery import MAX_RELAPSES, PROBE_TIMEOUT, cleared_at, next_probe_at, schedule_probe
from gpuplane.node.model.health import NONFATAL, CatalogueEntry, DeviceRecord, Finding

MAX_EVENT_CODES = 64
"""Different events that are remembered of one device. The catalogue has twice as many, and no device has them all."""
SAME_EVENT_WINDOW = 1.0
"""Seconds within which the driver and the kernel log mean the same event."""
NOTE_FINDING_LIFETIME = 60.0
"""Seconds for which a note is remembered."""
RELAPSE_WINDOW = 3600.0
"""Seconds after a recovery within which the device relapses if it becomes unhealthy again."""


def apply_observed_faults(
    record: DeviceRecord,
    faults: Mapping[str, Text],
    context: HealthContext,
    now: float,
    *,
    observed_before: bool,
    others_hidden: bool,
) -> DeviceRecord:
    """The record after an observation that shows these faults (code → message).

    `observed_before`: an earlier observation did not show the new faults. Without one they get no grace period.
    `others_hidden`: a fault that is not shown may still be there.
    """
    findings = []
    for each in record.findings:
        if each.is_event:
            findings.append(each)
        elif each.code in faults:
            since = now if each.from_earlier_boot else each.since
            findings.append(each.but(last_seen=None, message=faults[each.code], since=since, from_earlier_boot=False))
        else:
            findings.append(each if others_hidden or each.last_seen is not None else each.but(last_seen=now))
    known = {each.code for each in findings if not each.is_event}
    for code, message in faults.items():
        if code not in known:
            findings.append(Finding(code=code, message=message, since=now, confirmed=not observed_before))
    return _record_relapse(record, record.but(findings=tuple(findings)), context, now)


def apply_event(record: DeviceRecord, event: Finding, context: HealthContext, now: float) -> DeviceRecord:
    """The record after an event: `event` is its finding if it occurred for the first time."""
    assert event.last_seen is not None
    same = _by_other_gravity(record, event)
    if same is not None and event.code.endswith(NONFATAL):
        return record
    if same is not None:
        counts = {code: n - (code == same.code) for code, n in record.fault_counts.items()}
        counts = {code: n for code, n in counts.items() if n}
        record = record.but(findings=tuple(each for each in record.findings if each != same), fault_counts=counts)
    old = next((each for each in record.findings if each.is_event and each.code == event.code), None)
    if old is not None and old.last_seen is not None and abs(event.last_seen - old.last_seen) < SAME_EVENT_WINDOW:
        pids = join_affected_pids(old, event)
        return replace_finding(record, old, old.but(pids=pids, holders=old.holders if not pids else ()))
    if event.code not in record.fault_counts and len(record.fault_counts) >= MAX_EVENT_CODES:
        return record  # no driver has so many: whoever writes the log has made them up
    counts = {**record.fault_counts, event.code: record.fault_counts.get(event.code, 0) + 1}
    record = record.but(fault_counts=dict(sorted(counts.items())))
    if record.last_recovered_at is not None and event.last_seen < record.last_recovered_at:
        return record  # heard of late: a probe that began after it found the device healthy
    grace_period = context.effective_entry(event.code).grace_period
    if old is None or old.last_seen is None:
        after = event.but(confirmed=not grace_period)
    else:
        confirmed = old.confirmed or not grace_period or event.last_seen - old.last_seen <= grace_period
        after = merge_repeated_event(old, event).but(confirmed=confirmed)
    return _record_relapse(record, replace_finding(record, old, after), context, now)


def _by_other_gravity(record: DeviceRecord, event: Finding) -> Finding | None:
    """The same event, as the driver's library told it without its gravity, or the kernel log with it; None: no such."""
    is_nonfatal, code = event.code.endswith(NONFATAL), event.code.removesuffix(NONFATAL)
    other = code if is_nonfatal else f"{code}{NONFATAL}"
    found = next((each for each in record.findings if each.is_event and each.code == other), None)
    if found is None or found.last_seen is None or event.last_seen is None:
        return None
    return found if abs(event.last_seen - found.last_seen) < SAME_EVENT_WINDOW else None


def has_no_pending_change(record: DeviceRecord) -> bool:
    """Whether neither time nor another context changes the record: most devices, most of the time."""
    return not record.findings and record.drain is None and record.probe is None


def apply_elapsed_time(record: DeviceRecord, context: HealthContext, now: float) -> DeviceRecord:
    """The record as time, and what has cleared its faults, change it."""
    drain = record.drain
    if drain is not None and drain.until is not None and drain.until <= now:
        record = record.but(drain=None)
    findings = tuple(_confirm_if_lasting(_with_last_seen_time(each), context, now) for each in record.findings)
    record = _record_relapse(record, record.but(findings=findings), context, now)
    kept = tuple(each for each in record.findings if not _is_expired(each, record, context, now))
    record = record.but(findings=kept)
    return schedule_probe(record, context, now)


def _with_last_seen_time(finding: Finding) -> Finding:
    """An event with its last time, which is missing in a file that somebody edited: then it is the time it began."""
    return finding.but(last_seen=finding.since) if finding.is_event and finding.last_seen is None else finding


def _confirm_if_lasting(finding: Finding, context: HealthContext, now: float) -> Finding:
    """The finding; confirmed if observations have shown it for its grace period."""
    if finding.confirmed or finding.last_seen is not None:
        return finding
    lasting = now >= finding.since + context.effective_entry(finding.code).grace_period
    return finding.but(confirmed=True) if lasting else finding


def _record_relapse(before: DeviceRecord, after: DeviceRecord, context: HealthContext, now: float) -> DeviceRecord:
    """The record after new findings: counts a relapse if they make a healthy device unhealthy, and drops the result of
    a probe that was requested before them."""
    if not is_unhealthy(after, context):
        return after
    if is_unhealthy(before, context):
        shown = {each.code for each in unhealthy_findings(before, context) if each.last_seen is None}
        new = (each for each in unhealthy_findings(after, context) if each.last_seen is None)
        worse = any(each.code not in shown for each in new)
        return after.but(probe=None) if worse and after.probe is not None else after
    relapsed = after.last_recovered_at is not None and now - after.last_recovered_at < RELAPSE_WINDOW
    return after.but(relapses=min(after.relapses + 1, MAX_RELAPSES) if relapsed else 0, probe=None)


def _is_expired(finding: Finding, record: DeviceRecord, context: HealthContext, now: float) -> bool:
    """Whether a fault has ended without a probe: it was never confirmed, or does not make the device unhealthy."""
    entry = context.effective_entry(finding.code)
    if finding.from_earlier_boot:
        return context.settings is not None and entry.clear_when != "restored-by-admin"
    return (until := _expiry_time(finding, entry, record, context)) is not None and until <= now


def _expiry_time(finding: Finding, entry: CatalogueEntry, record: DeviceRecord, context: HealthContext) -> float | None:
    """When a fault that needs no probe is forgotten; None for one that lasts, or needs a probe."""
    if finding.last_seen is None:
        return None
    if entry.severity == "note":
        return finding.last_seen + NOTE_FINDING_LIFETIME
    if not finding.confirmed:
        return finding.last_seen + max(context.probe_period, entry.grace_period if finding.is_event else 0.0)
    if entry.severity == "degraded" and (cleared := cleared_at(finding, record, context)) is not None:
        return max(cleared, finding.last_seen + context.probe_period)
    return None


def due_times(record: DeviceRecord, context: HealthContext) -> Iterator[float]:
    """The times at which time alone may change the record."""
    if record.drain is not None and record.drain.until is not None:
        yield record.drain.until
    for each in record.findings:
        entry = context.effective_entry(each.code)
        if each.from_earlier_boot:
            continue
        if each.last_seen is None and not each.confirmed:
            yield each.since + entry.grace_period
        if (until := _expiry_time(each, entry, record, context)) is not None:
            yield until
    if is_unhealthy(record, context):
        if record.probe is not None and record.probe.requested_at is not None:
            yield record.probe.requested_at + PROBE_TIMEOUT
        elif (due := next_probe_at(record, context)) is not None:
            yield due
