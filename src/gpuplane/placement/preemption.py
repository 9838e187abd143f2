"""Which pods would have to end for another one to fit. Pure: it ends nothing.

On each node all pods are taken away that may end, and then put back one by one, as long as the other one still fits:
the most important first (kube-scheduler, pkg/scheduler/framework/preemption). So no pod ends in vain. GPUs make the
order matter: the large first leaves small ones to end, the small first a few large ones. Both are tried.

Of several nodes that one is taken whose most important victim is the least important; then that with the least
priority of all victims together, the fewest victims, and the least of GPUs that they have.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from gpuplane.model.value import Value
from gpuplane.placement.candidates import candidates
from gpuplane.placement.cluster import Cluster
from gpuplane.placement.pods import Pod
from gpuplane.placement.requests import Placement, Request
from gpuplane.placement.within import place_within

LEAST_PRIORITY = -(1 << 31)
"""Of a pod."""


class Preemption(Value):
    """What makes room. `placement`: where the pod would go. `ends`: the pods that have to end, all on its node."""

    placement: Placement
    ends: tuple[Pod, ...]

    @property
    def cost(self) -> tuple[int, int, int, int]:
        """What that costs: the less, the better."""
        return _cost(self.ends)


def find_preemption(
    cluster: Cluster, request: Request, pods: Iterable[Pod], may_end: Callable[[Pod], bool]
) -> Preemption | None:
    """The cheapest way to make room for a request that fits nowhere; None: there is none. `pods`: that have a place."""
    by_priority = dict[int, list[Pod]]()
    for each in pods:
        if each.placement is not None and each.placement.node in cluster.rows and each.can_end and may_end(each):
            by_priority.setdefault(each.priority, []).append(each)
    emptied, victims = cluster.copy(), dict[int, list[Pod]]()
    for priority in sorted(by_priority):  # whoever is more important does not have to end where these suffice
        for each in by_priority[priority]:
            assert each.placement is not None
            victims.setdefault(cluster.rows[each.placement.node], []).append(each)
        _move(by_priority[priority], emptied.give_back)
        rows = np.unique(candidates(emptied, request, np.array(sorted(victims), np.int64)).rows).tolist()
        if rows:
            break
    else:
        return None
    best: Preemption | None = None
    for row in rows:
        best = _on_node(emptied, row, request, victims[row], best)
    return best


def _cost(ends: Sequence[Pod]) -> tuple[int, int, int, int]:
    priorities = [each.priority for each in ends]
    return (
        max(priorities, default=LEAST_PRIORITY),
        sum(each - LEAST_PRIORITY for each in priorities),
        len(ends),
        sum(each.gpu_milli for each in ends),
    )


def preempts(pod: Pod) -> Callable[[Pod], bool]:
    """Whether a pod may have another one end: one of a lower priority, if it may have any."""
    return lambda other: pod.may_preempt and other.priority < pod.priority


def _fits(cluster: Cluster, row: int, request: Request) -> bool:
    """Whether a request fits on a node. To say so of one container takes far less than to find its place."""
    if len(request.gpus) > 1 or any(each.wants_links and each.linked == "required" for each in request.gpus):
        return place_within(cluster, row, request) is not None
    rows = np.array([row])
    return bool(cluster.has_room(rows, request)[0]) and all(
        int(cluster.fits(rows, each).sum()) >= each.count for each in request.gpus
    )


def _on_node(
    cluster: Cluster, row: int, request: Request, victims: Sequence[Pod], best: Preemption | None
) -> Preemption | None:
    """The cheapest of these: the best so far, and the ways to make room on one node, which all victims have left."""
    for large_first in (True, False):
        ends, back = list[Pod](), list[Pod]()
        for each in sorted(victims, key=lambda pod: (-pod.priority, -pod.gpu_milli if large_first else pod.gpu_milli)):
            _move([each], cluster.hold)
            if _fits(cluster, row, request):
                back.append(each)
                continue
            _move([each], cluster.give_back)
            ends.append(each)
            if best is not None and _cost(ends) >= best.cost:  # with each that ends it costs more
                break
        if best is None or _cost(ends) < best.cost:
            placement = place_within(cluster, row, request)
            assert placement is not None
            best = Preemption(placement, tuple(ends))
        _move(back, cluster.give_back)
    return best


def _move(pods: Iterable[Pod], move: Callable[[Request, Placement], None]) -> None:
    for each in pods:
        assert each.placement is not None
        move(each.request, each.placement)
