"""The way to the requested layouts: which change is next, which is under way, and what came of it.

The plan of each GPU is a view. `step` starts one change of one GPU at a time, and writes it down before it begins; the
hardware makes it, and a look that shows it comes before the word that it was made. So after a crash at any point the
next agent looks, plans again and goes on.

- Of a GPU that no container holds, nothing is given out until its layout is made.
- A device that has to go is withheld first. It is destroyed when no container holds it, no grant of it is unsettled,
  and kubelet, asked after that, does not count it as allocatable any more.
- A failed change is tried again with growing delays; at once where the plan is another one by then.
- Where what is missing cannot be created (the driver says that there is no place, or again and again something else),
  the layout that was there before is restored, and the requested one is tried again later.
- No way to a layout takes more than some forty changes. Where more are made, the driver shows something else than it
  says, or a plan is wrong: then the layout before is restored, too.
- While a GPU does not answer, or the driver is released, it waits.
"""

from collections.abc import Mapping
from math import inf, nextafter

from gpuplane.node.core.partitions.desired import DesiredLayouts, desired_layouts
from gpuplane.node.core.partitions.gpuplan import GpuPlan, current_layout
from gpuplane.node.core.partitions.layouts import Placement
from gpuplane.node.core.partitions.plans import (
    MAX_FAILED_TRIES,
    NO_STATE,
    gpu_plans,
    hiding_fault,
    partition_states,
    plan_of_gpu,
    touched_units,
    withdrawn_units_of_gpu,
)
from gpuplane.node.core.requests import driver_release_reason
from gpuplane.node.core.serving import standby_reason
from gpuplane.node.core.shares import unit_of
from gpuplane.node.model.facts import ChangePartition, PartitionChangeFinished
from gpuplane.node.model.machine import Gpu
from gpuplane.node.model.partitions import (
    CreateComputeInstance,
    CreateGpuInstance,
    DestroyGpuInstance,
    GpuPartitionState,
)
from gpuplane.node.model.snapshot import Ledger, Snapshot
from gpuplane.node.model.status import DRIVER_PART

RETRY_DELAY_S, MAX_RETRY_DELAY_S = 1.0, 60.0
"""Seconds from a failed change to the next try: the first, doubled with each failure, up to the second."""
MAX_CHANGES = 60
"""Changes on the way to a layout. The longest way is to destroy and to create 7 instances with one compute instance
each, with a change of the mode and a reset in between."""
RESTORED_DELAY_S, MAX_RESTORED_DELAY_S = 60.0, 3600.0
"""Seconds from then to the next try of the requested layout: the first, doubled each time, up to the second."""

CREATES = CreateGpuInstance | CreateComputeInstance


def update_partitions(snapshot: Snapshot, now: float) -> Snapshot:
    """The snapshot with what the plans need to be remembered, and with the next change started, if one is due now."""
    if standby_reason(snapshot):
        return snapshot
    desired, states = desired_layouts(snapshot), partition_states(snapshot)
    if desired is None and not states:
        return snapshot
    layouts = desired.layouts if desired is not None and not desired.problem else {}
    found = {uuid: state if uuid in layouts else _without_request(state) for uuid, state in states.items()}
    if desired is not None and snapshot.allocations is not None:
        for gpu in snapshot.gpus:
            if gpu.uuid in layouts:
                found[gpu.uuid] = _follow_request(snapshot, gpu, desired, found.get(gpu.uuid, NO_STATE), now)
    snapshot = _with_states(snapshot, found)
    if any(state.pending for state in found.values()) or not _is_driver_usable(snapshot):
        return snapshot
    for uuid, plan in gpu_plans(snapshot).items():
        state = found[uuid]
        if plan.changes and next_try_at(state, plan) <= now and is_settled(snapshot, uuid, plan, state):
            return _with_states(snapshot, {**found, uuid: _begin(state, plan, now)})
    return snapshot


def _with_states(snapshot: Snapshot, states: Mapping[str, GpuPartitionState]) -> Snapshot:
    kept = {gpu: state for gpu, state in states.items() if state != NO_STATE}
    if kept == partition_states(snapshot):
        return snapshot
    return snapshot.but(ledger=snapshot.ledger.but(partitions=kept or None))


def forget_interrupted_change(ledger: Ledger) -> Ledger:
    """The ledger of an agent before us, without its change that was under way: a look shows whether it was made."""
    states = ledger.partitions or {}
    after = {
        gpu: each.but(pending=False, outcome_unknown=True) if each.pending else each for gpu, each in states.items()
    }
    return ledger if after == states else ledger.but(partitions=after)


def _without_request(state: GpuPartitionState) -> GpuPartitionState:
    """The state of a GPU of which no layout is requested any more."""
    return state if state.pending else GpuPartitionState(made=state.made)


def _follow_request(
    snapshot: Snapshot, gpu: Gpu, desired: DesiredLayouts, state: GpuPartitionState, now: float
) -> GpuPartitionState:
    """The state with what was there before the request, and since when which devices are withdrawn."""
    layout = desired.layouts[gpu.uuid]
    if state.requested != layout:
        state = GpuPartitionState(
            made=state.made, requested=layout, last_change=state.last_change, changed_at=state.changed_at,
            pending=state.pending,
        )  # fmt: skip
    if state.rolled_back and now >= state.restored_at + restored_delay(state):
        state = state.but(rolled_back=False, failed_tries=0, changes_made=0, problem="", failure="")
    if state.pending or hiding_fault(gpu):
        return state
    plan = plan_of_gpu(snapshot, gpu, desired, state)
    if plan.is_done and not state.rolled_back:
        there = {each.placement for each in gpu.gpu_instances}
        return GpuPartitionState(made=tuple(each for each in state.made if each in there), requested=layout)
    if plan.changes and state.before is None:
        state = state.but(before=current_layout(gpu))
    withdrawn = tuple(sorted(withdrawn_units_of_gpu(gpu, plan)))
    if not set(withdrawn) <= set(state.withdrawn):
        state = state.but(withdrawn_at=now)
    return state.but(withdrawn=withdrawn)


def _is_driver_usable(snapshot: Snapshot) -> bool:
    driver = snapshot.statuses.of(DRIVER_PART)
    return driver is not None and driver.state == "ok" and not driver_release_reason(snapshot)


def _begin(state: GpuPartitionState, plan: GpuPlan, now: float) -> GpuPartitionState:
    change = plan.changes[0]
    made = set(state.made)
    if isinstance(change, CreateGpuInstance):
        made.add((change.profile, change.start))  # it is ours, whatever becomes of us
    tries = state.failed_tries if change == state.last_change else 0
    now = max(now, nextafter(state.changed_at, inf))  # it is another try than the last one, also in the same moment
    return state.but(
        made=tuple(sorted(made)), last_change=change, changed_at=now, pending=True, outcome_unknown=False,
        failed_tries=tries,
    )  # fmt: skip


def next_try_at(state: GpuPartitionState, plan: GpuPlan) -> float:
    """When the next change of a plan may be tried. A time before now means at once."""
    if state.changes_made >= MAX_CHANGES:  # not even the layout before can be restored
        return state.restored_at + restored_delay(state)
    if not state.failed_tries or plan.changes[0] != state.last_change:
        return 0.0
    return state.changed_at + min(RETRY_DELAY_S * 2.0 ** min(state.failed_tries - 1, 16), MAX_RETRY_DELAY_S)


def restored_delay(state: GpuPartitionState) -> float:
    return min(RESTORED_DELAY_S * 2.0 ** min(max(state.restored_times - 1, 0), 16), MAX_RESTORED_DELAY_S)


def is_settled(snapshot: Snapshot, gpu: str, plan: GpuPlan, state: GpuPartitionState) -> bool:
    """Whether kubelet can give out nothing of what the next change of a plan touches."""
    there = snapshot.gpu(gpu)
    units = set(touched_units(there, plan.changes[0])) if there is not None else set()
    if not units or not any(True for _ in snapshot.statuses.of_kind("plugin")):  # kubelet was told of nothing
        return True
    listed = snapshot.allocatable
    if listed is None or listed.requested_at < state.withdrawn_at:
        return False
    return not any(unit_of(id) in units for ids in listed.ids.values() for id in ids)


def awaits_allocatable(snapshot: Snapshot) -> bool:
    """Whether a change waits only for kubelet to show what it could give out now."""
    if standby_reason(snapshot) or not _is_driver_usable(snapshot):
        return False
    states = partition_states(snapshot)
    return any(
        plan.changes and not is_settled(snapshot, uuid, plan, states.get(uuid, NO_STATE))
        for uuid, plan in gpu_plans(snapshot).items()
    )


def awaits_holders(snapshot: Snapshot) -> bool:
    """Whether a change waits for a container to end."""
    return any(plan.blocked_by or plan.blocks_mode for plan in gpu_plans(snapshot).values())


def current_change(snapshot: Snapshot) -> ChangePartition | None:
    """The action for the pending change; None if none is pending."""
    for uuid, state in partition_states(snapshot).items():
        if state.pending and state.last_change is not None and not standby_reason(snapshot):
            return ChangePartition(gpu=uuid, change=state.last_change, requested_at=state.changed_at)
    return None


def next_change_at(snapshot: Snapshot) -> float | None:
    """When time alone makes a change due; None if never."""
    states = partition_states(snapshot)
    if standby_reason(snapshot) or any(state.pending for state in states.values()):
        return None
    times = [
        next_try_at(states[uuid], plan)
        for uuid, plan in gpu_plans(snapshot).items()
        if plan.changes and uuid in states and is_settled(snapshot, uuid, plan, states[uuid])
    ]
    times = times if _is_driver_usable(snapshot) else []
    times += [state.restored_at + restored_delay(state) for state in states.values() if state.rolled_back]
    return min(times, default=None)


def finish_change(snapshot: Snapshot, fact: PartitionChangeFinished, now: float) -> Snapshot:
    """The snapshot after a change has finished. The result of an earlier change than the pending one is ignored."""
    states = partition_states(snapshot)
    state = states.get(fact.gpu)
    if state is None or not state.pending or state.changed_at != fact.requested_at:
        return snapshot
    if fact.failure:
        after = state.but(
            pending=False,
            outcome_unknown=fact.outcome_unknown,
            failed_tries=state.failed_tries + 1,
            problem=fact.problem,
            failure=fact.failure,
            users=fact.users,
        )
        if isinstance(fact.change, CreateGpuInstance) and not fact.outcome_unknown:
            after = after.but(made=_without(after.made, fact.change))
        if _gives_up(after):
            after = _restoring(after, now)
    else:
        after = state.but(
            pending=False, outcome_unknown=False, failed_tries=0, users=(), changes_made=state.changes_made + 1
        )
        if isinstance(fact.change, DestroyGpuInstance):
            after = after.but(made=_without(after.made, fact.change))
        if not after.rolled_back:
            after = after.but(problem="", failure="")
            if after.changes_made >= MAX_CHANGES:
                failure = f"{MAX_CHANGES} changes were made, and the GPU still lacks the requested layout"
                after = _restoring(after.but(problem="no-progress", failure=failure), now)
    return _with_states(snapshot, {**states, fact.gpu: after})


def _restoring(state: GpuPartitionState, now: float) -> GpuPartitionState:
    """The state from when on the layout before the request is restored."""
    times = state.restored_times + 1
    return state.but(rolled_back=True, restored_at=now, restored_times=times, failed_tries=0, changes_made=0)


def _gives_up(state: GpuPartitionState) -> bool:
    """Whether the layout before the request is to be restored: what is missing cannot be created."""
    if state.rolled_back or not isinstance(state.last_change, CREATES) or state.problem == "in-use":
        return False
    return state.problem in ("insufficient-resources", "not-supported") or state.failed_tries >= MAX_FAILED_TRIES


def _without(made: tuple[Placement, ...], change: CreateGpuInstance | DestroyGpuInstance) -> tuple[Placement, ...]:
    return tuple(each for each in made if each != (change.profile, change.start))
