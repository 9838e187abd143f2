"""The findings of one device: which of them make it unhealthy, and how an event is added to them."""

from collections.abc import Iterator

from gpuplane.kubernetes.podref import merge_all_pod_refs
from gpuplane.node.core.health.context import HealthContext
from gpuplane.node.model.health import DeviceRecord, Finding

MAX_AFFECTED_PIDS_OR_HOLDERS = 64
"""The most processes, and the most containers, that are remembered of one fault."""


def makes_unhealthy(finding: Finding, context: HealthContext) -> bool:
    """Whether a finding alone makes its device unhealthy."""
    return finding.confirmed and context.effective_entry(finding.code).severity == "unhealthy"


def unhealthy_findings(record: DeviceRecord, context: HealthContext) -> Iterator[Finding]:
    """The findings that make a device unhealthy."""
    for each in record.findings:
        if makes_unhealthy(each, context):
            yield each


def is_unhealthy(record: DeviceRecord, context: HealthContext) -> bool:
    """Whether one of its findings makes the device unhealthy."""
    return any(True for _ in unhealthy_findings(record, context))


def replace_finding(record: DeviceRecord, old: Finding | None, new: Finding) -> DeviceRecord:
    """The record with a new finding in the place of an old one, or behind all others."""
    if old is None:
        return record.but(findings=(*record.findings, new))
    return record.but(findings=tuple(new if each is old else each for each in record.findings))


def join_affected_pids(old: Finding, event: Finding) -> tuple[int, ...]:
    """The processes that two occurrences of a fault affected."""
    return tuple(dict.fromkeys((*old.pids, *event.pids)))[-MAX_AFFECTED_PIDS_OR_HOLDERS:]


def merge_repeated_event(old: Finding, event: Finding) -> Finding:
    """The finding of an event that occurred once more. The event may be the older one, if it was heard of late."""
    assert old.last_seen is not None
    assert event.last_seen is not None
    if old.from_earlier_boot:
        return event
    return old.but(
        since=min(old.since, event.since),
        last_seen=max(old.last_seen, event.last_seen),
        pids=join_affected_pids(old, event),
        holders=merge_all_pod_refs((*old.holders, *event.holders))[-MAX_AFFECTED_PIDS_OR_HOLDERS:],
    )
