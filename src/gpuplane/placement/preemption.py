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
        priorities = [each.priority for each in self.ends]
        return (
            max(priorities, default=LEAST_PRIORITY),
            sum(each - LEAST_PRIORITY for each in priorities),
            len(self.ends),
            sum(each.gpu_milli for each in self.ends),
        )


def find_preemption(
    cluster: Cluster, request: Request, pods: Iterable[Pod], may_end: Callable[[Pod], bool]
) -> Preemption | None:
    """The cheapest way to make room for a request that fits nowhere; None: there is none. `pods`: that have a place.

    A pod without a UID is not known to Kubernetes: it never ends by this.
    """
    by_node = dict[str, list[Pod]]()
    for each in pods:
        if each.placement is not None and each.uid and may_end(each):
            by_node.setdefault(each.placement.node, []).append(each)
    emptied, rows = cluster.copy(), list[int]()
    for name, victims in by_node.items():
        if (row := emptied.rows.get(name)) is not None:
            rows.append(row)
            _move(victims, emptied.give_back)
    best: Preemption | None = None
    for row in _possible(emptied, request, rows):
        node = emptied.nodes[row]
        assert node is not None
        best = _on_node(emptied, row, request, by_node[node.name], best)
    return best


def preempts(pod: Pod) -> Callable[[Pod], bool]:
    """Whether a pod may have another one end: one of a lower priority."""
    return lambda other: other.priority < pod.priority


def _possible(cluster: Cluster, request: Request, rows: Sequence[int]) -> list[int]:
    """The rows where it could fit: an exact look at each takes far longer."""
    found = np.array(sorted(rows), np.int64)
    found = found[cluster.has_room(found, request)]
    for wanted in request.kinds_of_gpus:
        found = found[cluster.fits(found, wanted).sum(axis=1) >= wanted.count]
    return [int(row) for row in found]


def _on_node(
    cluster: Cluster, row: int, request: Request, victims: Sequence[Pod], best: Preemption | None
) -> Preemption | None:
    """The cheapest of these: the best so far, and the ways to make room on one node, which all victims have left."""
    for large_first in (True, False):
        if (placement := place_within(cluster, row, request)) is None:
            return best
        found, back = Preemption(placement, ()), list[Pod]()
        for each in sorted(victims, key=lambda pod: (-pod.priority, -pod.gpu_milli if large_first else pod.gpu_milli)):
            _move([each], cluster.take)
            if (tried := place_within(cluster, row, request)) is None:
                _move([each], cluster.give_back)
                found = found.but(ends=(*found.ends, each))
                if best is not None and found.cost >= best.cost:  # with each that ends it costs more
                    break
            else:
                found = found.but(placement=tried)
                back.append(each)
        _move(back, cluster.give_back)
        if best is None or found.cost < best.cost:
            best = found
    return best


def _move(pods: Iterable[Pod], move: Callable[[Request, Placement], None]) -> None:
    for each in pods:
        assert each.placement is not None
        move(each.held, each.placement)
