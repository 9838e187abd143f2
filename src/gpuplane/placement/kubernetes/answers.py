"""What is asked about a cluster that was read: which pods to move, and why a pod goes where. Pure; nothing is changed.

Both expect the requests that the cluster's own pods make, beside those of the configuration.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from gpuplane.model.value import Value
from gpuplane.placement.cluster import Cluster
from gpuplane.placement.configuration import PlacementConfig
from gpuplane.placement.consolidation import Move, Placed, plan_moves, usable_to
from gpuplane.placement.engine import Engine
from gpuplane.placement.explanation import GpuReason, NodeReason, explain, explain_gpus
from gpuplane.placement.kubernetes.cluster import SeenCluster
from gpuplane.placement.kubernetes.held import Note
from gpuplane.placement.pods import Pod
from gpuplane.placement.policies import make_policy
from gpuplane.placement.policies.policy import Policy
from gpuplane.placement.policies.wasteprice import WastePrice
from gpuplane.placement.preemption import Preemption
from gpuplane.placement.requests import WHOLE, Placement
from gpuplane.placement.workload import Workload


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
    """A plan. `pods`: that run on nodes with GPUs, `movable` of them. `free_before`, `free_after`: GPUs that nobody has
    a part of. `usable_before`, `usable_after`: GPUs, as much of all that is free as the expected requests could use.
    `fit_before`, `fit_after`: the waiting pods that would get a place one after the other, the first priority first."""

    nodes: int
    gpus: int
    pods: int
    movable: int
    moves: tuple[MoveShown, ...]
    gain: float
    free_before: int
    free_after: int
    usable_before: float
    usable_after: float
    waiting: int
    fit_before: tuple[str, ...]
    fit_after: tuple[str, ...]
    notes: tuple[Note, ...]


class EndShown(Value):
    """What would have to end on a node: pods "namespace/name" with their priorities."""

    node: str
    pods: Mapping[str, int]


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
    ask for. Pods without GPUs are among them: where they have the CPU, GPUs are idle."""
    return [
        Placed(each.name, each.request, each.placement)
        for each in _beside_gpus(seen)
        if each.placement is not None and each.uid and each.can_move and each.taken is None
    ]


def _beside_gpus(seen: SeenCluster) -> list[Pod]:
    nodes = {each.name for each in seen.nodes if each.gpus}
    return [each for each in seen.pods if each.placement is not None and each.placement.node in nodes]


def show_plan(seen: SeenCluster, config: PlacementConfig, most: int) -> PlanShown:
    """Which pods to move where, at most so many. By waste prices, whatever the configuration's policy is; the pods that
    wait count as much as all that run, for it is they that room is wanted for."""
    cluster, policy = seen.build(), WastePrice(_workload(seen, config, as_running=True))
    free_before, fit_before = _free_gpus(cluster), _fitting(cluster, seen, policy)
    usable, rows = usable_to(policy, cluster), np.arange(len(cluster.nodes))
    usable_before = usable.of(cluster, rows).sum()
    may_move = movable(seen)
    plan = plan_moves(cluster, policy, may_move, most)
    assumed = {each.name for each in seen.pods if each.is_assumed}
    return PlanShown(
        nodes=len(cluster.rows),
        gpus=int((cluster.is_usable | cluster.is_partitioned).sum()),
        pods=len(_beside_gpus(seen)),
        movable=len(may_move),
        moves=tuple(_shown(cluster, each, assumed) for each in plan.moves),
        gain=plan.gain,
        free_before=free_before,
        free_after=_free_gpus(cluster),
        usable_before=float(usable_before),
        usable_after=float(usable.of(cluster, rows).sum()),
        waiting=len(seen.waiting),
        fit_before=fit_before,
        fit_after=_fitting(cluster, seen, policy),
        notes=seen.notes,
    )


def show_waiting(seen: SeenCluster, config: PlacementConfig, only: str = "", node: str = "") -> list[PodShown]:
    """The decisions about all pods that wait, in their order: each sees those before it in their places.

    `only`: about this pod "namespace/name" alone. If it runs, as if it came now. `node`: with the GPUs of this node.
    Raises PodUnknown, and KeyError where there is no such node.
    """
    cluster, policy = seen.build(), make_policy(config.policy, _workload(seen, config))
    running = {each.name: each for each in seen.pods if each.uid}
    if only in running:
        pod = running[only]
        assert pod.placement is not None
        cluster.give_back(pod.held, pod.placement)
        others = [each for each in seen.pods if each is not pod]
        return [_explained(cluster, policy, pod, others, node)]
    if only and only not in {each.name for each in seen.waiting}:
        raise PodUnknown(only)
    engine, placed, found = Engine(cluster, policy), list(seen.pods), list[PodShown]()
    for each in seen.waiting:
        if each.name == only or not only:
            found.append(_explained(cluster, policy, each, placed, node))
        if each.name == only:
            break
        if (placement := engine.choose(each.request)) is not None:
            cluster.take(each.request, placement)
            placed.append(each.but(placement=placement))
    return found


def _workload(seen: SeenCluster, config: PlacementConfig, *, as_running: bool = False) -> Workload:
    """What is expected: the pods that run and those that wait; `as_running`: both together by half."""
    workload, running = config.workload(), [each for each in seen.pods if each.uid]
    times = max(1.0, len(running) / max(len(seen.waiting), 1)) if as_running else 1.0
    for each in running:
        workload.arrive(each.request)
    for each in seen.waiting:
        workload.arrive(each.request, times)
    return workload


def _explained(cluster: Cluster, policy: Policy, pod: Pod, placed: Sequence[Pod], node: str) -> PodShown:
    found = explain(cluster, policy, pod, placed)
    return PodShown(
        pod=pod.name,
        priority=pod.priority,
        now=None if pod.placement is None else _place(cluster, pod.placement),
        place=None if found.placement is None else _place(cluster, found.placement),
        gpus=explain_gpus(cluster, pod.request, node, placed, found.placement) if node else found.gpus,
        counts=dict(found.counts()),
        nodes=found.nodes,
        preemption=_ends(found.preemption),
        ending=_ends(found.ending),
    )


def _ends(found: Preemption | None) -> EndShown | None:
    if found is None:
        return None
    return EndShown(found.placement.node, {each.name: each.priority for each in found.ends})


def _shown(cluster: Cluster, move: Move, assumed: Iterable[str]) -> MoveShown:
    before, after = _place(cluster, move.before), _place(cluster, move.after)
    return MoveShown(move.step, move.pod, before, after, move.gain, move.pod in assumed)


def _place(cluster: Cluster, placement: Placement) -> PlaceShown:
    node = cluster.nodes[cluster.rows[placement.node]]
    assert node is not None
    gpus = dict.fromkeys(share.gpu for part in placement.shares for share in part)
    return PlaceShown(placement.node, tuple(node.gpus[gpu].id for gpu in gpus))


def _free_gpus(cluster: Cluster) -> int:
    return int((cluster.room == WHOLE).sum())


def _fitting(cluster: Cluster, seen: SeenCluster, policy: WastePrice) -> tuple[str, ...]:
    """The waiting pods that get a place, one after the other; the cluster is left as it was."""
    there, found = cluster.copy(), list[str]()
    engine = Engine(there, WastePrice(policy.workload))  # a policy follows one cluster
    for each in seen.waiting:
        if (placement := engine.choose(each.request)) is not None:
            there.take(each.request, placement)
            found.append(each.name)
    return tuple(found)
