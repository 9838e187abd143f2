"""Views of the records: how each device stands, whether it may be given out, and what is worth saying about it."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Literal

from gpuplane.core.faults.catalogue import CATALOGUE
from gpuplane.core.health import records, state_machine
from gpuplane.core.health.state_machine import Terms
from gpuplane.core.observation import NOT_OBSERVED
from gpuplane.core.view import view
from gpuplane.model.config import Config, NodeRequests
from gpuplane.model.health import ClearedBy, DeviceHealth, DeviceRecord, Finding, HealthRecords, State
from gpuplane.model.machine import Fault, Gpu, MigDevice
from gpuplane.model.snapshot import Ledger, Snapshot
from gpuplane.model.status import DRIVER, Statuses
from gpuplane.model.text import Text, join
from gpuplane.model.views import Reason, ReasonKind

ENDS = {
    "nothing": "it is over once it is no longer seen",
    "process": "the end of the program that it befell",
    "reset": "a reset of the GPU, or gpuplane health restore",
    "reboot": "a reboot, or gpuplane health restore",
    "time": "time without another",
    "operator": "gpuplane health restore",
}
"""What ends a fault, for people."""

PROBE = "a recovery probe that finds it well, once it was calm for long enough"
"""What ends the last of an illness, for people."""

PROBE_FAILED = "probe-failed"
"""What stands in the place of a fault's code where only a recovery probe keeps a device from being given out."""

ADDRESS = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", re.ASCII | re.IGNORECASE)
"""A PCI address, as people write it: where it has no domain that is 0."""

HARDNESS: tuple[ClearedBy, ...] = ("nothing", "time", "process", "reset", "reboot", "operator")
"""What ends a fault, the hardest to have last."""

ORDER = {code: n for n, code in enumerate(CATALOGUE)}

ALL = "all"
"""The word for every device in a Node's annotation."""

BY_BADNESS: tuple[State, ...] = ("healthy", "degraded", "suspect", "withheld", "drained", "probing", "unhealthy")
"""The states, the worst last."""


def terms(snapshot: Snapshot, now: float) -> Terms:
    """What records are judged by now."""
    driver, allocations = snapshot.status.of(DRIVER), snapshot.allocations
    answers = driver is None or driver.state == "ok"
    return Terms(
        settings=snapshot.config.settings,
        holders=None if allocations is None else records.holders(allocations),
        now=now,
        probes=answers and not released(snapshot),
        all_drained=_record(snapshot, records.NODE).drain is not None,
    )


def released(snapshot: Snapshot) -> Text:
    """Why the driver has to be let go of now: an operator's word here, or on our Node object; "" if it need not."""
    release = snapshot.ledger.release
    return release.reason if release is not None else asked(snapshot).driver_release


def release_requester(snapshot: Snapshot) -> Literal["", "operator", "node"]:
    """Who requests now that the driver is released: an operator here, or our Node object; "" for nobody."""
    if snapshot.ledger.release is not None:
        return "operator"
    return "node" if asked(snapshot).driver_release else ""


def asked(snapshot: Snapshot) -> NodeRequests:
    """What our Node object asks for.

    Before the API server's first word what it said last holds: a restart must not open the driver amid its upgrade.
    """
    return snapshot.config.node_requests or snapshot.ledger.node_requests or NodeRequests()


def told(faults: Iterable[Fault]) -> Text:
    """Faults in words; "" for none."""
    return "; ".join(f"{fault.code}: {fault.message}" for fault in faults)


def reasons(snapshot: Snapshot, gpu: Gpu, device: MigDevice | None = None) -> tuple[Reason, ...]:
    """Why a GPU, or a MIG device of it, must not be given out now; () if it may."""
    found = []
    if away := released(snapshot):
        found.append(Reason(kind="released", text=f"the driver is let go of: {away}", part=DRIVER.name))
    by, health = terms(snapshot, 0.0), snapshot.ledger.health or HealthRecords()
    for key in (records.NODE, gpu.uuid, *([device.uuid] if device else [])):
        record = health.devices.get(key)
        if record is not None:
            found += (each for each in _reasons(key, record, by) if not (away and each.code == NOT_OBSERVED.code))
    if why := drain(snapshot, gpu, device):
        found.append(Reason(kind="drained", text=f"drained: {why}"))
    return tuple(found)


def _reasons(key: str, record: DeviceRecord, by: Terms) -> Iterator[Reason]:
    grave = [each for each in record.findings if _decides(each, by)]
    part = "" if key else DRIVER.name
    for each in grave:
        kind: ReasonKind = "released" if each.code == NOT_OBSERVED.code else "problem"
        yield Reason(kind=kind, text=f"{each.code}: {each.message}", part=part, code=each.code, device=key)
    for text in _failed(record, grave):
        yield Reason(kind="problem", text=text, part=part, code=PROBE_FAILED, device=key)


def ailments(snapshot: Snapshot, key: str) -> tuple[Reason, ...]:
    """What is wrong with a device, or the node, by its own record: what keeps it from being given out, and else what it
    is given out with."""
    record, by = _record(snapshot, key), terms(snapshot, 0.0)
    slight = (each for each in record.findings if each.confirmed and by.entry(each.code).severity == "degraded")
    part = "" if key else DRIVER.name
    return tuple(_reasons(key, record, by)) or tuple(
        Reason(kind="degraded", text=f"{each.code}: {each.message}", part=part, code=each.code, device=key)
        for each in slight
    )


def _failed(record: DeviceRecord, grave: Iterable[Finding]) -> Iterator[Text]:
    """Why the recovery probe failed, if it did; not once more what is said already."""
    probe = record.probe
    if probe is not None and probe.failure:
        again = probe.failure_code in {each.code for each in grave}
        yield "the recovery probe found it again" if again else f"the recovery probe failed: {probe.failure}"


def _decides(finding: Finding, by: Terms) -> bool:
    return finding.confirmed and by.entry(finding.code).severity == "unhealthy"


def drain(snapshot: Snapshot, gpu: Gpu, device: MigDevice | None = None) -> Text:
    """Why it is drained: by the command line, by our Node object, or because what was remembered of it was not
    understood; "" if it is not."""
    whole = _drain(snapshot, records.NODE, ()) or _drain(snapshot, gpu.uuid, (ALL, *names_of(gpu)))
    return whole or (_drain(snapshot, device.uuid, names_of(gpu, device)) if device else "")


def _drain(snapshot: Snapshot, key: str, names: Collection[str]) -> Text:
    record = _record(snapshot, key)
    if record.drain is not None:
        return record.drain.reason
    return next((why for name, why in asked(snapshot).drains.items() if _plain(name) in names), "")


def _record(snapshot: Snapshot, key: str) -> DeviceRecord:
    return (snapshot.ledger.health or HealthRecords()).devices.get(key, DeviceRecord())


def names_of(gpu: Gpu, device: MigDevice | None = None) -> tuple[str, ...]:
    """How people may name a device, addresses as `_plain` writes them."""
    if device is not None:
        return device.uuid, f"{gpu.index}:{device.slot}"
    return tuple(name for name in (gpu.uuid, str(gpu.index), _plain(gpu.pci)) if name)


def _plain(name: str) -> str:
    """A PCI address as sysfs writes it, 0000:3b:00.0: lspci leaves out the domain, nvidia-smi has 00000000:3B:00.0.
    Any other name as it is."""
    address = ADDRESS.fullmatch(name)
    return name if address is None else f"{int(address[1] or '0', 16):04x}:{address[2].lower()}"


def find(snapshot: Snapshot, name: str) -> str | None:
    """The UUID of the device that a person names, "" for all devices of the node; None for nobody's name. One that is
    away is known by its UUID."""
    if name == ALL:
        return records.NODE
    plain = _plain(name)
    for gpu in snapshot.gpus:
        if plain in names_of(gpu):
            return gpu.uuid or None
        for device in gpu.mig_devices:
            if plain in names_of(gpu, device):
                return device.uuid
    health = snapshot.ledger.health
    return name if name and health is not None and name in health.devices else None


def probes(snapshot: Snapshot) -> Mapping[str, float]:
    """The probes that are wished for: the UUID of a GPU → when."""
    health = snapshot.ledger.health or HealthRecords()
    parents = snapshot.machine.mig_parents if snapshot.machine else {}
    wanted: dict[str, float] = {}
    for key, record in health.devices.items():
        if record.probe is not None and record.probe.requested_at is not None:
            gpu_uuid = parents.get(key, key)
            wanted[gpu_uuid] = max(record.probe.requested_at, wanted.get(gpu_uuid, 0.0))
    return wanted


def awaited(snapshot: Snapshot) -> bool:
    """Whether a device waits for the end of a container, of which only kubelet tells."""
    health, by = snapshot.ledger.health or HealthRecords(), terms(snapshot, 0.0)
    grave = (each for record in health.devices.values() for each in record.findings if _decides(each, by))
    waiting = (each for each in grave if by.entry(each.code).cleared_by == "process")
    return any(by.is_listed(holder) for each in waiting for holder in each.holders)


def diagnoses(snapshot: Snapshot) -> tuple[DeviceHealth, ...]:
    """The node where something is wrong with it, each device in the driver's order, and those that are away.

    Each by what is its own: what ails the node is not said again of each GPU, see `overall`.
    """
    driver = snapshot.status.of(DRIVER)
    return _diagnoses(
        Snapshot(
            machine=snapshot.machine,
            config=Config(settings=snapshot.config.settings, node_requests=asked(snapshot)),
            allocations=snapshot.allocations,
            status=Statuses({} if driver is None else {DRIVER: driver}),
            ledger=Ledger(release=snapshot.ledger.release, health=snapshot.ledger.health),
        )
    )


@view
def _diagnoses(snapshot: Snapshot) -> tuple[DeviceHealth, ...]:
    health, by = snapshot.ledger.health or HealthRecords(), terms(snapshot, 0.0)
    found = []
    node = health.devices.get(records.NODE)
    if node is not None:
        found.append(_away(_diagnose(records.NODE, "", _reworded(node, snapshot), by, ""), snapshot))
    seen = {records.NODE}
    for gpu in snapshot.gpus:
        if not gpu.uuid:
            continue
        seen.add(gpu.uuid)
        own = health.devices.get(gpu.uuid, DeviceRecord())
        found.append(_diagnose(gpu.uuid, str(gpu.index), own, by, drain(snapshot, gpu)))
        for device in gpu.mig_devices:
            seen.add(device.uuid)
            part = health.devices.get(device.uuid, DeviceRecord())
            why = _drain(snapshot, device.uuid, names_of(gpu, device))
            found.append(_diagnose(device.uuid, f"{gpu.index}:{device.slot}", part, by, why))
    for key, record in health.devices.items():
        if key not in seen and (record.findings or record.drain):
            found.append(_diagnose(key, "", record, by, record.drain.reason if record.drain else ""))
    return tuple(found)


def _reworded(node: DeviceRecord, snapshot: Snapshot) -> DeviceRecord:
    """The node's record, which says why nobody looks while the driver is released."""
    why = released(snapshot)
    message = f"the driver is let go of: {why}"
    findings = (each.but(message=message) if each.code == NOT_OBSERVED.code else each for each in node.findings)
    return node.but(findings=tuple(findings)) if why else node


def _away(node: DeviceHealth, snapshot: Snapshot) -> DeviceHealth:
    """The node's diagnosis; while nobody looks because the driver is let go of, with who wants that and until when."""
    why, release = released(snapshot), snapshot.ledger.release
    if not why or node.code != NOT_OBSERVED.code:
        return node
    return node.but(
        cleared_by="the annotation of our Node object" if release is None else "gpuplane driver take, or its time",
        until=None if release is None else release.until,
        advice="",
    )


def overall(snapshot: Snapshot) -> tuple[DeviceHealth, ...]:
    """The diagnoses as they concern whoever wants a device: what ails the node ails its GPUs, and what ails a GPU its
    MIG devices. Such a one names where to look, and has no end and no advice of its own."""
    own = diagnoses(snapshot)
    wholes = {each.index: each for each in own if each.index or each.device == records.NODE}
    return tuple(_within(each, wholes) for each in own)


def _within(part: DeviceHealth, wholes: Mapping[str, DeviceHealth]) -> DeviceHealth:
    """What is worse comes first; among what is alike its own."""
    around = map(wholes.get, dict.fromkeys(("", part.index.partition(":")[0])))
    ailing = (each for each in around if each is not None and each.device != part.device and _badness(each))
    over = sorted(ailing, key=_badness, reverse=True)
    if part.device == records.NODE or not over:
        return part
    shared: list[Text] = [
        f"as {f'GPU {each.index}' if each.index else 'the node'}: {each.code or each.reason}" for each in over
    ]
    worst, own = over[0], [part.reason] if part.reason else []
    if _badness(worst) <= _badness(part):
        return part.but(reason=join("; ", [*own, *shared]))
    reason = join("; ", [*shared, *own])
    return worst.but(
        device=part.device, index=part.index, reason=reason, cleared_by="", advice="", fault_counts=part.fault_counts
    )


def _badness(diagnosis: DeviceHealth) -> int:
    return BY_BADNESS.index(diagnosis.state)


def _diagnose(key: str, index: str, record: DeviceRecord, by: Terms, drained: Text) -> DeviceHealth:
    grave = [each for each in record.findings if _decides(each, by)]
    minor = [each for each in record.findings if each not in grave and by.entry(each.code).severity != "note"]
    slight = [each for each in minor if each.confirmed]
    suspect = [each for each in minor if not each.confirmed and by.entry(each.code).severity == "unhealthy"]
    plain = DeviceHealth(device=key, index=index, state="healthy", fault_counts=record.fault_counts)
    if drained and not grave:
        return plain.but(
            state="drained",
            reason=drained,
            cleared_by=_drain_ends(record, by),
            since=record.drain.since if record.drain else None,
            until=record.drain.until if record.drain else None,
            advice="have its pods end, then mend it",
        )
    for state, findings in (("unhealthy", grave), ("suspect", suspect), ("degraded", slight)):
        if findings:
            first = min(findings, key=lambda each: _rank(each, record, by))
            judged = by.entry(first.code)
            failed = _failed(record, grave) if grave else ()
            reasons = [f"{each.code}: {each.message}" for each in findings]
            probed = state == "unhealthy" and state_machine.ready(record, by) is not None
            return plain.but(
                state="probing" if probed else state,
                since=None
                if any(each.from_earlier_boot for each in findings)
                else min(each.since for each in findings),
                until=first.last_seen + judged.clear_after
                if judged.cleared_by == "time" and first.last_seen is not None
                else None,
                code=first.code,
                reason="; ".join([*reasons, *failed, *([f"drained: {drained}"] if drained else [])]),
                cleared_by=PROBE if probed else ENDS[judged.cleared_by],
                advice=judged.advice,
            )
    return plain


def _rank(finding: Finding, record: DeviceRecord, by: Terms) -> tuple[bool, int, int, str]:
    """Which of several faults decides: one that is not over, the hardest to end, the first in the catalogue."""
    ends, over = by.entry(finding.code).cleared_by, state_machine.over(finding, record, by) is not None
    return over, -HARDNESS.index(ends), ORDER.get(finding.code, len(ORDER)), finding.code


def _drain_ends(record: DeviceRecord, by: Terms) -> str:
    if record.drain is None:
        return "gpuplane health restore all" if by.all_drained else "the annotation of our Node object"
    return "gpuplane health restore" + (", or its time" if record.drain.until is not None else "")
