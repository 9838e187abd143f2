"""How a node changes: the one page. `step` makes the next snapshot, `due` says when time alone changes it.

What is worth saying about a change is in `news.py`.

Rules that must stay put:
- Not seen is not gone. A look that could not count the GPUs keeps those of the last one, with the fault; a GPU that the
  driver no longer describes keeps its name, with the fault.
- Nothing is kept that can be derived. Whether a device is healthy, offered or withheld is a view.
- A fact that changes nothing makes no generation: whoever follows the snapshots is not woken.
"""

from collections.abc import Iterator

from gpuplane.core import observation, takeover, timeslices
from gpuplane.core.advertising import share_layouts
from gpuplane.core.health import records
from gpuplane.core.health.diagnose import terms
from gpuplane.core.text import on_one_line
from gpuplane.core.withholding import mig_parents
from gpuplane.model.config import NodeRequests
from gpuplane.model.facts import (
    AllocateAnswered,
    AllocationsListed,
    ConfigLoaded,
    DrainRequested,
    DriverReleaseRequested,
    Fact,
    FaultOccurred,
    LedgerLoaded,
    LedgerStored,
    MachineObserved,
    NodeRequestsChanged,
    ProbeFinished,
    StatusChanged,
    Tick,
    TimeSliceFinished,
)
from gpuplane.model.health import HealthRecords
from gpuplane.model.snapshot import Allocation, Snapshot
from gpuplane.model.status import AnyPart, DriverStatus, Status, Statuses

SETTLING = 10.0
"""Seconds that kubelet may take between our answer to Allocate and showing it in pod-resources."""


def step(snapshot: Snapshot, fact: Fact, now: float) -> Snapshot:
    """The snapshot after a fact, at `now` (CLOCK_BOOTTIME seconds); the same object where nothing changed."""
    after = _place(snapshot, timeslices.settled(_settle(_take(snapshot, fact, now), now), now))
    return snapshot if after == snapshot else after.but(generation=snapshot.generation + 1)


def _take(snapshot: Snapshot, fact: Fact, now: float) -> Snapshot:
    match fact:
        case MachineObserved(look):
            seen, counted = observation.merge_observation(snapshot.machine, look), look.gpus is not None
            held, by = snapshot.allocations, terms(snapshot, now)
            health = records.looked(_health(snapshot), snapshot.machine, seen, counted, held, by)
            return _with(snapshot.but(machine=seen), health)
        case FaultOccurred():
            machine, held = snapshot.machine, snapshot.allocations
            return _with(snapshot, records.happened(_health(snapshot), fact, machine, held, terms(snapshot, now)))
        case ProbeFinished(gpu=gpu):
            health, well = records.probed(_health(snapshot), fact, snapshot.machine, terms(snapshot, now))
            machine = observation.replace_gpu(snapshot.machine, gpu) if well else snapshot.machine
            return _with(snapshot.but(machine=machine), health)
        case TimeSliceFinished():
            return timeslices.done(snapshot, fact)
        case DrainRequested():
            return _with(snapshot, records.drained(_health(snapshot), fact, snapshot.machine, terms(snapshot, now)))
        case StatusChanged(part, status):
            snapshot = snapshot.but(status=_with_status(snapshot.status, part, status, now))
            return _disbelieve(snapshot, now) if isinstance(status, DriverStatus) and status.released else snapshot
        case ConfigLoaded(settings, name, warnings):
            config = snapshot.config.but(settings=settings, name=name or "", warnings=warnings)
            return snapshot.but(config=config, ledger=snapshot.ledger.but(config_name=name))
        case NodeRequestsChanged(asked):
            ledger = snapshot.ledger.but(node_requests=None if asked == NodeRequests() else asked)
            return snapshot.but(config=snapshot.config.but(node_requests=asked), ledger=ledger)
        case AllocationsListed(allocations, asked, checkpoint_rewrite):
            held = (*allocations, *_unsettled(snapshot.allocations or (), allocations, asked))
            health = records.listed(_health(snapshot), snapshot.machine, held)
            return _with(snapshot.but(allocations=held, checkpoint_rewrite=checkpoint_rewrite), health)
        case AllocateAnswered(resource, devices):
            grant = Allocation(resource=resource, devices=devices, granted_at=now)
            return snapshot.but(allocations=(*_others(snapshot.allocations or (), grant), grant))
        case LedgerLoaded():
            return takeover.apply_loaded_ledger(snapshot, fact, now)
        case LedgerStored(disk):
            return snapshot.but(stored=disk)
        case DriverReleaseRequested(release):
            return snapshot.but(ledger=snapshot.ledger.but(release=release))
        case Tick():
            return snapshot


def _health(snapshot: Snapshot) -> HealthRecords:
    return snapshot.ledger.health or HealthRecords()


def _with(snapshot: Snapshot, health: HealthRecords) -> Snapshot:
    return snapshot.but(ledger=snapshot.ledger.but(health=None if health == HealthRecords() else health))


def _disbelieve(snapshot: Snapshot, now: float) -> Snapshot:
    """What was seen before the driver was let go of may be another machine now."""
    before = snapshot.machine
    if before is None:
        return snapshot
    machine = observation.mark_not_observed(before)
    health = records.looked(_health(snapshot), before, machine, False, (), terms(snapshot, now))
    return _with(snapshot.but(machine=machine), health)


def _place(before: Snapshot, after: Snapshot) -> Snapshot:
    """Remembers of the devices that containers hold where they are and how they are cut, while that can be seen."""
    if after.allocations is None or _places(after) == _places(before):
        return after
    found = mig_parents(after.machine, after.allocations, after.ledger.mig_parents)
    return after.but(ledger=after.ledger.but(mig_parents=found or None, share_layouts=share_layouts(after) or None))


def _places(snapshot: Snapshot) -> tuple[object, ...]:
    ledger = snapshot.ledger
    return snapshot.allocations, snapshot.machine, snapshot.config.settings, ledger.mig_parents, ledger.share_layouts


def _with_status(known: Statuses, part: AnyPart, status: Status | None, now: float) -> Statuses:
    before = known.get(part)
    if status is None:
        return known if before is None else known.but(part, None)
    since = before.since if before is not None and before.state == status.state else now
    return known.but(part, status.but(text=on_one_line(status.text), since=since))


def _others(allocations: tuple[Allocation, ...], grant: Allocation) -> Iterator[Allocation]:
    """The allocations but for an earlier grant of the same: kubelet asks again for the next container of a pod."""
    for each in allocations:
        if not (each.granted_at and each.devices == grant.devices and each.resource == grant.resource):
            yield each


def _unsettled(known: tuple[Allocation, ...], listed: tuple[Allocation, ...], asked: float) -> Iterator[Allocation]:
    """The grants that an answer to a question of `asked` does not settle.

    It says nothing of what was granted after the question: what it shows with the same ids is the container that had
    them before. An older grant it settles by showing it, or by not showing it though kubelet has had the time to.
    """
    for each in known:
        if each.granted_at and (
            each.granted_at >= asked or (each.granted_at > asked - SETTLING and not _shown(each, listed))
        ):
            yield each


def _shown(grant: Allocation, listed: tuple[Allocation, ...]) -> bool:
    return any(a.resource == grant.resource and set(grant.devices) <= set(a.devices) for a in listed)


def _settle(snapshot: Snapshot, now: float) -> Snapshot:
    """What time has made of it."""
    release = snapshot.ledger.release
    if release is not None and release.until <= now:
        snapshot = snapshot.but(ledger=snapshot.ledger.but(release=None))
    health = snapshot.ledger.health
    if health is None or records.calm(health):
        return snapshot
    return _with(snapshot, records.settled(health, terms(snapshot, now)))


def due(snapshot: Snapshot) -> float | None:
    """When time alone changes something next, or None."""
    release, health = snapshot.ledger.release, snapshot.ledger.health
    times = (
        None if release is None else release.until,
        None if health is None or records.calm(health) else records.due(health, terms(snapshot, 0.0)),
        timeslices.due(snapshot),
    )
    return min((at for at in times if at is not None), default=None)
