"""The course of an illness: how one device falls ill and becomes well again, as a function of its record.

    healthy → suspect → unhealthy → probing → healthy
- What a look shows is suspect for as long as its patience lasts, then it stands. What happens stands at once, or, with
  patience, when it happens again.
- A fault that stands is over once it is not seen any more and what ends it was had. When that holds of all that stand,
  and has held for one probe period, a probe is wished for: a fresh process looks at the GPU. If that finds it well it
  is given out again; otherwise it is probed again later.
- A device that falls ill again soon after it was found well has to be calm for twice as long, each time.
- What only degrades a device ends without a probe.
"""

from collections.abc import Collection, Iterator, Mapping

from gpuplane.core.faults.catalogue import BLOCKING_RECOVERY, NEEDING_PROBE
from gpuplane.core.faults.overrides import entry_for
from gpuplane.model.config import Settings
from gpuplane.model.health import CatalogueEntry, DeviceRecord, Finding, ProbeState
from gpuplane.model.pod import PodRef, find, joined
from gpuplane.model.text import Text
from gpuplane.model.value import Value

SAME = 1.0
"""Seconds within which the driver and the kernel log mean the same event."""
NOTED = 60.0
"""Seconds for which a note is remembered."""
SOON = 3600.0
"""Seconds after a recovery within which another illness counts as a relapse."""
MOST_FLAPS = 7
"""Relapses in a row that are counted: a device has to be calm for 128 probe periods at the most."""
LONGEST_PAUSE = 60.0
"""Seconds between two probes that hang or crash at the most, however many did; between others it is two periods."""
MOST_BEFALLEN = 64
"""Processes, and containers, that are remembered of one fault."""
UNANSWERED = 120.0
"""Seconds after which a probe that nobody answered has failed."""


class Terms(Value):
    """What a record is judged by.

    `holders`: the containers that hold a device now; None: not known. `probes`: whether the driver can be asked at all.
    `all_drained`: every device of the node is, by the node's own record.
    """

    settings: Settings | None
    holders: frozenset[PodRef] | None
    now: float
    probes: bool = True
    all_drained: bool = False

    def entry(self, code: str) -> CatalogueEntry:
        """How a fault is judged."""
        return entry_for(code, self.settings)

    def is_listed(self, holder: PodRef) -> bool:
        """Whether a container is known to hold a device now."""
        listed = self.holders or frozenset()
        return holder in listed or find(holder, listed) is not None

    @property
    def period(self) -> float:
        """Seconds between two probes."""
        return (self.settings or Settings()).probe_period


def show(record: DeviceRecord, faults: Mapping[str, Text], terms: Terms, *, news: bool, blind: bool) -> DeviceRecord:
    """The record after a look that shows these faults (code → message).

    `news`: an earlier look was without what this one shows first; otherwise there is nothing to be patient for.
    `blind`: what the look does not show is not over.
    """
    findings = []
    for each in record.findings:
        if each.is_event:
            findings.append(each)
        elif each.code in faults:
            since = terms.now if each.from_earlier_boot else each.since
            findings.append(each.but(last_seen=None, message=faults[each.code], since=since, from_earlier_boot=False))
        else:
            findings.append(each if blind or each.last_seen is not None else each.but(last_seen=terms.now))
    known = {each.code for each in findings if not each.is_event}
    for code, message in faults.items():
        if code not in known:
            findings.append(Finding(code=code, message=message, since=terms.now, confirmed=not news))
    return _fallen(record, record.but(findings=tuple(findings)), terms)


def happen(record: DeviceRecord, event: Finding, terms: Terms) -> DeviceRecord:
    """The record after something happened: `event` is how it would be remembered if it were the first time."""
    assert event.last_seen is not None
    old = next((each for each in record.findings if each.is_event and each.code == event.code), None)
    if old is not None and old.last_seen is not None and abs(event.last_seen - old.last_seen) < SAME:
        pids = tuple(dict.fromkeys((*old.pids, *event.pids)))[-MOST_BEFALLEN:]
        return _with(record, old, old.but(pids=pids, holders=old.holders if not pids else ()))
    counts = {**record.fault_counts, event.code: record.fault_counts.get(event.code, 0) + 1}
    record = record.but(fault_counts=dict(sorted(counts.items())))
    if record.recovered_at is not None and event.last_seen < record.recovered_at:
        return record  # heard of late: a probe was begun since, and found the device well
    patience = terms.entry(event.code).grace_period
    if old is None or old.last_seen is None:
        after = event.but(confirmed=not patience)
    else:
        again = old.confirmed or not patience or event.last_seen - old.last_seen <= patience
        after = _again(old, event).but(confirmed=again)
    return _fallen(record, _with(record, old, after), terms)


def _again(old: Finding, event: Finding) -> Finding:
    """A finding of what happens once more. It may be heard of late, and it takes nothing from whom it befell before."""
    assert old.last_seen is not None
    assert event.last_seen is not None
    if old.from_earlier_boot:
        return event
    return old.but(
        since=min(old.since, event.since),
        last_seen=max(old.last_seen, event.last_seen),
        pids=tuple(dict.fromkeys((*old.pids, *event.pids)))[-MOST_BEFALLEN:],
        holders=joined((*old.holders, *event.holders))[-MOST_BEFALLEN:],
    )


def _with(record: DeviceRecord, old: Finding | None, new: Finding) -> DeviceRecord:
    if old is None:
        return record.but(findings=(*record.findings, new))
    return record.but(findings=tuple(new if each is old else each for each in record.findings))


def calm(record: DeviceRecord) -> bool:
    """Whether neither time nor a change of terms settles anything: most devices, most of the time."""
    return not record.findings and record.drain is None and record.probe is None


def settle(record: DeviceRecord, terms: Terms) -> DeviceRecord:
    """The record as time and what was had have made it."""
    drain = record.drain
    if drain is not None and drain.until is not None and drain.until <= terms.now:
        record = record.but(drain=None)
    patient = tuple(_impatient(_dated(each), terms) for each in record.findings)
    record = _fallen(record, record.but(findings=patient), terms)
    kept = tuple(each for each in record.findings if not _forgotten(each, record, terms))
    record = record.but(findings=kept)
    return _recover(record, terms)


def _dated(finding: Finding) -> Finding:
    """An event with its time, which it lacks in a file that somebody edited: it happened when it began, then."""
    return finding.but(last_seen=finding.since) if finding.is_event and finding.last_seen is None else finding


def _impatient(finding: Finding, terms: Terms) -> Finding:
    """A fault that a look has shown for long enough stands."""
    if (
        finding.confirmed
        or finding.last_seen is not None
        or terms.now < finding.since + terms.entry(finding.code).grace_period
    ):
        return finding
    return finding.but(confirmed=True)


def _fallen(before: DeviceRecord, after: DeviceRecord, terms: Terms) -> DeviceRecord:
    """Counts a relapse where the device was well before and is ill now; a probe under way is no longer of use."""
    if not ill(after, terms):
        return after
    if ill(before, terms):
        shown = {each.code for each in _grave(before, terms) if each.last_seen is None}
        worse = any(each.last_seen is None and each.code not in shown for each in _grave(after, terms))
        return after.but(probe=None) if worse and after.probe is not None else after
    relapse = after.recovered_at is not None and terms.now - after.recovered_at < SOON
    return after.but(relapses=min(after.relapses + 1, MOST_FLAPS) if relapse else 0, probe=None)


def ill(record: DeviceRecord, terms: Terms) -> bool:
    """Whether a fault stands that makes the device unhealthy."""
    return any(True for _ in _grave(record, terms))


def _grave(record: DeviceRecord, terms: Terms) -> Iterator[Finding]:
    for each in record.findings:
        if each.confirmed and terms.entry(each.code).severity == "unhealthy":
            yield each


def _forgotten(finding: Finding, record: DeviceRecord, terms: Terms) -> bool:
    """Whether a fault is over without a probe: it never stood, or it does not make the device unhealthy."""
    judged = terms.entry(finding.code)
    if finding.from_earlier_boot:
        return terms.settings is not None and judged.cleared_by != "operator"
    return (until := _remembered(finding, judged, record, terms)) is not None and until <= terms.now


def _remembered(finding: Finding, judged: CatalogueEntry, record: DeviceRecord, terms: Terms) -> float | None:
    """Until when a fault that needs no probe is remembered; None for one that stays, or needs a probe."""
    if finding.last_seen is None:
        return None
    if judged.severity == "note":
        return finding.last_seen + NOTED
    if not finding.confirmed:
        return finding.last_seen + max(terms.period, judged.grace_period if finding.is_event else 0.0)
    if judged.severity == "degraded" and (ended := over(finding, record, terms)) is not None:
        return max(ended, finding.last_seen + terms.period)
    return None


def over(finding: Finding, record: DeviceRecord, terms: Terms) -> float | None:
    """Since or from when a fault is over, as far as it can be told without a probe; None: not before more happens."""
    if finding.last_seen is None:
        return finding.since if unasked(record) else None
    if record.repaired_at >= finding.last_seen:
        return record.repaired_at
    judged = terms.entry(finding.code)
    match judged.cleared_by:
        case "nothing":
            return finding.last_seen
        case "process":
            return finding.last_seen if _left(finding, terms) else _reset(finding, record)
        case "reset":
            return _reset(finding, record)
        case "time":
            return finding.last_seen + judged.clear_after
        case "reboot" | "operator":
            return None


def unasked(record: DeviceRecord) -> bool:
    """Whether looks leave the device out, so that only a probe can tell how it is."""
    return any(each.last_seen is None and each.code in NEEDING_PROBE for each in record.findings)


def _reset(finding: Finding, record: DeviceRecord) -> float | None:
    """When the device was reset since; no process that ran on it before goes on after that."""
    return record.reset_at if finding.last_seen is not None and record.reset_at >= finding.last_seen else None


def _left(finding: Finding, terms: Terms) -> bool:
    """Whether nobody is known to go on whom the fault befell. Of processes only a probe can tell."""
    return not finding.holders or (terms.holders is not None and not any(map(terms.is_listed, finding.holders)))


def _recover(record: DeviceRecord, terms: Terms) -> DeviceRecord:
    """Wishes for a probe when it is time, and gives up one that nobody answered."""
    if not ill(record, terms):
        return record.but(probe=None) if record.probe is not None else record
    probing = record.probe or ProbeState()
    if not terms.probes:
        return record if probing.requested_at is None else record.but(probe=probing.but(requested_at=None))
    if probing.requested_at is not None:
        if terms.now < probing.requested_at + UNANSWERED:
            return record
        return fail(record, "it was not answered", terms, costly=True)
    when = ready(record, terms)
    if when is None or when > terms.now:
        return record
    return record.but(probe=probing.but(requested_at=terms.now))


def ready(record: DeviceRecord, terms: Terms) -> float | None:
    """When the device may be probed; None: not before more happens."""
    if record.absent or not terms.probes or _pending(record, terms):
        return None
    calm = terms.period * 2 ** min(record.relapses, MOST_FLAPS)  # whatever a file that somebody edited says
    times = [record.probe.not_before if record.probe else 0.0]
    for each in _grave(record, terms):
        ended = over(each, record, terms)
        if ended is None:
            return None
        times.append(ended + calm)
    return max(times)


def _pending(record: DeviceRecord, terms: Terms) -> bool:
    """Whether a probe has failed, and looks show that the next one would for what they show too."""
    if record.probe is None or not record.probe.failure or unasked(record):
        return False
    shown = (each.code for each in record.findings if each.last_seen is None)
    return any(code in BLOCKING_RECOVERY and terms.entry(code).severity != "note" for code in shown)


def fail(record: DeviceRecord, why: Text, terms: Terms, *, costly: bool, code: str = "") -> DeviceRecord:
    """The record after a probe that did not find the device well. `costly`: it hung or crashed, and so may the next.

    `code`: of the fault that it found; "" for none.
    """
    tries = record.probe.failed_tries if record.probe else 0
    pause = terms.period * 2 ** min(tries, 16)
    longest = max(LONGEST_PAUSE, terms.period) if costly else 2 * terms.period
    not_before = terms.now + min(pause, longest)
    probe = ProbeState(not_before=not_before, failed_tries=tries + 1, failure=why, failure_code=code)
    return record.but(probe=probe)


def heal(record: DeviceRecord, terms: Terms) -> DeviceRecord:
    """The record after a probe that found the device well. Where more has happened meanwhile, it is probed again."""
    when = ready(record, terms)
    if when is None or when > terms.now:
        return record.but(probe=None)
    cured = set(_grave(record, terms))
    left = tuple(each for each in record.findings if each not in cured)
    assert record.probe is not None
    return record.but(findings=left, probe=None, recovered_at=record.probe.requested_at)


def befallen(record: DeviceRecord, terms: Terms) -> Collection[int]:
    """The processes that were befallen by what makes this device unhealthy; a mere note holds up nobody."""
    return {pid for each in _grave(record, terms) if _reset(each, record) is None for pid in each.pids}


def due(record: DeviceRecord, terms: Terms) -> Iterator[float]:
    """The times at which time alone may change the record."""
    if record.drain is not None and record.drain.until is not None:
        yield record.drain.until
    for each in record.findings:
        judged = terms.entry(each.code)
        if each.from_earlier_boot:
            continue
        if each.last_seen is None and not each.confirmed:
            yield each.since + judged.grace_period
        if (until := _remembered(each, judged, record, terms)) is not None:
            yield until
    if ill(record, terms):
        if record.probe is not None and record.probe.requested_at is not None:
            yield record.probe.requested_at + UNANSWERED
        elif (when := ready(record, terms)) is not None:
            yield when
