"""What would be done for a request, GPU by GPU: `plan`, and `--dry-run` of what changes something."""

from collections.abc import Collection, Mapping

from gpuplane.base.text import Text, format_count
from gpuplane.base.value import Value
from gpuplane.node.core.allocations import held_allocations
from gpuplane.node.core.partitions.cards import profiles_of
from gpuplane.node.core.partitions.gpuplan import GpuPlan, describe_change, plan_gpu
from gpuplane.node.core.partitions.holders import HeldParts, held_parts
from gpuplane.node.core.partitions.layouts import Placement
from gpuplane.node.core.partitions.plans import NO_STATE, partition_states
from gpuplane.node.model.machine import Gpu
from gpuplane.node.model.partitions import LayoutRequest, PartitionChange
from gpuplane.node.model.snapshot import Snapshot


class PlannedGpu(Value, omit_defaults=False):
    """One GPU. `changes`: in their order. `waits_for`: pods that hold what has to go.
    `changes_after_wait`: the changes when these have ended, as far as they are known now: they are planned again then.

    `moves`: instances that are free, and destroyed only to be created elsewhere. `problem`: why it cannot have the
    layout, or not without somebody's help, and `code` for programs.
    """

    index: int
    uuid: str
    changes: tuple[Text, ...]
    moves: tuple[Text, ...]
    waits_for: tuple[str, ...]
    changes_after_wait: tuple[Text, ...]
    problem: Text
    code: str

    @property
    def is_done(self) -> bool:
        """Whether it has its layout."""
        return not (self.changes or self.waits_for or self.problem)


class Planned(Value, omit_defaults=False):
    """What `--json` shows. `possible`: no GPU has a problem. `holders_known`: it is known what containers hold."""

    config: str
    possible: bool
    holders_known: bool
    gpus: tuple[PlannedGpu, ...]


def plan_request(snapshot: Snapshot, request: LayoutRequest) -> Planned:
    """The plan of each GPU of which a layout is requested."""
    gpus = tuple(_planned(snapshot, gpu, request) for gpu in snapshot.gpus if gpu.uuid in request.layouts)
    return Planned(
        config=request.name,
        possible=not any(each.problem for each in gpus),
        holders_known=snapshot.allocations is not None,
        gpus=gpus,
    )


def plan_lines(planned: Planned) -> list[Text]:
    """The plan for people."""
    lines: list[Text] = []
    done = [gpu for gpu in planned.gpus if gpu.is_done]
    for gpu in planned.gpus:
        name = f"GPU {gpu.index} ({gpu.uuid})"
        if gpu.problem:
            lines.append(f"{name}: {gpu.problem}")
        elif not gpu.is_done:
            lines.append(f"{name}: {format_count(len(gpu.changes) + len(gpu.changes_after_wait), 'change')}")
        lines += (f"  {number}. {change}" for number, change in enumerate(gpu.changes, 1))
        lines += (f"  {move}" for move in gpu.moves)
        if gpu.waits_for:
            lines.append(
                f"  then it waits for {', '.join(gpu.waits_for)}"
                if gpu.changes
                else f"  it waits for {', '.join(gpu.waits_for)}"
            )
        lines += (f"  {number}. {change}" for number, change in enumerate(gpu.changes_after_wait, len(gpu.changes) + 1))
    if done:
        lines.append(f"{format_count(len(done), 'GPU')} {'have' if done[1:] else 'has'} the layout of {planned.config}")
    if not planned.holders_known:
        lines.append("it is not known yet what containers hold")
    return lines


def _planned(snapshot: Snapshot, gpu: Gpu, request: LayoutRequest) -> PlannedGpu:
    held = held_parts(gpu, held_allocations(snapshot) or (), snapshot.ledger.mig_parents or {})
    made = partition_states(snapshot).get(gpu.uuid, NO_STATE).made
    plan = plan_gpu(
        gpu, request.layouts[gpu.uuid], held, made, mode_only=request.mode_only, skip_reset=request.skip_reset
    )
    later = _changes_when_free(gpu, request, plan, made) if plan.blocked_by or plan.blocks_mode else ()
    profiles = profiles_of(gpu)
    names = {each.id: each.name for each in profiles}
    holders = held.anyone if plan.blocks_mode else _holders_of(plan.blocked_by, held.instances)
    return PlannedGpu(
        index=gpu.index,
        uuid=gpu.uuid,
        changes=tuple(describe_change(each, profiles) for each in plan.changes),
        moves=tuple(
            f"{names.get(profile, profile)} moves from memory slice {start} to {end}, for it is in the way"
            for profile, start, end in plan.moves
        ),
        waits_for=holders,
        changes_after_wait=tuple(describe_change(each, profiles) for each in later),
        problem=plan.problem,
        code=plan.code,
    )


def _changes_when_free(
    gpu: Gpu, request: LayoutRequest, plan: GpuPlan, made: Collection[Placement]
) -> tuple[PartitionChange, ...]:
    """The changes that a plan leaves for when no container holds anything of the GPU."""
    free = plan_gpu(
        gpu, request.layouts[gpu.uuid], HeldParts(), made, mode_only=request.mode_only, skip_reset=request.skip_reset
    )
    return tuple(each for each in free.changes if each not in plan.changes)


def _holders_of(places: tuple[Placement, ...], holders: Mapping[Placement, tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for place in places for name in holders.get(place, ())))
