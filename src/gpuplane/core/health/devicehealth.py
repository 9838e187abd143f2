"""The health of each device, for people: the state, the reason, what clears it and what to do."""

from collections.abc import Collection, Mapping

from gpuplane.core.health.context import HealthContext, health_context, health_records
from gpuplane.core.health.drains import drain_reason, own_drain_reason
from gpuplane.core.health.findings import makes_unhealthy
from gpuplane.core.health.reasons import describe_failed_probe
from gpuplane.core.health.recovery import cleared_at, next_probe_at
from gpuplane.core.lookup import device_names
from gpuplane.core.observation import NOT_OBSERVED
from gpuplane.core.requests import driver_release_reason, node_requests
from gpuplane.core.view import view
from gpuplane.model.config import Config
from gpuplane.model.health import NODE, ClearedBy, DeviceHealth, DeviceRecord, Finding, State
from gpuplane.model.snapshot import Ledger, Snapshot, StoredLedger
from gpuplane.model.status import DRIVER, Statuses
from gpuplane.model.text import Text, join

CLEARED_BY_TEXTS = {
    "nothing": "it is over once it is no longer seen",
    "process": "the end of the program that it befell",
    "reset": "a reset of the GPU, or gpuplane health restore",
    "reboot": "a reboot, or gpuplane health restore",
    "time": "time without another",
    "operator": "gpuplane health restore",
}
"""What clears a fault, for people."""

CLEARED_BY_PROBE = "a recovery probe that finds it well, once it was calm for long enough"
"""What is missing, for people, where all faults are cleared."""

EASIEST_CLEARED_FIRST: tuple[ClearedBy, ...] = ("nothing", "time", "process", "reset", "reboot", "operator")
"""What clears a fault, the hardest to have last."""

BEST_STATE_FIRST: tuple[State, ...] = ("healthy", "degraded", "suspect", "withheld", "drained", "probing", "unhealthy")
"""The states, the worst last."""


def own_health(snapshot: Snapshot) -> tuple[DeviceHealth, ...]:
    """The health of the node if something is wrong with it, of each device in the driver's order, and of absent ones.

    Each by its own faults: those of the node are not repeated for each GPU, see `overall_health`.
    """
    driver = snapshot.status.of(DRIVER)
    return _own_health(
        snapshot.but(
            generation=0,
            config=Config(settings=snapshot.config.settings, node_requests=node_requests(snapshot)),
            status=Statuses({} if driver is None else {DRIVER: driver}),
            ledger=Ledger(release=snapshot.ledger.release, health=snapshot.ledger.health),
            stored=StoredLedger(),
            checkpoint_rewrite=0,
        )
    )


@view
def _own_health(snapshot: Snapshot) -> tuple[DeviceHealth, ...]:
    """The same, of a snapshot that has only the fields which it depends on."""
    records, context = health_records(snapshot).devices, health_context(snapshot)
    found = []
    node = records.get(NODE)
    if node is not None:
        found.append(_with_release(_judge(NODE, "", _with_release_reason(node, snapshot), context, ""), snapshot))
    present = {NODE}
    for gpu in snapshot.gpus:
        if not gpu.uuid:
            continue
        present.add(gpu.uuid)
        record = records.get(gpu.uuid, DeviceRecord())
        found.append(_judge(gpu.uuid, str(gpu.index), record, context, drain_reason(snapshot, gpu)))
        for device in gpu.mig_devices:
            present.add(device.uuid)
            record = records.get(device.uuid, DeviceRecord())
            drained = own_drain_reason(snapshot, device.uuid, device_names(gpu, device))
            found.append(_judge(device.uuid, f"{gpu.index}:{device.mig_index}", record, context, drained))
    for uuid, record in records.items():
        if uuid not in present and (record.findings or record.drain):
            found.append(_judge(uuid, "", record, context, record.drain.reason if record.drain else ""))
    return tuple(found)


def _with_release_reason(node: DeviceRecord, snapshot: Snapshot) -> DeviceRecord:
    """The node's record; while the driver is released, it says who requested that."""
    reason = driver_release_reason(snapshot)
    message = f"the driver is released: {reason}"
    findings = (each.but(message=message) if each.code == NOT_OBSERVED.code else each for each in node.findings)
    return node.but(findings=tuple(findings)) if reason else node


def _with_release(node: DeviceHealth, snapshot: Snapshot) -> DeviceHealth:
    """The node's health; while the driver is released, it says what ends the release and when."""
    release = snapshot.ledger.release
    if not driver_release_reason(snapshot) or node.code != NOT_OBSERVED.code:
        return node
    return node.but(
        cleared_by="the annotation of our Node object" if release is None else "gpuplane driver take, or its time",
        until=None if release is None else release.until,
        advice="",
    )


def overall_health(snapshot: Snapshot) -> tuple[DeviceHealth, ...]:
    """The health of each device with the faults of its surroundings: the node's for a GPU, the GPU's for a MIG device.

    A fault of the surroundings names where it is; how it is cleared, and the advice, are shown only there.
    """
    own = own_health(snapshot)
    by_index = {each.index: each for each in own if each.index or each.device == NODE}
    return tuple(_within_surroundings(each, by_index) for each in own)


def _within_surroundings(device: DeviceHealth, by_index: Mapping[str, DeviceHealth]) -> DeviceHealth:
    """A device's health, or that of its GPU or its node if that is worse."""
    around = map(by_index.get, dict.fromkeys(("", device.index.partition(":")[0])))
    not_healthy = (each for each in around if each is not None and each.device != device.device and _badness(each))
    surroundings = sorted(not_healthy, key=_badness, reverse=True)
    if device.device == NODE or not surroundings:
        return device
    theirs: list[Text] = [
        f"as {f'GPU {each.index}' if each.index else 'the node'}: {each.code or each.reason}" for each in surroundings
    ]
    worst, own = surroundings[0], [device.reason] if device.reason else []
    if _badness(worst) <= _badness(device):
        return device.but(reason=join("; ", [*own, *theirs]))
    return worst.but(
        device=device.device,
        index=device.index,
        reason=join("; ", [*theirs, *own]),
        cleared_by="",
        advice="",
        fault_counts=device.fault_counts,
    )


def _badness(health: DeviceHealth) -> int:
    return BEST_STATE_FIRST.index(health.state)


def _judge(uuid: str, index: str, record: DeviceRecord, context: HealthContext, drained: Text) -> DeviceHealth:
    """The health of one device by its record. `drained`: why it is drained; "" if it is not."""
    unhealthy = [each for each in record.findings if makes_unhealthy(each, context)]
    others = [each for each in record.findings if each not in unhealthy]
    others = [each for each in others if context.entry(each.code).severity != "note"]
    degrading = [each for each in others if each.confirmed]
    suspect = [each for each in others if not each.confirmed and context.entry(each.code).severity == "unhealthy"]
    healthy = DeviceHealth(device=uuid, index=index, state="healthy", fault_counts=record.fault_counts)
    if drained and not unhealthy:
        return healthy.but(
            state="drained",
            reason=drained,
            cleared_by=_drain_cleared_by(record, context),
            since=record.drain.since if record.drain else None,
            until=record.drain.until if record.drain else None,
            advice="have its pods end, then mend it",
        )
    for state, findings in (("unhealthy", unhealthy), ("suspect", suspect), ("degraded", degrading)):
        if findings:
            return _with_findings(healthy.but(state=state), findings, record, context, drained)
    return healthy


def _with_findings(
    health: DeviceHealth, findings: Collection[Finding], record: DeviceRecord, context: HealthContext, drained: Text
) -> DeviceHealth:
    """The health of a device in a state that these findings decide."""
    deciding = min(findings, key=lambda each: _rank(each, record, context))
    entry, unhealthy = context.entry(deciding.code), health.state == "unhealthy"
    failed_probe = describe_failed_probe(record, findings) if unhealthy else ()
    reasons = [f"{each.code}: {each.message}" for each in findings]
    probing = unhealthy and next_probe_at(record, context) is not None
    since = None if any(each.from_earlier_boot for each in findings) else min(each.since for each in findings)
    last_seen = deciding.last_seen if entry.cleared_by == "time" else None
    return health.but(
        state="probing" if probing else health.state,
        since=since,
        until=None if last_seen is None else last_seen + entry.clear_after,
        code=deciding.code,
        reason=join("; ", [*reasons, *failed_probe, *([f"drained: {drained}"] if drained else [])]),
        cleared_by=CLEARED_BY_PROBE if probing else CLEARED_BY_TEXTS[entry.cleared_by],
        advice=entry.advice,
    )


def _rank(finding: Finding, record: DeviceRecord, context: HealthContext) -> tuple[bool, int, int, str]:
    """Sorts findings: first one that is not cleared, then the hardest to clear, then the first in the catalogue."""
    position = context.catalogue.sort_rank(finding.code)
    hardness = EASIEST_CLEARED_FIRST.index(context.entry(finding.code).cleared_by)
    is_cleared = cleared_at(finding, record, context) is not None
    return is_cleared, -hardness, position, finding.code


def _drain_cleared_by(record: DeviceRecord, context: HealthContext) -> Text:
    """What ends a drain, for people."""
    if record.drain is None:
        return "gpuplane health restore all" if context.all_drained else "the annotation of our Node object"
    return "gpuplane health restore" + (", or its time" if record.drain.until is not None else "")
