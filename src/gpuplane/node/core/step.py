"""How a node changes: the one page. `step` makes the next snapshot, `due` says when time alone changes it.

What is logged about a change is in `reports/news.py`.

Rules that must stay:
- Not seen is not gone. An observation that could not count the GPUs keeps those of the last one, with the fault. A GPU
  that the driver no longer describes keeps its name, with the fault.
- Nothing is kept that can be derived. Whether a device is healthy, offered or withheld is a view.
- A fact that changes nothing makes no generation: who follows the snapshots is not woken.
"""

from collections.abc import Iterator

from gpuplane.base.text import on_one_line
from gpuplane.node.core import observation, takeover, timeslices
from gpuplane.node.core.advertising import share_layouts_for_ledger
from gpuplane.node.core.dra import preparing
from gpuplane.node.core.health import drains, events, holders, observations, probes, records
from gpuplane.node.core.health.context import health_context, health_records
from gpuplane.node.core.partitions import state_machine as partitions
from gpuplane.node.core.withholding import mig_parents
from gpuplane.node.model.config import NodeObjectRequests
from gpuplane.node.model.facts import (
    AllocatableListed,
    AllocateAnswered,
    AllocationsListed,
    ClaimPrepareRequested,
    ClaimUnprepareRequested,
    ConfigLoaded,
    CountersLoaded,
    DevicesObserved,
    DrainRequested,
    DriverReleaseRequested,
    Fact,
    FaultOccurred,
    LayoutRequested,
    LedgerLoaded,
    LedgerStored,
    MachineObserved,
    MigConfigsLoaded,
    NodeRequestsChanged,
    PartitionChangeFinished,
    PodsObserved,
    ProbeFinished,
    StatusChanged,
    Tick,
    TimeSliceFinished,
)
from gpuplane.node.model.health import HealthRecords
from gpuplane.node.model.snapshot import Allocatable, Allocation, Snapshot
from gpuplane.node.model.status import AnyPart, DriverStatus, Status, Statuses

ALLOCATION_LISTING_DELAY = 10.0
"""Seconds that kubelet may take between our answer to Allocate and listing it in pod-resources."""


def step(snapshot: Snapshot, fact: Fact, now: float) -> Snapshot:
    """The snapshot after a fact, at `now` (CLOCK_BOOTTIME seconds); the same object where nothing changed."""
    changed = _apply_elapsed_time(_apply_fact(snapshot, fact, now), now)
    started = partitions.update_partitions(timeslices.start_next_try(changed, now), now)
    after = _update_layouts_in_ledger(snapshot, started)
    return snapshot if after == snapshot else after.but(generation=snapshot.generation + 1)


def _apply_fact(snapshot: Snapshot, fact: Fact, now: float) -> Snapshot:
    health, machine, allocations = health_records(snapshot), snapshot.machine, snapshot.allocations
    match fact:
        case MachineObserved(observed, wall):
            merged, counted = observation.merge_observation(machine, observed), observed.gpus is not None
            context = health_context(snapshot)
            health = observations.apply_observation(health, machine, merged, counted, allocations, context, now, wall)
            return _with_health(snapshot.but(machine=merged), health)
        case DevicesObserved(kind, seen):
            before = snapshot.devices.get(kind)
            merged_list = observation.merge_devices(before, seen)
            devices = {**snapshot.devices, kind: merged_list}
            context = health_context(snapshot)
            health = observations.apply_devices_observation(health, kind, before, seen, context, now)
            return _with_health(snapshot.but(devices=devices), health)
        case FaultOccurred():
            health = events.apply_fault_event(health, fact, machine, allocations, health_context(snapshot), now)
            return _with_health(snapshot, health)
        case ProbeFinished(gpu=gpu):
            health, any_healthy = probes.apply_probe_result(health, fact, machine, health_context(snapshot), now)
            machine = observation.replace_gpu_of_same_uuid(machine, gpu) if any_healthy else machine
            return _with_health(snapshot.but(machine=machine), health)
        case TimeSliceFinished():
            return timeslices.finish_try(snapshot, fact)
        case PartitionChangeFinished():
            return partitions.finish_change(snapshot, fact, now)
        case MigConfigsLoaded(configs):
            return snapshot.but(config=snapshot.config.but(mig_configs=configs))
        case LayoutRequested(request):
            return snapshot.but(ledger=snapshot.ledger.but(layout_request=request))
        case AllocatableListed(allocatable, requested_at):
            return snapshot.but(allocatable=Allocatable(allocatable, requested_at))
        case DrainRequested():
            health = drains.apply_drain_request(health, fact, machine, health_context(snapshot), now)
            return _with_health(snapshot, health)
        case StatusChanged(part, status):
            snapshot = snapshot.but(statuses=_with_status(snapshot.statuses, part, status, now))
            return (
                _mark_not_observed_since_release(snapshot, now)
                if isinstance(status, DriverStatus) and status.released
                else snapshot
            )
        case ConfigLoaded(settings, name, warnings):
            config = snapshot.config.but(settings=settings, name=name or "", warnings=warnings)
            return snapshot.but(config=config, ledger=snapshot.ledger.but(config_name=name))
        case CountersLoaded(counters):
            return snapshot.but(config=snapshot.config.but(counters=counters))
        case NodeRequestsChanged(asked):
            ledger = snapshot.ledger.but(node_requests=None if asked == NodeObjectRequests() else asked)
            return snapshot.but(config=snapshot.config.but(is_node_object_read=True), ledger=ledger)
        case PodsObserved(pods):
            return snapshot.but(pods=pods)
        case AllocationsListed(listed, asked_at, checkpoint_rewrite):
            ended = {claim: at for claim, at in snapshot.ended_claims.items() if at >= asked_at}
            listed = (*listed, *_allocations_not_listed_yet(allocations or (), listed, asked_at))
            health = holders.apply_kubelet_allocations(health, machine, listed)
            after = snapshot.but(allocations=listed, ended_claims=ended, checkpoint_rewrite=checkpoint_rewrite)
            return _with_health(after, health)
        case AllocateAnswered(resource, devices):
            grant = Allocation(resource=resource, devices=devices, granted_at=now)
            return snapshot.but(allocations=(*_without_replaced_allocation(allocations or (), grant), grant))
        case ClaimPrepareRequested(claim):
            return preparing.apply_prepare(snapshot, claim)
        case ClaimUnprepareRequested(claim):
            return preparing.apply_unprepare(snapshot, claim, now)
        case LedgerLoaded():
            loaded = fact.but(ledger=partitions.forget_interrupted_change(fact.ledger))
            return takeover.apply_loaded_ledger(snapshot, loaded, now)
        case LedgerStored(disk):
            return snapshot.but(stored_ledger=disk)
        case DriverReleaseRequested(release):
            return snapshot.but(ledger=snapshot.ledger.but(release=release))
        case Tick():
            return snapshot


def _with_health(snapshot: Snapshot, health: HealthRecords) -> Snapshot:
    return snapshot.but(ledger=snapshot.ledger.but(health=None if health == HealthRecords() else health))


def _mark_not_observed_since_release(snapshot: Snapshot, now: float) -> Snapshot:
    """The snapshot after the driver was released: what was observed before may be another machine now."""
    before = snapshot.machine
    if before is None:
        return snapshot
    machine, context = observation.mark_not_observed_since_release(before), health_context(snapshot)
    health = observations.apply_observation(health_records(snapshot), before, machine, False, (), context, now)
    return _with_health(snapshot.but(machine=machine), health)


def _update_layouts_in_ledger(before: Snapshot, after: Snapshot) -> Snapshot:
    """The snapshot with the GPU of each MIG device, and the layout of each shared unit, in its ledger."""
    if after.allocations is None or _share_layout_inputs(after) == _share_layout_inputs(before):
        return after
    parents = mig_parents(after.gpus, after.allocations, after.ledger.mig_parents)
    return after.but(
        ledger=after.ledger.but(mig_parents=parents or None, share_layouts=share_layouts_for_ledger(after) or None)
    )


def _share_layout_inputs(snapshot: Snapshot) -> tuple[object, ...]:
    """What layouts depend on."""
    ledger = snapshot.ledger
    there = snapshot.machine, snapshot.devices
    return snapshot.allocations, there, snapshot.config.settings, ledger.mig_parents, ledger.share_layouts


def _with_status(statuses: Statuses, part: AnyPart, status: Status | None, now: float) -> Statuses:
    before = statuses.get(part)
    if status is None:
        return statuses if before is None else statuses.but(part, None)
    since = before.since if before is not None and before.state == status.state else now
    return statuses.but(part, status.but(text=on_one_line(status.text), since=since))


def _without_replaced_allocation(
    allocations: tuple[Allocation, ...], new_allocation: Allocation
) -> Iterator[Allocation]:
    """The allocations without an earlier grant of the same devices: kubelet asks again for the next container."""
    for each in allocations:
        if not (
            each.granted_at and each.devices == new_allocation.devices and each.resource == new_allocation.resource
        ):
            yield each


def _allocations_not_listed_yet(
    known_allocations: tuple[Allocation, ...], listed: tuple[Allocation, ...], asked_at: float
) -> Iterator[Allocation]:
    """The grants that stay, beside what kubelet listed when it was asked at `asked_at`.

    The list says nothing about later grants: if it has the same ids, it means the container that had them before. An
    earlier grant is replaced by what the list shows of it, or is over if kubelet has had the time to list it.
    """
    for each in known_allocations:
        if each.granted_at and (
            each.granted_at >= asked_at
            or (each.granted_at > asked_at - ALLOCATION_LISTING_DELAY and not _is_listed(each, listed))
        ):
            yield each


def _is_listed(allocation: Allocation, listed: tuple[Allocation, ...]) -> bool:
    return any(a.resource == allocation.resource and set(allocation.devices) <= set(a.devices) for a in listed)


def _apply_elapsed_time(snapshot: Snapshot, now: float) -> Snapshot:
    """The snapshot as time changes it."""
    release = snapshot.ledger.release
    if release is not None and release.until <= now:
        snapshot = snapshot.but(ledger=snapshot.ledger.but(release=None))
    health = snapshot.ledger.health
    if health is None or records.have_no_pending_change(health):
        return snapshot
    return _with_health(snapshot, records.apply_elapsed_time(health, health_context(snapshot), now))


def next_due_time(snapshot: Snapshot) -> float | None:
    """When time alone changes the snapshot next; None: never."""
    release, health = snapshot.ledger.release, snapshot.ledger.health
    times = (
        None if release is None else release.until,
        None
        if health is None or records.have_no_pending_change(health)
        else records.next_due_time(health, health_context(snapshot)),
        timeslices.next_try_at(snapshot),
        partitions.next_change_at(snapshot),
    )
    return min((at for at in times if at is not None), default=None)
