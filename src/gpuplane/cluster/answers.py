"""What is asked about a cluster that was read: which pods to move, and why a pod goes where. Pure; nothing is changed.

Both expect the requests that the cluster's own pods make, beside those of the configuration.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import numpy as np

from gpuplane.base.value import Value
from gpuplane.cluster.engine.cluster import Cluster
from gpuplane.cluster.engine.configuration import PlacementConfig
from gpuplane.cluster.engine.consolidation import Move, Placed, plan_moves, usable_to
from gpuplane.cluster.engine.engine import Engine
from gpuplane.cluster.engine.explanation import Explanation, GpuReason, NodeReason, emptied, explain, explain_gpus
from gpuplane.cluster.engine.policies import make_policy
from gpuplane.cluster.engine.policies.wasteprice import WastePrice
from gpuplane.cluster.engine.preemption import Preemption
from gpuplane.cluster.engine.workload import Workload
from gpuplane.cluster.model.nodes import Node
from gpuplane.cluster.model.pods import Pod
from gpuplane.cluster.model.requests import WHOLE, Placement, Request
from gpuplane.cluster.reading.cluster import SeenCluster
from gpuplane.cluster.reading.held import Note


class PlaceShown(Value, omit_defaults=False):
    """GPUs of a node, by their ids."""

    node: str
    gpus: tuple[str, ...] = ()


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


class EndShown(Value, omit_defaults=False):
    """What would have to end on a node: pods "namespace/name" with their priorities. `waiting`: those of them that only
    wait, and are to get their places before. `budgets`: those of disruption that would be exceeded."""

    node: str
    pods: Mapping[str, int]
    waiting: tuple[str, ...] = ()
    budgets: tuple[str, ...] = ()


class PodShown(Value, omit_defaults=False):
    """The decision about a pod. `now`: where it is; None: it waits. `place`: where it would go; None: it fits nowhere.
    `gpus`: of that node, or of the one that was asked about. `counts`: of the nodes, by reason. `preemption`: what of
    lower priority would have to end, and `ending`: what of any priority."""

    pod: str
    priority: int
    now: PlaceShown | None
    place: PlaceShown | None
    gpus: tuple[GpuReason, ...]
    counts: Mapping[str, int]
    nodes: tuple[NodeReason, ...]
    preemption: EndShown | None = None
    ending: EndShown | None = None


class PodUnknown(KeyError):
    """A pod that neither runs nor waits."""


def movable(seen: SeenCluster) -> list[Placed]:
    """The pods that a plan may move, of those on nodes with GPUs: a controller makes them anew, and they have what they
    ask for. Pods without GPUs are among them: where they have the CPU, GPUs are idle. Each asks for GPUs as good as
    those that it has."""
    nodes = {each.name: each for each in seen.nodes}
    return [
        Placed(each.name, _as_good(each.request, each.placement, nodes[each.placement.node]), each.placement)
        for each in _beside_gpus(seen)
        if each.placement is not None and each.uid and each.can_move
    ]


def _as_good(request: Request, placement: Placement, node: Node) -> Request:
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


def _beside_gpus(seen: SeenCluster) -> list[Pod]:
    nodes = {each.name for each in seen.nodes if each.gpus}
    return [each for each in seen.pods if each.placement is not None and each.placement.node in nodes]


def show_plan(seen: SeenCluster, config: PlacementConfig, most: int) -> PlanShown:
    """Which pods to move where, at most so many. By waste prices, whatever the configuration's policy is. The pods that
    wait and fit get their places first, so that no move takes them; the others count as much as all that run, for it is
    they that room is wanted for."""
    cluster, running = seen.build(), [each for each in seen.pods if each.uid]
    fit_before = _place_all(cluster, seen.waiting, WastePrice(_workload(config, running, seen.waiting)))
    left = [each for each in seen.waiting if id(each) not in fit_before]
    running += fit_before.values()
    policy = WastePrice(_workload(config, running, left, times=max(1.0, len(running) / max(len(left), 1))))
    usable, rows, free_before = usable_to(policy, cluster), np.arange(len(cluster.nodes)), _free_gpus(cluster)
    usable_before = usable.of(cluster, rows).sum()
    may_move = movable(seen)
    plan = plan_moves(cluster, policy, may_move, most)
    free_after, usable_after = _free_gpus(cluster), usable.of(cluster, rows).sum()
    moves = _shown(cluster, plan.moves, {each.name for each in seen.pods if each.is_assumed})
    fit_after = fit_before | _place_all(cluster, left, policy)
    return PlanShown(
        nodes=len(cluster.rows),
        gpus=int((cluster.is_usable | cluster.is_partitioned).sum()),
        pods=len(_beside_gpus(seen)),
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


def show_waiting(
    seen: SeenCluster,
    config: PlacementConfig,
    only: str = "",
    node: str = "",
    done: Callable[[], None] = lambda: None,
) -> list[PodShown]:
    """The decisions about all pods that wait, in their order: each sees those before it in their places, and what these
    preempt as gone.

    `only`: about this pod "namespace/name" alone. If it runs, as if it came now. `node`: with the GPUs of this node.
    `done` is called at each decision. Raises PodUnknown, and KeyError where there is no such node.
    """
    cluster, running, budgets = seen.build(), {each.name: each for each in seen.pods if each.uid}, dict(seen.budgets)
    engine = Engine(cluster, make_policy(config.policy, _workload(config, running.values(), seen.waiting)))
    if only in running:
        pod = running[only]
        assert pod.placement is not None
        cluster.give_back(pod.request, pod.placement)
        others = [each for each in seen.pods if each is not pod]
        decided = explain(engine, pod, others, budgets=budgets)
        return [_shown_pod(cluster, pod, decided, others, node, budgets)]
    waiting = {each.name for each in seen.waiting}
    if only and only not in waiting:
        raise PodUnknown(only)
    empty, placed, found = emptied(cluster), {id(each): each for each in seen.pods}, list[PodShown]()
    version, known = -1, dict[tuple[Request, int, bool], Explanation]()
    for each in seen.waiting:
        if version != cluster.version:  # while nothing changes, pods that are alike are explained once
            version, known = cluster.version, {}
        alike = each.request, each.priority, each.may_preempt
        decided = known[alike] = known.get(alike) or explain(engine, each, placed.values(), empty, budgets)
        if each.name == only or not only:
            found.append(_shown_pod(cluster, each, decided, [*placed.values()], node, budgets, waiting))
        done()
        if each.name == only:
            break
        if (place := decided.preemption) is not None:
            for other in place.ends:
                assert other.placement is not None
                cluster.give_back(other.request, other.placement)
                del placed[id(other)]
                for name in other.budgets:
                    budgets[name] = max(budgets[name] - 1, 0)
        placement = decided.placement if place is None else place.placement
        if placement is not None:
            cluster.take(each.request, placement)
            there = each.but(placement=placement, budgets=())  # it does not run yet: to end it disrupts nothing
            placed[id(there)] = there
    return found


def _workload(
    config: PlacementConfig, running: Iterable[Pod], waiting: Iterable[Pod], *, times: float = 1.0
) -> Workload:
    """What is expected: the pods that run and those that wait, each of these as so many."""
    workload = config.workload()
    for each in running:
        workload.arrive(each.request)
    for each in waiting:
        workload.arrive(each.request, times)
    return workload


def _shown_pod(
    cluster: Cluster,
    pod: Pod,
    found: Explanation,
    placed: Sequence[Pod],
    node: str,
    budgets: Mapping[str, int],
    waiting: Collection[str] = (),
) -> PodShown:
    return PodShown(
        pod=pod.name,
        priority=pod.priority,
        now=None if pod.placement is None else _place(cluster, pod.placement),
        place=None if found.placement is None else _place(cluster, found.placement),
        gpus=explain_gpus(cluster, pod.request, node, placed, found.placement) if node else found.gpus,
        counts=dict(found.counts()),
        nodes=found.nodes,
        preemption=_ends(found.preemption, waiting, budgets),
        ending=_ends(found.ending, waiting, budgets),
    )


def _ends(found: Preemption | None, waiting: Collection[str], budgets: Mapping[str, int]) -> EndShown | None:
    if found is None:
        return None
    ends = {each.name: each.priority for each in found.ends}
    return EndShown(
        found.placement.node, ends, tuple(name for name in ends if name in waiting), found.exceeded(budgets)
    )


def _shown(cluster: Cluster, moves: Iterable[Move], assumed: Collection[str]) -> tuple[MoveShown, ...]:
    return tuple(
        MoveShown(
            each.step,
            each.pod,
            _place(cluster, each.before),
            _place(cluster, each.after),
            each.gain,
            each.pod in assumed,
        )
        for each in moves
    )


def _place(cluster: Cluster, placement: Placement) -> PlaceShown:
    node = cluster.nodes[cluster.rows[placement.node]]
    assert node is not None
    gpus = dict.fromkeys(share.gpu for share in placement.all_shares)
    return PlaceShown(placement.node, tuple(node.gpus[gpu].id for gpu in gpus))


def _free_gpus(cluster: Cluster) -> int:
    return int((cluster.room == WHOLE).sum())


def _place_all(cluster: Cluster, pods: Iterable[Pod], policy: WastePrice) -> dict[int, Pod]:
    """Place pods one after the other. Gives those that fit, by `id`."""
    engine, found = Engine(cluster, policy), dict[int, Pod]()
    for each in pods:
        if (placement := engine.choose(each.request)) is not None:
            cluster.take(each.request, placement)
            found[id(each)] = each
    return found
