"""The health of each device, for people: the state, the reason, what clears it and what to do."""

from collections.abc import Collection, Mapping

from gpuplane.base.text import Text, group_by_key, join
from gpuplane.kubernetes.contracts.nodegpus import State
from gpuplane.node.core.commands import RESTORE, RESUME, command_line
from gpuplane.node.core.devicenames import describe_devices
from gpuplane.node.core.health.absence import ABSENT_CODE
from gpuplane.node.core.health.context import (
    HealthContext,
    devices_of_kind,
    health_context,
    health_records,
    with_health_inputs_alone,
)
from gpuplane.node.core.health.drains import direct_drain_reason, drain_reason, plain_drain_reason
from gpuplane.node.core.health.findings import makes_unhealthy
from gpuplane.node.core.health.reasons import describe_failed_probe
from gpuplane.node.core.health.recovery import cleared_at, next_probe_at
from gpuplane.node.core.kinds.table import PLAIN_KINDS, kind_of
from gpuplane.node.core.kinds.unitresource import plain_unit_id
from gpuplane.node.core.lookup import accepted_device_names
from gpuplane.node.core.observation import NOT_OBSERVED_FAULT
from gpuplane.node.core.requests import driver_release_reason
from gpuplane.node.core.view import view, without_allocations
from gpuplane.node.model.health import NODE_RECORD_KEY, ClearWhen, DeviceHealth, DeviceRecord, Finding
from gpuplane.node.model.snapshot import Snapshot

TEXT_BY_CLEAR_WHEN: Mapping[ClearWhen, str] = {
    "no-longer-seen": "when the agent does not observe the fault any more",
    "process-ended": "when the affected program ends",
    "gpu-reset": "after a reset of the GPU, or with {}",
    "node-rebooted": "after a reboot, or with {}",
    "time-passed": "after some time without a new fault of this kind",
    "restored-by-admin": "with {}",
}
"""What clears a fault, for people, with a place for the command that restores the device."""

PRESENCE_TEXT = "when the driver lists the GPU again, or with {}"
"""The same of a GPU that is absent: nothing of it can be cleared before."""

CLEAR_AFTER_PROBE_TEXT = (
    "when the device has had no new fault for long enough and a recovery probe then finds it healthy"
)
"""What is missing, for people, where all faults are cleared."""

CLEAR_WHEN_EASIEST_FIRST: tuple[ClearWhen, ...] = (
    "no-longer-seen",
    "time-passed",
    "process-ended",
    "gpu-reset",
    "node-rebooted",
    "restored-by-admin",
)
"""What clears a fault, the hardest to have last."""

STATES_BEST_FIRST: tuple[State, ...] = ("healthy", "degraded", "suspect", "withheld", "drained", "probing", "unhealthy")
"""The states, the worst last."""


def health_without_parents(snapshot: Snapshot) -> tuple[DeviceHealth, ...]:
    """The health of the node if something is wrong with it, of each device in the driver's order, and of absent ones.

    Each by its own faults: those of the node are not repeated for each GPU, see `health_with_parents`.
    """
    any_finding = any(record.findings for record in health_records(snapshot).devices.values())
    return _health_by_relevant_fields(snapshot if any_finding else without_allocations(snapshot))


@view
def _health_by_relevant_fields(snapshot: Snapshot) -> tuple[DeviceHealth, ...]:
    """The same. What containers hold matters for findings alone, so after most grants it is asked the same again."""
    return _derive_health_without_parents(with_health_inputs_alone(snapshot))


@view
def _derive_health_without_parents(snapshot: Snapshot) -> tuple[DeviceHealth, ...]:
    """The same, of a snapshot that has only the fields which it depends on.

    Of devices that are alike the commands name no device, so that they are shown together.
    """
    context = health_context(snapshot)
    found = _each_health(snapshot, context)
    alike = group_by_key(((each.state, each.reason), n) for n, each in enumerate(found) if each.clear_when_text)
    several = {n for _, group in alike if len(group) > 1 for n in group}
    general = _each_health(snapshot, context.but(names_devices=False)) if several else found
    return tuple(general[n] if n in several else each for n, each in enumerate(found))


def _each_health(snapshot: Snapshot, context: HealthContext) -> tuple[DeviceHealth, ...]:
    """The same, each device by itself."""
    records = health_records(snapshot).devices
    found = []
    node = records.get(NODE_RECORD_KEY)
    if node is not None:
        found.append(
            _with_driver_release_end(
                _health_of_record(NODE_RECORD_KEY, "", _with_driver_release_reason(node, snapshot), context, ""),
                snapshot,
            )
        )
    present = {NODE_RECORD_KEY}
    for gpu in snapshot.gpus:
        if not gpu.uuid:
            continue
        present.add(gpu.uuid)
        record = records.get(gpu.uuid, DeviceRecord())
        found.append(_health_of_record(gpu.uuid, str(gpu.index), record, context, drain_reason(snapshot, gpu)))
        for device in gpu.mig_devices:
            present.add(device.uuid)
            record = records.get(device.uuid, DeviceRecord())
            drained = direct_drain_reason(snapshot, device.uuid, accepted_device_names(gpu, device))
            found.append(_health_of_record(device.uuid, f"{gpu.index}:{device.mig_index}", record, context, drained))
    for kind in PLAIN_KINDS.values():
        if (of_kind := records.get(kind.record_key)) is not None:
            found.append(_health_of_record(kind.record_key, "", of_kind, context, ""))
        present.add(kind.record_key)
        for other in devices_of_kind(snapshot, kind.name):
            key = kind.unit_id(other.id)
            drained = plain_drain_reason(snapshot, kind, other)
            found.append(_health_of_record(key, "", records.get(key, DeviceRecord()), context, drained))
            present.add(key)
    for kind_name in sorted(snapshot.devices.keys() - PLAIN_KINDS.keys()):  # nothing is known of their faults
        keys = (plain_unit_id(kind_name, other.id) for other in devices_of_kind(snapshot, kind_name))
        found += (DeviceHealth(device=key, index="", state="healthy") for key in sorted(keys))
    for uuid, record in records.items():
        if uuid not in present and (record.findings or record.drain):
            found.append(_health_of_record(uuid, "", record, context, record.drain.reason if record.drain else ""))
    return tuple(found)


def _with_driver_release_reason(node: DeviceRecord, snapshot: Snapshot) -> DeviceRecord:
    """The node's record; while the driver is released, it says who requested that."""
    reason = driver_release_reason(snapshot)
    message = f"the driver is released: {reason}"
    findings = (each.but(message=message) if each.code == NOT_OBSERVED_FAULT.code else each for each in node.findings)
    return node.but(findings=tuple(findings)) if reason else node


def _with_driver_release_end(node: DeviceHealth, snapshot: Snapshot) -> DeviceHealth:
    """The node's health; while the driver is released, it says what ends the release and when."""
    release = snapshot.ledger.release
    if not driver_release_reason(snapshot) or node.code != NOT_OBSERVED_FAULT.code:
        return node
    return node.but(
        clear_when_text="when the annotation gpuplane.io/driver-release of the Node object is removed"
        if release is None
        else "when its time is over, or with " + command_line(RESUME, snapshot.state_dir),
        until=None if release is None else release.until,
        advice="",
    )


def health_with_parents(snapshot: Snapshot) -> tuple[DeviceHealth, ...]:
    """The health of each device with the faults of its surroundings: the node's for a GPU, the GPU's for a MIG device.

    A fault of the surroundings names where it is; how it is cleared, and the advice, are shown only there.
    """
    own = health_without_parents(snapshot)
    by_index = {each.index: each for each in own if each.index or each.device == NODE_RECORD_KEY}
    by_kind = {
        each.device: each for each in own if any(each.device == kind.record_key for kind in PLAIN_KINDS.values())
    }
    return tuple(_with_parent_health(each, by_index, by_kind) for each in own)


def _with_parent_health(
    device: DeviceHealth, health_by_index: Mapping[str, DeviceHealth], health_by_kind: Mapping[str, DeviceHealth]
) -> DeviceHealth:
    """A device's health, or that of its GPU or its node, or of its kind, if that is worse."""
    kind = kind_of(device.device)
    around = (
        (health_by_kind.get(kind.record_key),)
        if kind is not None and kind.name in PLAIN_KINDS
        else map(health_by_index.get, dict.fromkeys(("", device.index.partition(":")[0])))
    )
    not_healthy = (
        each for each in around if each is not None and each.device != device.device and _severity_rank(each)
    )
    surroundings = sorted(not_healthy, key=_severity_rank, reverse=True)
    if device.device == NODE_RECORD_KEY or not surroundings:
        return device
    theirs = [_describe_surroundings(each) for each in surroundings]
    worst, own = surroundings[0], [device.reason] if device.reason else []
    if _severity_rank(worst) <= _severity_rank(device):
        return device.but(reason=join("; ", [*own, *theirs]))
    if device.state == "drained":
        own = [f"drained: {device.reason}"]
    return worst.but(
        device=device.device,
        index=device.index,
        reason=join("; ", [*theirs, *own]),
        clear_when_text="",
        advice="",
        fault_counts=device.fault_counts,
    )


def _describe_surroundings(health: DeviceHealth) -> Text:
    """What a device's GPU, node or kind adds to its reason: a fault, or a drain."""
    name = f"GPU {health.index}" if health.index else describe_devices([(health.device, "")])
    if health.device == NODE_RECORD_KEY:
        name = "the node"
    if health.state == "drained":
        return f"{name} is drained: {health.reason}"
    return f"fault of {name}: {health.code or health.reason}"


def _severity_rank(health: DeviceHealth) -> int:
    return STATES_BEST_FIRST.index(health.state)


def _health_of_record(
    uuid: str, index: str, record: DeviceRecord, context: HealthContext, drain_text: Text
) -> DeviceHealth:
    """The health of one device by its record. `drain_text`: why it is drained; "" if it is not."""
    unhealthy = [each for each in record.findings if makes_unhealthy(each, context)]
    others = [each for each in record.findings if each not in unhealthy]
    others = [each for each in others if context.effective_entry(each.code).severity != "note"]
    degrading = [each for each in others if each.confirmed]
    suspect = [
        each for each in others if not each.confirmed and context.effective_entry(each.code).severity == "unhealthy"
    ]
    healthy = DeviceHealth(device=uuid, index=index, state="healthy", fault_counts=record.fault_counts)
    if drain_text and not unhealthy:
        return healthy.but(
            state="drained",
            reason=drain_text,
            clear_when_text=_describe_what_ends_drain(uuid, record, context),
            since=record.drain.since if record.drain else None,
            until=record.drain.until if record.drain else None,
            advice="end the pods on the device, then repair it",
        )
    for state, findings in (("unhealthy", unhealthy), ("suspect", suspect), ("degraded", degrading)):
        if findings:
            return _with_findings(healthy.but(state=state), findings, record, context, drain_text)
    return healthy


def _with_findings(
    health: DeviceHealth, findings: Collection[Finding], record: DeviceRecord, context: HealthContext, drain_text: Text
) -> DeviceHealth:
    """The health of a device in a state that these findings decide."""
    deciding = min(findings, key=lambda each: _finding_sort_key(each, record, context))
    entry, unhealthy = context.effective_entry(deciding.code), health.state == "unhealthy"
    failed_probe = describe_failed_probe(record, findings) if unhealthy else ()
    reasons = [f"{each.code}: {each.message}" for each in findings]
    probing = unhealthy and next_probe_at(record, context) is not None
    ends = PRESENCE_TEXT if deciding.code == ABSENT_CODE else TEXT_BY_CLEAR_WHEN[entry.clear_when]
    since = None if any(each.from_earlier_boot for each in findings) else min(each.since for each in findings)
    last_seen = deciding.last_seen if entry.clear_when == "time-passed" else None
    return health.but(
        state="probing" if probing else health.state,
        since=since,
        until=None if last_seen is None else last_seen + entry.clear_after,
        code=deciding.code,
        reason=join("; ", [*reasons, *failed_probe, *([f"drained: {drain_text}"] if drain_text else [])]),
        clear_when_text=CLEAR_AFTER_PROBE_TEXT
        if probing
        else ends.format(context.command_line(RESTORE, health.device)),
        advice=context.advice(entry, health.device),
    )


def _finding_sort_key(finding: Finding, record: DeviceRecord, context: HealthContext) -> tuple[bool, int, int, str]:
    """Sorts findings: first one that is not cleared, then the hardest to clear, then the first in the catalogue."""
    position = context.catalogue.sort_rank(finding.code)
    hardness = CLEAR_WHEN_EASIEST_FIRST.index(context.effective_entry(finding.code).clear_when)
    is_cleared = cleared_at(finding, record, context) is not None
    return is_cleared, -hardness, position, finding.code


def _describe_what_ends_drain(key: str, record: DeviceRecord, context: HealthContext) -> Text:
    """What ends the drain of the device of a record, for people."""
    if record.drain is None:
        return (
            f"with {context.command_line(RESTORE, NODE_RECORD_KEY)}"
            if context.is_node_drained
            else "when the annotation gpuplane.io/drain of the Node object is removed"
        )
    return f"with {context.command_line(RESTORE, key)}" + (
        ", or when its time is over" if record.drain.until is not None else ""
    )
