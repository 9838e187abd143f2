"""Which pods would have to end for another one to fit. Pure: it ends nothing.

On each node all pods are taken away that may end, and then put back one by one, as long as the other one still fits:
the most important first (kube-scheduler, pkg/scheduler/framework/preemption). So no pod ends in vain. GPUs make the
order matter: the large first leaves small ones to end, the small first a few large ones. Both are tried. Pods whose
budget of disruption would be exceeded are put back before all others.

Of several nodes that one is taken where the budgets are exceeded by the fewest pods; of these that whose most important
victim is the least important; then that with the least priority of all victims together, the fewest victims, and the
least of GPUs that they have.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from gpuplane.base.value import Value
from gpuplane.cluster.engine.candidates import candidates
from gpuplane.cluster.engine.cluster import Cluster
from gpuplane.cluster.engine.within import place_within
from gpuplane.cluster.model.pods import Pod
from gpuplane.cluster.model.requests import Placement, Request

MIN_PRIORITY = -(1 << 31)
"""Of a pod."""
Cost = tuple[int, int, int, int, int]
NO_BUDGETS: Mapping[str, int] = {}


class Preemption(Value):
    """What makes room. `placement`: where the pod would go. `ends`: the pods that have to end, all on its node."""

    placement: Placement
    ends: tuple[Pod, ...]

    def exceeded(self, budgets: Mapping[str, int]) -> tuple[str, ...]:
        """The budgets of disruption that allow fewer of these pods to end. `budgets`: name → how many may end."""
        return tuple(_exceeded(self.ends, budgets))

    def cost(self, budgets: Mapping[str, int]) -> Cost:
        """What that costs: the less, the better."""
        return _cost(self.ends, budgets)


def find_preemption(
    cluster: Cluster,
    request: Request,
    pods: Iterable[Pod],
    may_end: Callable[[Pod], bool],
    budgets: Mapping[str, int] = NO_BUDGETS,
) -> Preemption | None:
    """The cheapest way to make room for a request that fits nowhere; None: there is none. `pods`: that have a place.
    `budgets`: name of each budget of disruption → how many of its pods may end."""
    by_priority = dict[int, list[Pod]]()
    for each in pods:
        if each.placement is not None and each.placement.node in cluster.rows and each.can_end and may_end(each):
            by_priority.setdefault(each.priority, []).append(each)
    emptied, victims = cluster.copy(), dict[int, list[Pod]]()
    best: Preemption | None = None
    levels = [by_priority[priority] for priority in sorted(by_priority)]
    while levels and (best is None or best.exceeded(budgets)):
        # whoever is more important does not have to end where these suffice, unless that exceeds a budget
        more, levels = (levels[0], levels[1:]) if best is None else ([each for level in levels for each in level], [])
        for each in more:
            assert each.placement is not None
            victims.setdefault(cluster.rows[each.placement.node], []).append(each)
        _move(more, emptied.give_back)
        for row in np.unique(candidates(emptied, request, np.array(sorted(victims), np.int64)).rows).tolist():
            best = _on_node(emptied, row, request, victims[row], best, budgets)
    return best


def _exceeded(ends: Iterable[Pod], budgets: Mapping[str, int]) -> dict[str, int]:
    """The budgets that allow fewer of these to end → how many too many."""
    counts = Counter(name for each in ends for name in each.budgets)
    return {name: count - budgets[name] for name, count in counts.items() if count > budgets[name]}


def _beyond_budgets(victims: Iterable[Pod], budgets: Mapping[str, int]) -> set[int]:
    """Those by which a budget is exceeded when all end, by their `id`, the least important of its pods."""
    ended, found = Counter[str](), set[int]()
    for each in sorted(victims, key=lambda pod: -pod.priority):
        for name in each.budgets:
            ended[name] += 1
            if ended[name] > budgets[name]:
                found.add(id(each))
    return found


def _cost(ends: Sequence[Pod], budgets: Mapping[str, int]) -> Cost:
    priorities = [each.priority for each in ends]
    return (
        sum(_exceeded(ends, budgets).values()),
        max(priorities, default=MIN_PRIORITY),
        sum(each - MIN_PRIORITY for each in priorities),
        len(ends),
        sum(each.gpu_milli for each in ends),
    )


def preempts(pod: Pod) -> Callable[[Pod], bool]:
    """Whether a pod may have another one end: one of a lower priority, if it may have any."""
    return lambda other: pod.may_preempt and other.priority < pod.priority


def _fits_on_node(cluster: Cluster, row: int, request: Request) -> bool:
    """Whether a request fits on a node. To say so of one container takes far less than to find its place."""
    if len(request.gpus) > 1 or any(each.wants_links and each.linked == "required" for each in request.gpus):
        return place_within(cluster, row, request) is not None
    return len(cluster.rows_with_enough(np.array([row]), request)) > 0


def _on_node(
    cluster: Cluster,
    row: int,
    request: Request,
    victims: Sequence[Pod],
    best: Preemption | None,
    budgets: Mapping[str, int],
) -> Preemption | None:
    """The cheapest of these: the best so far, and the ways to make room on one node, which all victims have left."""
    beyond = _beyond_budgets(victims, budgets)
    least = None if best is None else best.cost(budgets)
    for sign in (-1, 1):  # the large first, or the small
        ends, back = list[Pod](), list[Pod]()
        for each in sorted(victims, key=lambda pod: (id(pod) not in beyond, -pod.priority, sign * pod.gpu_milli)):
            _move([each], cluster.hold)
            if _fits_on_node(cluster, row, request):
                back.append(each)
                continue
            _move([each], cluster.give_back)
            ends.append(each)
            if least is not None and _cost(ends, budgets) >= least:  # with each that ends it costs more
                break
        if least is None or _cost(ends, budgets) < least:
            placement = place_within(cluster, row, request)
            assert placement is not None
            best, least = Preemption(placement, tuple(ends)), _cost(ends, budgets)
        _move(back, cluster.give_back)
    return best


def _move(pods: Iterable[Pod], move: Callable[[Request, Placement], None]) -> None:
    for each in pods:
        assert each.placement is not None
        move(each.request, each.placement)
