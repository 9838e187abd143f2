"""Which pods to move, so that what is free is of more use."""

from collections.abc import Collection, Iterable

import numpy as np

from gpuplane.base.value import Value
from gpuplane.cluster.answers.assumed import build
from gpuplane.cluster.answers.places import PlaceShown, expected_workload, show_place
from gpuplane.cluster.engine.cluster import Cluster
from gpuplane.cluster.engine.configuration import PlacementConfig
from gpuplane.cluster.engine.consolidation import Move, Placed, plan_moves, usable_to
from gpuplane.cluster.engine.engine import Engine
from gpuplane.cluster.engine.policies.wasteprice import WastePrice
from gpuplane.cluster.model.nodes import Node
from gpuplane.cluster.model.pods import Pod
from gpuplane.cluster.model.requests import MILLI_PER_GPU, Placement, Request
from gpuplane.cluster.reading.cluster import SeenCluster
from gpuplane.cluster.reading.notes import Note


class MoveShown(Value, omit_defaults=False):
    """One pod "namespace/name", from where to where. `gain`: GPUs that its step makes usable, for each of its moves;
    moves of one `step` belong together. `is_assumed`: nobody says which GPUs it has."""

    step: int
    pod: str
    before: PlaceShown
    after: PlaceShown
    gain: float
    is_assumed: bool = False


class PlanShown(Value):
    """A plan. `pods`: that run on nodes with GPUs, `movable` of them. `fit_before`: the waiting pods that fit without
    it, and have their places in all that follows; `fit_after`: these, and those that fit then, one after the other, the
    first priority first. `free_before`, `free_after`: GPUs that nobody has a part of. `usable_before`, `usable_after`:
    GPUs, as much of all that is free as the expected requests could use. `least_moves`: where nothing moves, how many
    moves it takes to gain anything; 0: no number of moves does."""

    nodes: int
    gpus: int
    pods: int
    movable: int
    moves: tuple[MoveShown, ...]
    gain: float
    least_moves: int
    free_before: int
    free_after: int
    usable_before: float
    usable_after: float
    waiting: int
    fit_before: tuple[str, ...]
    fit_after: tuple[str, ...]
    notes: tuple[Note, ...]


def movable(seen: SeenCluster) -> list[Placed]:
    """The pods that a plan may move, of those on nodes with GPUs: a controller makes them anew, and they have what they
    ask for. Pods without GPUs are among them: where they have the CPU, GPUs are idle. Each asks for GPUs as good as
    those that it has."""
    nodes = {each.name: each for each in seen.nodes}
    return [
        Placed(each.name, _request_as_good(each.request, each.placement, nodes[each.placement.node]), each.placement)
        for each in _pods_on_gpu_nodes(seen)
        if each.placement is not None and each.uid and each.can_move
    ]


def _request_as_good(request: Request, placement: Placement, node: Node) -> Request:
    """What it asks for, of the models that it has, if it names none; and no smaller shares, if it asks for ids."""
    parts = [
        wanted.but(
            models=wanted.models or frozenset(node.gpus[share.gpu].model for share in shares),
            milli=min((share.milli for share in shares), default=0) if wanted.units else wanted.milli,
            memory_mib=min((share.memory_mib for share in shares), default=0) if wanted.units else wanted.memory_mib,
        )
        for wanted, shares in zip(request.gpus, placement.shares, strict=False)
    ]
    return request.but(gpus=tuple(parts)) if parts else request


def _pods_on_gpu_nodes(seen: SeenCluster) -> list[Pod]:
    nodes = {each.name for each in seen.nodes if each.gpus}
    return [each for each in seen.pods if each.placement is not None and each.placement.node in nodes]


def show_plan(seen: SeenCluster, config: PlacementConfig, most: int) -> PlanShown:
    """Which pods to move where, at most so many. By waste prices, whatever the configuration's policy is. The pods that
    wait and fit get their places first, so that no move takes them; the others count as much as all that run, for it is
    they that room is wanted for."""
    cluster, running = build(seen), [each for each in seen.pods if each.uid]
    fit_before = _place_all(cluster, seen.waiting, WastePrice(expected_workload(config, running, seen.waiting)))
    left = [each for each in seen.waiting if id(each) not in fit_before]
    running += fit_before.values()
    policy = WastePrice(expected_workload(config, running, left, times=max(1.0, len(running) / max(len(left), 1))))
    usable, rows, free_before = usable_to(policy, cluster), np.arange(len(cluster.nodes)), _free_gpus(cluster)
    usable_before = usable.of(cluster, rows).sum()
    may_move = movable(seen)
    plan = plan_moves(cluster, policy, may_move, most)
    free_after, usable_after = _free_gpus(cluster), usable.of(cluster, rows).sum()
    moves = _show_moves(cluster, plan.moves, {each.name for each in seen.pods if each.is_assumed})
    fit_after = fit_before | _place_all(cluster, left, policy)
    return PlanShown(
        nodes=len(cluster.rows),
        gpus=int((cluster.is_usable | cluster.is_partitioned).sum()),
        pods=len(_pods_on_gpu_nodes(seen)),
        movable=len(may_move),
        moves=moves,
        gain=plan.gain,
        least_moves=plan.least,
        free_before=free_before,
        free_after=free_after,
        usable_before=float(usable_before),
        usable_after=float(usable_after),
        waiting=len(seen.waiting),
        fit_before=tuple(each.name for each in seen.waiting if id(each) in fit_before),
        fit_after=tuple(each.name for each in seen.waiting if id(each) in fit_after),
        notes=seen.notes,
    )


def _show_moves(cluster: Cluster, moves: Iterable[Move], assumed: Collection[str]) -> tuple[MoveShown, ...]:
    return tuple(
        MoveShown(
            each.step,
            each.pod,
            show_place(cluster, each.before),
            show_place(cluster, each.after),
            each.gain,
            each.pod in assumed,
        )
        for each in moves
    )


def _free_gpus(cluster: Cluster) -> int:
    return int((cluster.room == MILLI_PER_GPU).sum())


def _place_all(cluster: Cluster, pods: Iterable[Pod], policy: WastePrice) -> dict[int, Pod]:
    """Place pods one after the other. Gives those that fit, by `id`."""
    engine, found = Engine(cluster, policy), dict[int, Pod]()
    for each in pods:
        if (placement := engine.choose(each.request)) is not None:
            cluster.take(each.request, placement)
            found[id(each)] = each
    return found
