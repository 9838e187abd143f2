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

from gpuplane.core.health.catalogue import PENDING, UNASKED
from gpuplane.core.health.judge import entry
from gpuplane.model.config import Settings
from gpuplane.model.health import Entry, Finding, Probing, Record
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
    holders: frozenset[str] | None
    now: float
    probes: bool = True
    all_drained: bool = False

    def entry(self, code: str) -> Entry:
        """How a fault is judged."""
        return entry(code, self.settings)

    @property
    def period(self) -> float:
        """Seconds between two probes."""
        return (self.settings or Settings()).probe_period


def show(record: Record, faults: Mapping[str, str], terms: Terms, *, news: bool, blind: bool) -> Record:
    """The record after a look that shows these faults (code → message).

    `news`: an earlier look was without what this one shows first; otherwise there is nothing to be patient for.
    `blind`: what the look does not show is not over.
    """
    findings = []
    for each in record.findings:
        if each.event:
            findings.append(each)
        elif each.code in faults:
            since = terms.now if each.rebooted else each.since
            findings.append(each.but(last=None, message=faults[each.code], since=since, rebooted=False))
        else:
            findings.append(each if blind or each.last is not None else each.but(last=terms.now))
    known = {each.code for each in findings if not each.event}
    for code, message in faults.items():
        if code not in known:
            findings.append(Finding(code=code, message=message, since=terms.now, standing=not news))
    return _fallen(record, record.but(findings=tuple(findings)), terms)


def happen(record: Record, event: Finding, terms: Terms) -> Record:
    """The record after something happened: `event` is how it would be remembered if it were the first time."""
    assert event.last is not None
    old = next((each for each in record.findings if each.event and each.code == event.code), None)
    if old is not None and old.last is not None and abs(event.last - old.last) < SAME:
        pids = tuple(dict.fromkeys((*old.pids, *event.pids)))[-MOST_BEFALLEN:]
        return _with(record, old, old.but(pids=pids, holders=old.holders if not pids else ()))
    counts = {**record.counts, event.code: record.counts.get(event.code, 0) + 1}
    record = record.but(counts=dict(sorted(counts.items())))
    if record.recovered is not None and event.last < record.recovered:
        return record  # heard of late: a probe was begun since, and found the device well
    patience = terms.entry(event.code).patience
    if old is None or old.last is None:
        after = event.but(standing=not patience)
    else:
        again = old.standing or not patience or event.last - old.last <= patience
        after = _again(old, event).but(standing=again)
    return _fallen(record, _with(record, old, after), terms)


def _again(old: Finding, event: Finding) -> Finding:
    """A finding of what happens once more. It may be heard of late, and it takes nothing from whom it befell before."""
    assert old.last is not None
    assert event.last is not None
    if old.rebooted:
        return event
    return old.but(
        since=min(old.since, event.since),
        last=max(old.last, event.last),
        pids=tuple(dict.fromkeys((*old.pids, *event.pids)))[-MOST_BEFALLEN:],
        holders=tuple(dict.fromkeys((*old.holders, *event.holders)))[-MOST_BEFALLEN:],
    )


def _with(record: Record, old: Finding | None, new: Finding) -> Record:
    if old is None:
        return record.but(findings=(*record.findings, new))
    return record.but(findings=tuple(new if each is old else each for each in record.findings))


def calm(record: Record) -> bool:
    """Whether neither time nor a change of terms settles anything: most devices, most of the time."""
    return not record.findings and record.drain is None and record.probing is None


def settle(record: Record, terms: Terms) -> Record:
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
    return finding.but(last=finding.since) if finding.event and finding.last is None else finding


def _impatient(finding: Finding, terms: Terms) -> Finding:
    """A fault that a look has shown for long enough stands."""
    if finding.standing or finding.last is not None or terms.now < finding.since + terms.entry(finding.code).patience:
        return finding
    return finding.but(standing=True)


def _fallen(before: Record, after: Record, terms: Terms) -> Record:
    """Counts a relapse where the device was well before and is ill now; a probe under way is no longer of use."""
    if not ill(after, terms):
        return after
    if ill(before, terms):
        shown = {each.code for each in _grave(before, terms) if each.last is None}
        worse = any(each.last is None and each.code not in shown for each in _grave(after, terms))
        return after.but(probing=None) if worse and after.probing is not None else after
    relapse = after.recovered is not None and terms.now - after.recovered < SOON
    return after.but(flaps=min(after.flaps + 1, MOST_FLAPS) if relapse else 0, probing=None)


def ill(record: Record, terms: Terms) -> bool:
    """Whether a fault stands that makes the device unhealthy."""
    return any(True for _ in _grave(record, terms))


def _grave(record: Record, terms: Terms) -> Iterator[Finding]:
    for each in record.findings:
        if each.standing and terms.entry(each.code).severity == "unhealthy":
            yield each


def _forgotten(finding: Finding, record: Record, terms: Terms) -> bool:
    """Whether a fault is over without a probe: it never stood, or it does not make the device unhealthy."""
    judged = terms.entry(finding.code)
    if finding.rebooted:
        return terms.settings is not None and judged.ends != "operator"
    return (until := _remembered(finding, judged, record, terms)) is not None and until <= terms.now


def _remembered(finding: Finding, judged: Entry, record: Record, terms: Terms) -> float | None:
    """Until when a fault that needs no probe is remembered; None for one that stays, or needs a probe."""
    if finding.last is None:
        return None
    if judged.severity == "note":
        return finding.last + NOTED
    if not finding.standing:
        return finding.last + max(terms.period, judged.patience if finding.event else 0.0)
    if judged.severity == "degraded" and (ended := over(finding, record, terms)) is not None:
        return max(ended, finding.last + terms.period)
    return None


def over(finding: Finding, record: Record, terms: Terms) -> float | None:
    """Since or from when a fault is over, as far as it can be told without a probe; None: not before more happens."""
    if finding.last is None:
        return finding.since if unasked(record) else None
    if record.excused >= finding.last:
        return record.excused
    judged = terms.entry(finding.code)
    match judged.ends:
        case "nothing":
            return finding.last
        case "process":
            return finding.last if _left(finding, terms) else _reset(finding, record)
        case "reset":
            return _reset(finding, record)
        case "time":
            return finding.last + judged.lasts
        case "reboot" | "operator":
            return None


def unasked(record: Record) -> bool:
    """Whether looks leave the device out, so that only a probe can tell how it is."""
    return any(each.last is None and each.code in UNASKED for each in record.findings)


def _reset(finding: Finding, record: Record) -> float | None:
    """When the device was reset since; no process that ran on it before goes on after that."""
    return record.renewed if finding.last is not None and record.renewed >= finding.last else None


def _left(finding: Finding, terms: Terms) -> bool:
    """Whether nobody is known to go on whom the fault befell. Of processes only a probe can tell."""
    return not finding.holders or (terms.holders is not None and terms.holders.isdisjoint(finding.holders))


def _recover(record: Record, terms: Terms) -> Record:
    """Wishes for a probe when it is time, and gives up one that nobody answered."""
    if not ill(record, terms):
        return record.but(probing=None) if record.probing is not None else record
    probing = record.probing or Probing()
    if not terms.probes:
        return record if probing.asked is None else record.but(probing=probing.but(asked=None))
    if probing.asked is not None:
        if terms.now < probing.asked + UNANSWERED:
            return record
        return fail(record, "it was not answered", terms, costly=True)
    when = ready(record, terms)
    if when is None or when > terms.now:
        return record
    return record.but(probing=probing.but(asked=terms.now))


def ready(record: Record, terms: Terms) -> float | None:
    """When the device may be probed; None: not before more happens."""
    if record.away or not terms.probes or _pending(record, terms):
        return None
    calm = terms.period * 2 ** min(record.flaps, MOST_FLAPS)  # whatever a file that somebody edited says
    times = [record.probing.next if record.probing else 0.0]
    for each in _grave(record, terms):
        ended = over(each, record, terms)
        if ended is None:
            return None
        times.append(ended + calm)
    return max(times)


def _pending(record: Record, terms: Terms) -> bool:
    """Whether a probe has failed, and looks show that the next one would for what they show too."""
    if record.probing is None or not record.probing.failed or unasked(record):
        return False
    shown = (each.code for each in record.findings if each.last is None)
    return any(code in PENDING and terms.entry(code).severity != "note" for code in shown)


def fail(record: Record, why: str, terms: Terms, *, costly: bool) -> Record:
    """The record after a probe that did not find the device well. `costly`: it hung or crashed, and so may the next."""
    tries = record.probing.tries if record.probing else 0
    pause = terms.period * 2 ** min(tries, 16)
    longest = max(LONGEST_PAUSE, terms.period) if costly else 2 * terms.period
    return record.but(probing=Probing(next=terms.now + min(pause, longest), tries=tries + 1, failed=why))


def heal(record: Record, terms: Terms) -> Record:
    """The record after a probe that found the device well. Where more has happened meanwhile, it is probed again."""
    when = ready(record, terms)
    if when is None or when > terms.now:
        return record.but(probing=None)
    cured = set(_grave(record, terms))
    left = tuple(each for each in record.findings if each not in cured)
    assert record.probing is not None
    return record.but(findings=left, probing=None, recovered=record.probing.asked)


def befallen(record: Record, terms: Terms) -> Collection[int]:
    """The processes that were befallen by what makes this device unhealthy; a mere note holds up nobody."""
    return {pid for each in _grave(record, terms) if _reset(each, record) is None for pid in each.pids}


def due(record: Record, terms: Terms) -> Iterator[float]:
    """The times at which time alone may change the record."""
    if record.drain is not None and record.drain.until is not None:
        yield record.drain.until
    for each in record.findings:
        judged = terms.entry(each.code)
        if each.rebooted:
            continue
        if each.last is None and not each.standing:
            yield each.since + judged.patience
        if (until := _remembered(each, judged, record, terms)) is not None:
            yield until
    if ill(record, terms):
        if record.probing is not None and record.probing.asked is not None:
            yield record.probing.asked + UNANSWERED
        elif (when := ready(record, terms)) is not None:
            yield when
