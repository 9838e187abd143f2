"""How a node changes: the one page. `step` makes the next snapshot, `due` says when time alone changes it,
`news` says what is worth telling about a change.

Rules that must stay put:
- Not seen is not gone. A look that could not count the GPUs keeps those of the last one, with the fault; a GPU that the
  driver no longer describes keeps its name, with the fault.
- Nothing is kept that can be derived. Whether a device is healthy, offered or withheld is a view.
- A fact that changes nothing makes no generation: whoever follows the snapshots is not woken.
"""

from collections.abc import Iterator, Mapping

from gpuplane.core import sight
from gpuplane.core.health import PATIENCE, released
from gpuplane.core.resources.held import homes
from gpuplane.core.resources.offer import offer
from gpuplane.model.facts import (
    Configured,
    Fact,
    Granted,
    Listed,
    Looked,
    NodeAsked,
    ReleaseWished,
    Remembered,
    Stood,
    Tick,
)
from gpuplane.model.snapshot import Allocation, Condition, Snapshot
from gpuplane.model.views import News, Offer, Resource

SETTLING = 10.0
"""Seconds that kubelet may take between our answer to Allocate and showing it in pod-resources."""


def step(snapshot: Snapshot, fact: Fact, now: float) -> Snapshot:
    """The snapshot after a fact, at `now` (CLOCK_BOOTTIME seconds); the same object where nothing changed."""
    after = _place(snapshot, _expire(_take(snapshot, fact, now), now))
    return snapshot if after == snapshot else after.but(generation=snapshot.generation + 1)


def _take(snapshot: Snapshot, fact: Fact, now: float) -> Snapshot:
    match fact:
        case Looked(machine):
            return snapshot.but(machine=sight.merge(snapshot.machine, machine))
        case Stood(part, condition):
            return snapshot.but(conditions=_stand(snapshot, part, condition, now))
        case Configured(settings, name):
            config = snapshot.config.but(settings=settings, name=name or "")
            return snapshot.but(config=config, ledger=snapshot.ledger.but(config_name=name))
        case NodeAsked(asked):
            ledger = snapshot.ledger.but(asked_release=asked.release or None)
            return snapshot.but(config=snapshot.config.but(asked=asked), ledger=ledger)
        case Listed(allocations, asked):
            recent = [a for a in snapshot.allocations or () if a.since and a.since > asked - SETTLING]
            return snapshot.but(allocations=(*allocations, *(a for a in recent if not _shown(a, allocations))))
        case Granted(resource, devices):
            grant = Allocation(resource=resource, devices=devices, since=now)
            return snapshot.but(allocations=(*_others(snapshot.allocations or (), grant), grant))
        case Remembered(ledger):
            return snapshot.but(ledger=ledger)
        case ReleaseWished(release):
            return snapshot.but(ledger=snapshot.ledger.but(release=release))
        case Tick():
            return snapshot


def _place(before: Snapshot, after: Snapshot) -> Snapshot:
    """Remembers where the MIG devices are that containers hold, while they can be seen."""
    if after.allocations is None or (after.allocations, after.machine) == (before.allocations, before.machine):
        return after
    return after.but(ledger=after.ledger.but(homes=homes(after.machine, after.allocations, after.ledger.homes) or None))


def _stand(snapshot: Snapshot, part: str, condition: Condition | None, now: float) -> dict[str, Condition]:
    others = {name: each for name, each in snapshot.conditions.items() if name != part}
    if condition is None:
        return others
    before = snapshot.conditions.get(part)
    if before is not None and before.standing == condition.standing:
        return {**others, part: condition.but(since=before.since, overdue=before.overdue)}
    at_once = part in PATIENCE and before is not None and before.standing == "waiting"  # nothing to be patient with
    return {**others, part: condition.but(since=now, overdue=at_once and condition.standing == "failing")}


def _others(allocations: tuple[Allocation, ...], grant: Allocation) -> Iterator[Allocation]:
    """The allocations but for an earlier grant of the same: kubelet asks again for the next container of a pod."""
    for each in allocations:
        if not (each.since and each.devices == grant.devices and each.resource == grant.resource):
            yield each


def _shown(grant: Allocation, listed: tuple[Allocation, ...]) -> bool:
    return any(a.resource == grant.resource and set(grant.devices) <= set(a.devices) for a in listed)


def _expire(snapshot: Snapshot, now: float) -> Snapshot:
    release = snapshot.ledger.release
    if release is not None and release.until <= now:
        snapshot = snapshot.but(ledger=snapshot.ledger.but(release=None))
    for part, since in _pending(snapshot):
        if since + PATIENCE[part] <= now:
            late = snapshot.conditions[part].but(overdue=True)
            snapshot = snapshot.but(conditions={**snapshot.conditions, part: late})
    return snapshot


def _pending(snapshot: Snapshot) -> Iterator[tuple[str, float]]:
    """The failing conditions that are not overdue yet but will be: (part, since)."""
    for part in PATIENCE:
        condition = snapshot.conditions.get(part)
        if condition is not None and condition.standing == "failing" and not condition.overdue:
            yield part, condition.since


def due(snapshot: Snapshot) -> float | None:
    """When time alone changes something next, or None."""
    times = [since + PATIENCE[part] for part, since in _pending(snapshot)]
    if snapshot.ledger.release is not None:
        times.append(snapshot.ledger.release.until)
    return min(times, default=None)


def news(before: Snapshot, after: Snapshot) -> Iterator[News]:
    """What is worth saying, once, about two snapshots that follow each other."""
    if released(before) != released(after):
        why = released(after)
        yield News(level="info", about="driver", text=f"let go of: {why}" if why else "taken up again")
    if before.conditions is not after.conditions:
        yield from _standings(before.conditions, after.conditions)
    old, new = offer(before), offer(after)
    if old is not new:
        yield from _offers(old, new)


def _standings(before: Mapping[str, Condition], after: Mapping[str, Condition]) -> Iterator[News]:
    for part, condition in after.items():
        last = before.get(part)
        if last is None or (last.standing, last.reason) != (condition.standing, condition.reason):
            level = "warning" if condition.standing == "failing" else "info"
            yield News(level=level, about=part, text=f"{condition.standing}: {condition.reason}".rstrip(": "))


def _offers(before: Offer, after: Offer) -> Iterator[News]:
    earlier = {resource.name: resource for resource in before.resources}
    for resource in after.resources:
        yield from _troubles(earlier.get(resource.name), resource)
    if before.waiting != after.waiting:
        yield News(level="info", about="offer", text=f"waiting: {after.waiting}" if after.waiting else "ready to offer")
    for resource in after.resources:
        old = earlier.pop(resource.name, None)
        if old is None or len(old.devices) != len(resource.devices):
            yield News(level="info", about=resource.name, text=f"{len(resource.devices)} devices offered")
    for name in earlier:
        yield News(level="info", about=name, text="no longer offered")


def _troubles(before: Resource | None, after: Resource) -> Iterator[News]:
    """What has befallen the units of a resource; once for a unit, however many ids share it."""
    if before == after:
        return
    earlier = {device.unit.id: device.trouble for device in before.devices} if before else {}
    for unit, trouble in {device.unit.id: device.trouble for device in after.devices}.items():
        last = earlier.get(unit, "")
        if trouble and trouble != last:
            yield News(level="warning", about=unit, text=f"not available as {after.name}: {trouble}")
        elif last and not trouble:
            yield News(level="info", about=unit, text=f"available again as {after.name}")
