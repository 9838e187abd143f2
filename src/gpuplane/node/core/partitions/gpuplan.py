"""The way of one GPU to its requested layout: its MIG mode, a reset where that needs one, and its instances."""

from collections.abc import Collection
from typing import Literal

from gpuplane.base.text import Text
from gpuplane.base.value import Value
from gpuplane.node.core.partitions.cards import profiles_of
from gpuplane.node.core.partitions.holders import HeldParts
from gpuplane.node.core.partitions.layouts import Placement, Profiles
from gpuplane.node.core.partitions.names import profile_name
from gpuplane.node.core.partitions.plan import Fixed, InstancesPlan, WantedInstances, plan_instances, wanted_instances
from gpuplane.node.model.machine import Gpu, Mig
from gpuplane.node.model.partitions import (
    CreateComputeInstance,
    CreateGpuInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    GpuInstance,
    GpuLayout,
    PartitionChange,
    PlacedInstance,
    ResetGpu,
    SetMigMode,
)

PlanCode = Literal[
    "",
    "not-partitionable",
    "does-not-fit",
    "foreign-instance",
    "reset-skipped",
    "instances-unknown",
]
"""Why a GPU cannot have what is requested, or not without somebody's help."""


class GpuPlan(Value):
    """The changes of one GPU, in their order; each but the first is planned again when its turn comes.

    `blocked_by`: GPU instances that containers hold and that have to go. `blocks_mode`: the mode cannot be changed
    while any container holds anything of the GPU. `problem`: what keeps it from its layout that does not end by itself.
    `withdrawn`: the GPU instances whose devices must not be given out any more; `withdrawn_compute`: of others, only
    these compute instances; `withdraws_gpu`: the GPU as a whole.
    """

    changes: tuple[PartitionChange, ...] = ()
    blocked_by: tuple[Placement, ...] = ()
    blocks_mode: bool = False
    later: tuple[Placement, ...] = ()
    moves: tuple[tuple[int, int, int], ...] = ()
    problem: Text = ""
    code: PlanCode = ""
    withdrawn: frozenset[Placement] = frozenset()
    withdrawn_compute: frozenset[tuple[Placement, int]] = frozenset()
    withdraws_gpu: bool = False

    @property
    def is_done(self) -> bool:
        """Whether the GPU has what is requested."""
        return not (self.changes or self.blocked_by or self.blocks_mode or self.later or self.problem)


def plan_gpu(
    gpu: Gpu,
    layout: GpuLayout,
    held: HeldParts,
    made: Collection[Placement],
    *,
    mode_only: bool = False,
    skip_reset: bool = False,
) -> GpuPlan:
    """How a GPU comes to a layout. `made`: the GPU instances that we made; others stay, unless the layout says so."""
    mig = gpu.mig
    if mig is None:
        text = "this GPU cannot be partitioned, or the driver does not tell"
        return GpuPlan(problem=text, code="not-partitionable") if layout.mig_enabled else GpuPlan()
    profiles, wanted = profiles_of(gpu), WantedInstances({})
    if layout.mig_enabled and not mode_only and (profiles or mig.enabled):
        try:
            wanted = wanted_instances(layout, profiles)
        except ValueError as error:
            return GpuPlan(problem=str(error), code="does-not-fit")
    if mig.enabled and mig.instances is None and not (layout.mig_enabled and mode_only):
        return GpuPlan(problem="the driver does not tell which instances the GPU has", code="instances-unknown")
    if layout.mig_enabled and mig.enabled:
        first: tuple[PartitionChange, ...] = (SetMigMode(True),) if mig.pending is False else ()
        if mode_only:
            return GpuPlan(changes=first)
        found = _with_instances(gpu, mig, profiles, wanted, layout, held, made)
        return found if found.problem else found.but(changes=(*first, *found.changes))
    if layout.mig_enabled:
        beyond = plan_instances(profiles, (), wanted, Fixed())
        if beyond.problem:
            return GpuPlan(problem=beyond.problem, code="does-not-fit")
        return _with_mode(mig, held, (), () if mode_only else beyond.changes, skip_reset=skip_reset)
    if mig.enabled:
        gone = _with_instances(gpu, mig, profiles, WantedInstances({}), layout, held, made)
        if gone.problem or gone.blocked_by:
            return gone.but(withdraws_gpu=not gone.problem)
        return _with_mode(mig, held, gone.changes, (), skip_reset=skip_reset)
    return GpuPlan(changes=(SetMigMode(False),)) if mig.pending else GpuPlan()


def impossible_layout_reason(gpu: Gpu, layout: GpuLayout, *, mode_only: bool = False) -> Text:
    """Why a GPU could not have a layout even if nobody used it, and every instance might go; "" where it could."""
    plan = plan_gpu(gpu, layout.but(replaces_foreign=True), HeldParts(), (), mode_only=mode_only)
    return plan.problem if plan.code in ("not-partitionable", "does-not-fit") else ""


def _with_instances(
    gpu: Gpu,
    mig: Mig,
    profiles: Profiles,
    wanted: WantedInstances,
    layout: GpuLayout,
    held: HeldParts,
    made: Collection[Placement],
) -> GpuPlan:
    instances = mig.instances or ()
    foreign = {each.placement for each in instances if each.placement not in made and not layout.replaces_foreign}
    fixed = Fixed(frozenset({*held.instances, *foreign}), frozenset(held.compute_instances))
    if foreign:
        parts = {(each.placement, part.id) for each in instances for part in each.compute_instances}
        fixed = fixed.but(compute_instances=fixed.compute_instances | {part for part in parts if part[0] in foreign})
    plan = plan_instances(profiles, instances, wanted, fixed)
    if plan.problem:
        return GpuPlan(problem=plan.problem, code="does-not-fit")
    if in_the_way := foreign.intersection(plan.blocked_by):
        return GpuPlan(problem=_describe_foreign(gpu, in_the_way), code="foreign-instance")
    return _withdrawing(GpuPlan(changes=plan.changes, later=plan.later, moves=plan.moves), plan)


def _withdrawing(found: GpuPlan, plan: InstancesPlan) -> GpuPlan:
    """The plan, with what must not be given out any more: what is destroyed, and what has to go when it is free."""
    going = {(each.profile, each.start) for each in plan.changes if isinstance(each, DestroyGpuInstance)}
    compute = {
        ((each.profile, each.start), each.compute_instance)
        for each in plan.changes
        if isinstance(each, DestroyComputeInstance) and (each.profile, each.start) not in going
    }
    return found.but(
        blocked_by=plan.blocked_by,
        withdrawn=frozenset({*going, *plan.blocked_by}),
        withdrawn_compute=frozenset(compute),
    )


def _with_mode(
    mig: Mig,
    held: HeldParts,
    before: tuple[PartitionChange, ...],
    after: tuple[PartitionChange, ...],
    *,
    skip_reset: bool,
) -> GpuPlan:
    """A plan that changes the mode: what has to be done before, the mode, a reset where it needs one, and the rest."""
    wanted = not mig.enabled
    is_set = mig.pending is wanted and mig.needs_reset is not False  # else somebody was in the way: it is set again
    needs_reset = is_set or bool(mig.needs_reset)
    changes: tuple[PartitionChange, ...] = () if is_set else (SetMigMode(wanted),)
    if needs_reset and skip_reset and is_set:
        text = f"MIG mode is {'on' if wanted else 'off'} after the next reset of the GPU, and the request skips resets"
        return GpuPlan(problem=text, code="reset-skipped")
    if needs_reset:
        changes = (*changes, *(() if skip_reset else (ResetGpu(),)))
        after = () if skip_reset else after
    if held.anyone:
        return GpuPlan(blocks_mode=True, withdraws_gpu=True)
    return GpuPlan(changes=(*before, *changes, *after), withdraws_gpu=True)


def _describe_foreign(gpu: Gpu, places: Collection[Placement]) -> Text:
    names = {each.id: each.name for each in profiles_of(gpu)}
    ids = {each.placement: each.id for each in gpu.gpu_instances}
    found = ", ".join(
        f"GPU instance {ids[each]} ({names.get(each[0], 'of an unknown profile')})" for each in sorted(places)
    )
    return (
        f"gpuplane did not make {found}, so it does not destroy it: destroy it yourself (nvidia-smi mig), or request "
        "the layout for all GPUs (devices: all)"
    )


def current_layout(gpu: Gpu) -> GpuLayout:
    """The layout that a GPU has now, with the places of its instances."""
    if gpu.mig is None or not gpu.mig.enabled:
        return GpuLayout(mig_enabled=False)
    known = {each.id: each for each in profiles_of(gpu)}
    placed = tuple(_placed(each, known[each.profile].name) for each in gpu.mig.instances or () if each.profile in known)
    devices: dict[str, int] = {}
    for each in gpu.mig.instances or ():
        for part in each.compute_instances if each.profile in known else ():
            name = profile_name(known[each.profile], part.slices)
            devices[name] = devices.get(name, 0) + 1
    return GpuLayout(mig_enabled=True, mig_devices=devices, placed=placed)


def _placed(instance: GpuInstance, name: str) -> PlacedInstance:
    sizes = sorted((each.slices for each in instance.compute_instances), reverse=True)
    return PlacedInstance(profile=name, start=instance.start, compute_slices=tuple(sizes))


def describe_change(change: PartitionChange, profiles: Profiles) -> str:
    """What a change does, for people."""
    names = {each.id: each.name for each in profiles}
    match change:
        case SetMigMode(enabled):
            return f"switch MIG mode {'on' if enabled else 'off'}"
        case ResetGpu():
            return "reset the GPU"
        case CreateGpuInstance(profile, start):
            return f"create GPU instance {names.get(profile, profile)} at memory slice {start}"
        case DestroyGpuInstance(instance, profile, start):
            return f"destroy GPU instance {instance}, {names.get(profile, profile)} at memory slice {start}"
        case CreateComputeInstance(profile, start, slices):
            return f"create a compute instance of {slices}c in {names.get(profile, profile)} at memory slice {start}"
        case DestroyComputeInstance(profile, start, compute_instance):
            return (
                f"destroy compute instance {compute_instance} of {names.get(profile, profile)} at memory slice {start}"
            )
