"""How the requested layouts stand: what people and other programs are shown."""

from collections.abc import Mapping

from gpuplane.base.text import Text, join_first_names
from gpuplane.node.core.allocations import held_allocations
from gpuplane.node.core.partitions.cards import profiles_of
from gpuplane.node.core.partitions.desired import desired_layouts
from gpuplane.node.core.partitions.gpuplan import GpuPlan, describe_change
from gpuplane.node.core.partitions.holders import HeldParts, held_parts
from gpuplane.node.core.partitions.plans import MAX_FAILED_TRIES, NO_STATE, gpu_plans, hiding_fault, partition_states
from gpuplane.node.core.partitions.state_machine import is_settled, next_try_at, restored_delay
from gpuplane.node.core.requests import driver_release_reason
from gpuplane.node.core.view import view
from gpuplane.node.model.machine import Gpu
from gpuplane.node.model.partitions import GpuPartitionState, GpuProgress, PartitionsProgress, ProgressState
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import ALLOCATABLE_PART


@view
def partitions_progress(snapshot: Snapshot) -> PartitionsProgress | None:
    """How the requested layouts stand; None where none is requested, or too little is known."""
    desired = desired_layouts(snapshot)
    if desired is None:
        return None
    if desired.problem:
        return PartitionsProgress(config=desired.name, problem=desired.problem, code=desired.code)
    there = {gpu.uuid: gpu for gpu in snapshot.gpus}
    found = [
        _progress(snapshot, there.get(uuid), uuid)
        for uuid in sorted(desired.layouts, key=lambda each: _order(there, each))
    ]
    return PartitionsProgress(config=desired.name, gpus=tuple(found))


def _order(there: Mapping[str, Gpu], uuid: str) -> tuple[int, str]:
    return (there[uuid].index if uuid in there else len(there), uuid)


def _progress(snapshot: Snapshot, gpu: Gpu | None, uuid: str) -> GpuProgress:
    state, plan = partition_states(snapshot).get(uuid, NO_STATE), gpu_plans(snapshot).get(uuid)
    if gpu is None:
        return GpuProgress(uuid, "waiting", f"the driver lists no GPU {uuid}", "gpu-missing")
    name = f"GPU {gpu.index}"
    if code := hiding_fault(gpu):
        return GpuProgress(uuid, "waiting", f"{name} does not answer ({code})", code)
    if why := driver_release_reason(snapshot):
        return GpuProgress(uuid, "waiting", f"the driver is released: {why}", "driver-released")
    if plan is None:
        return GpuProgress(uuid, "waiting", "kubelet has not reported yet what containers hold", "allocations-unknown")
    if plan.problem and not state.rolled_back:
        return GpuProgress(uuid, "failed", f"{name}: {plan.problem}", plan.code)
    if state.rolled_back:
        done = "is restored" if plan.is_done else "is being restored"
        text = f"{name}: {_failure_text(gpu, state)}; the layout before {done}"
        return GpuProgress(uuid, "failed", text, state.problem, next_try_at=state.restored_at + restored_delay(state))
    if state.failed_tries and state.failure:
        next_try = next_try_at(state, plan) if plan.changes else None
        text = f"{name}: {_failure_text(gpu, state)}"
        return GpuProgress(uuid, _standing_of_failure(state), text, state.problem, next_try_at=next_try)
    if plan.is_done:
        return GpuProgress(uuid, "done")
    held = held_parts(gpu, held_allocations(snapshot) or (), snapshot.ledger.mig_parents or {})
    if plan.changes:
        if not state.pending and not is_settled(snapshot, uuid, plan, state):
            return _waits_for_kubelet(snapshot, uuid, name)
        return GpuProgress(uuid, "changing", f"{name}: {describe_change(plan.changes[0], profiles_of(gpu))}")
    names = held.anyone if plan.blocks_mode else _blocking(held, plan)
    text = f"{name}: {join_first_names(names, 5)} must end first"
    return GpuProgress(uuid, "waiting", text, "held", holders=names)


def _standing_of_failure(state: GpuPartitionState) -> ProgressState:
    """How a GPU stands whose last change failed. A failure that may pass in a second is none yet."""
    if state.problem == "in-use":
        return "waiting"
    may_pass = state.problem in ("failed", "gone") and state.failed_tries < MAX_FAILED_TRIES
    return "changing" if may_pass else "failed"


def _blocking(held: HeldParts, plan: GpuPlan) -> tuple[str, ...]:
    compute = (
        name for (place, _), names in held.compute_instances.items() if place in plan.blocked_by for name in names
    )
    return tuple(dict.fromkeys((*(n for place in plan.blocked_by for n in held.instances.get(place, ())), *compute)))


def _failure_text(gpu: Gpu, state: GpuPartitionState) -> Text:
    said = f"it could not {describe_change(state.last_change, profiles_of(gpu))}" if state.last_change else "it failed"
    who = ", ".join(f"{each.name} ({each.pid})" if each.pid else each.name for each in state.users[:5])
    return f"{said}: {state.failure}" + (f"; in use by {who}" if who else "")


def _waits_for_kubelet(snapshot: Snapshot, uuid: str, name: str) -> GpuProgress:
    """Kubelet follows in a moment, unless it does not answer."""
    text = f"{name}: kubelet still counts devices as allocatable that are about to go"
    status = snapshot.statuses.of(ALLOCATABLE_PART)
    if status is None:
        return GpuProgress(uuid, "changing", text, "allocatable")
    return GpuProgress(uuid, "waiting", f"{text}: {status.text}", "allocatable")
