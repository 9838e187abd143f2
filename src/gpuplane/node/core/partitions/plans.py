"""The plan of each GPU of which a layout is requested, and the devices that must not be given out because of it."""

from collections.abc import Iterator, Mapping

from gpuplane.base.text import Text
from gpuplane.node.core.allocations import held_allocations
from gpuplane.node.core.kinds.nvidia.faults import CODES_THAT_HIDE_OTHERS
from gpuplane.node.core.partitions.desired import DesiredLayouts, desired_layouts
from gpuplane.node.core.partitions.gpuplan import GpuPlan, plan_gpu
from gpuplane.node.core.partitions.holders import HeldParts, held_parts
from gpuplane.node.core.view import view
from gpuplane.node.model.machine import Gpu
from gpuplane.node.model.partitions import (
    DestroyComputeInstance,
    DestroyGpuInstance,
    GpuLayout,
    GpuPartitionState,
    PartitionChange,
    ResetGpu,
    SetMigMode,
)
from gpuplane.node.model.reasons import Reason
from gpuplane.node.model.snapshot import Snapshot

NO_STATE, NO_PLAN = GpuPartitionState(), GpuPlan()
MAX_FAILED_TRIES = 3
"""Tries in a row of one change, after which it counts as failed. Of a creation, the layout that was there before is
then restored."""

CHANGING_TEXT = "the MIG layout of its GPU is being changed"


def partition_states(snapshot: Snapshot) -> Mapping[str, GpuPartitionState]:
    """UUID of a GPU → what we did to its partitions."""
    return snapshot.ledger.partitions or {}


@view
def gpu_plans(snapshot: Snapshot) -> Mapping[str, GpuPlan]:
    """UUID → the plan of each GPU of which a layout is requested, and which answers; {} while too little is known."""
    desired = desired_layouts(snapshot)
    if desired is None or desired.problem or snapshot.allocations is None:
        return {}
    return {
        gpu.uuid: plan_of_gpu(snapshot, gpu, desired, partition_states(snapshot).get(gpu.uuid, NO_STATE))
        for gpu in snapshot.gpus
        if gpu.uuid in desired.layouts and not hiding_fault(gpu)
    }


def plan_of_gpu(snapshot: Snapshot, gpu: Gpu, desired: DesiredLayouts, state: GpuPartitionState) -> GpuPlan:
    """A GPU's plan. It is made anew only where the GPU, its layout or who holds it is another.

    A GPU that has its layout has it whoever holds its parts: so a grant costs nothing there.
    """
    layout = _effective_layout(state, desired.layouts[gpu.uuid])
    memory: dict[str, tuple[object, HeldParts, GpuPlan]] = snapshot.memory.setdefault(plan_of_gpu, {})
    card = gpu.mig, gpu.pci_id, gpu.model, gpu.memory_mib
    question = card, layout, state.made, desired.mode_only, desired.skip_reset
    before, held_before, plan = memory.get(gpu.uuid, (None, HeldParts(), NO_PLAN))
    if before == question and plan.is_done:
        return plan
    held = held_parts(gpu, held_allocations(snapshot) or (), snapshot.ledger.mig_parents or {})
    if before != question or held != held_before:
        plan = plan_gpu(gpu, layout, held, state.made, mode_only=desired.mode_only, skip_reset=desired.skip_reset)
        memory[gpu.uuid] = question, held, plan
    return plan


def _effective_layout(state: GpuPartitionState, layout: GpuLayout) -> GpuLayout:
    """The layout to go for: the requested one, or for a time the one before it."""
    if state.rolled_back and state.requested == layout and state.before is not None:
        return state.before.but(replaces_foreign=layout.replaces_foreign)
    return layout


def hiding_fault(gpu: Gpu) -> str:
    """The code of the fault because of which a GPU is not asked anything; "" for none."""
    return next((fault.code for fault in gpu.faults if fault.code in CODES_THAT_HIDE_OTHERS), "")


@view
def withdrawn_units(snapshot: Snapshot) -> Mapping[str, Reason]:
    """UUID of each device that must not be given out because of a layout, and why: it is about to go or to change its
    mode, or its GPU waits for its layout.

    A change that is under way is not called back when the request changes.
    """
    plans, states, waiting = gpu_plans(snapshot), partition_states(snapshot), gpus_awaiting_layout(snapshot)
    reason = Reason(kind="configured", text=_withdrawn_text(snapshot), code="layout-changing")
    found: dict[str, Reason] = {}
    for gpu in snapshot.gpus if plans or states else ():
        if gpu.uuid in waiting:
            found |= dict.fromkeys((gpu.uuid, *(each.uuid for each in gpu.mig_devices)), reason.but(kind="waiting"))
            continue
        found |= dict.fromkeys(withdrawn_units_of_gpu(gpu, plans.get(gpu.uuid, NO_PLAN)), reason)
        state = states.get(gpu.uuid, NO_STATE)
        if state.pending and state.last_change is not None:
            found |= dict.fromkeys(touched_units(gpu, state.last_change), reason)
    return dict(sorted(found.items()))


@view
def gpus_awaiting_layout(snapshot: Snapshot) -> frozenset[str]:
    """The UUIDs of the GPUs of which nothing is given out until their layouts are made: no container holds any part.

    A GPU whose changes fail again and again, or which gets back the layout before, is not among them: what it has is
    given out again, for nobody knows how long the requested layout takes.
    """
    states, parents = partition_states(snapshot), snapshot.ledger.mig_parents or {}
    unfinished = {uuid for uuid, plan in gpu_plans(snapshot).items() if not (plan.is_done or plan.problem)}
    return frozenset(
        gpu.uuid
        for gpu in snapshot.gpus
        if gpu.uuid in unfinished
        and _is_followed(states.get(gpu.uuid, NO_STATE))
        and not held_parts(gpu, held_allocations(snapshot) or (), parents).anyone
    )


def _is_followed(state: GpuPartitionState) -> bool:
    """Whether the requested layout is on its way."""
    return not state.rolled_back and state.failed_tries < MAX_FAILED_TRIES


def _withdrawn_text(snapshot: Snapshot) -> Text:
    desired = desired_layouts(snapshot)
    return f"the MIG layout of its GPU is being changed to {desired.name}" if desired is not None else CHANGING_TEXT


def withdrawn_units_of_gpu(gpu: Gpu, plan: GpuPlan) -> Iterator[str]:
    """The UUIDs of the devices that must not be given out while a plan is carried out."""
    places = {each.id: each.placement for each in gpu.gpu_instances}
    if plan.withdraws_gpu:
        yield gpu.uuid
    for device in gpu.mig_devices:
        place = places.get(device.gpu_instance)
        part = (place, device.compute_instance)
        if plan.withdraws_gpu or place in plan.withdrawn or part in plan.withdrawn_compute:
            yield device.uuid


def touched_units(gpu: Gpu, change: PartitionChange) -> Iterator[str]:
    """The UUIDs of the devices that are gone, or are others, after a change."""
    if isinstance(change, SetMigMode | ResetGpu):
        is_pending = gpu.mig is not None and gpu.mig.pending is not None
        if is_pending if isinstance(change, ResetGpu) else change.enabled != gpu.mig_enabled:
            yield gpu.uuid
            yield from (each.uuid for each in gpu.mig_devices)
    elif isinstance(change, DestroyGpuInstance | DestroyComputeInstance):
        instances = gpu.gpu_instances
        ids = {each.id for each in instances if each.placement == (change.profile, change.start)}
        for device in gpu.mig_devices:
            is_same = isinstance(change, DestroyGpuInstance) or device.compute_instance == change.compute_instance
            if device.gpu_instance in ids and is_same:
                yield device.uuid
