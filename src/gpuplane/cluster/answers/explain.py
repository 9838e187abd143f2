"""Where pods go, why, and what would have to end for those that fit nowhere."""

from collections.abc import Callable, Collection, Mapping, Sequence

from gpuplane.base.value import Value
from gpuplane.cluster.answers.assumed import build
from gpuplane.cluster.answers.places import PlaceShown, expected_workload, show_place
from gpuplane.cluster.engine.cluster import Cluster
from gpuplane.cluster.engine.configuration import PlacementConfig
from gpuplane.cluster.engine.engine import Engine
from gpuplane.cluster.engine.explanation import Explanation, GpuReason, NodeReason, emptied, explain, explain_gpus
from gpuplane.cluster.engine.policies import make_policy
from gpuplane.cluster.engine.preemption import Preemption
from gpuplane.cluster.model.pods import Pod
from gpuplane.cluster.model.requests import Request
from gpuplane.cluster.reading.cluster import SeenCluster


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
    cluster, running, budgets = build(seen), {each.name: each for each in seen.pods if each.uid}, dict(seen.budgets)
    engine = Engine(cluster, make_policy(config.policy, expected_workload(config, running.values(), seen.waiting)))
    if only in running:
        pod = running[only]
        assert pod.placement is not None
        cluster.give_back(pod.request, pod.placement)
        others = [each for each in seen.pods if each is not pod]
        decided = explain(engine, pod, others, budgets=budgets)
        return [_show_pod(cluster, pod, decided, others, node, budgets)]
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
            found.append(_show_pod(cluster, each, decided, [*placed.values()], node, budgets, waiting))
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


def _show_pod(
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
        now=None if pod.placement is None else show_place(cluster, pod.placement),
        place=None if found.placement is None else show_place(cluster, found.placement),
        gpus=explain_gpus(cluster, pod.request, node, placed, found.placement) if node else found.gpus,
        counts=dict(found.counts()),
        nodes=found.nodes,
        preemption=_show_end(found.preemption, waiting, budgets),
        ending=_show_end(found.ending, waiting, budgets),
    )


def _show_end(found: Preemption | None, waiting: Collection[str], budgets: Mapping[str, int]) -> EndShown | None:
    if found is None:
        return None
    ends = {each.name: each.priority for each in found.ends}
    return EndShown(
        found.placement.node, ends, tuple(name for name in ends if name in waiting), found.exceeded(budgets)
    )
