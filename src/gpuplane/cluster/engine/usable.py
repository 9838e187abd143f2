"""How much of the free GPUs the expected requests could use, in GPUs. Pure.

A free GPU is of no use on a node without CPU for it, nor to a request for eight where seven are free; a free part that
no share fits into is of no use at all. So what is usable of a node is a mean over the expected requests, each by the
GPUs that it wants: how much of the node could be filled if no others came. Parts of GPUs count by what they are worth
to shares (policies/wasteprice/prices.py).
"""

import numpy as np

from gpuplane.cluster.engine.arrays import Booleans, Floats, Integers
from gpuplane.cluster.engine.candidates import Candidates
from gpuplane.cluster.engine.cluster import Cluster
from gpuplane.cluster.engine.workload import RequestClass
from gpuplane.cluster.model.requests import MILLI_PER_GPU, Request


class UsableGpus:
    """To fixed classes, on the nodes that a cluster has now. As a pricing: a place is as good as it takes little."""

    gpu_points = 1.0

    def __init__(self, cluster: Cluster, frequency: dict[RequestClass, float], worth: Floats) -> None:
        """`frequency`: class → how often it is asked for; `worth`: of so much free milli-GPU (`waste_prices`)."""
        rows = np.arange(len(cluster.nodes))
        accepts = {each: _accepts(cluster, each, rows) for each in frequency if each.gpus}
        kinds = [each for each in accepts if accepts[each].any()]  # what fits nowhere can use nothing
        demand = np.array([frequency[each] * each.gpus * each.milli for each in kinds])
        self._part: Floats = demand / max(demand.sum(), 1e-9)  # of all GPUs that are asked for
        self._worth = worth
        self._gpus = np.array([each.gpus for each in kinds], np.float64)
        self._size = self._gpus * [
            max(worth[each.milli], each.milli / MILLI_PER_GPU) for each in kinds
        ]  # GPUs of a request
        self._is_share = np.array([each.milli < MILLI_PER_GPU for each in kinds], np.bool_)
        self._cpu = np.array([max(each.cpu_milli, 1) for each in kinds], np.float64)
        self._accepts: Booleans = np.zeros((len(rows), len(kinds)), np.bool_)
        for index, each in enumerate(kinds):
            self._accepts[:, index] = accepts[each]

    def of(self, cluster: Cluster, rows: Integers) -> Floats:
        """Of these nodes as they are."""
        room = cluster.room[rows]
        return self._measure(rows, self._worth[room].sum(axis=1), _whole(room), cluster.cpu_free[rows])

    def score(self, cluster: Cluster, request: Request, found: Candidates) -> Floats:
        """What each of these candidates takes away: 0, or less."""
        room = cluster.room[found.rows]
        worth = self._worth[room].sum(axis=1) + (self._worth[found.after] - self._worth[found.before]).sum(axis=1)
        whole = _whole(room) + _whole(found.after) - _whole(found.before)
        scores: Floats = self._measure(found.rows, worth, whole, found.cpu_after) - self.of(cluster, found.rows)
        return scores

    def _measure(self, rows: Integers, worth: Floats, whole: Integers, cpu: Integers) -> Floats:
        """Of nodes whose free GPUs are worth so much, so many of them whole, and so much CPU free."""
        by_gpus = np.where(self._is_share, worth[:, None] / self._size, whole[:, None] // self._gpus)
        requests = np.minimum(by_gpus, np.maximum(cpu, 0)[:, None] // self._cpu) * self._accepts[rows]
        usable: Floats = (requests * self._size) @ self._part
        return usable


def _accepts(cluster: Cluster, wanted: RequestClass, rows: Integers) -> Booleans:
    """Which of these rows such a request fits on when they are empty."""
    gpus = cluster.is_usable[rows]
    if wanted.models:
        gpus = gpus & cluster.has_model(rows, wanted.models)
    has_gpus = gpus.sum(axis=1) * (MILLI_PER_GPU // wanted.milli) >= wanted.gpus
    has_cpu = cluster.cpu_milli[rows] >= wanted.cpu_milli
    found: Booleans = cluster.is_open(rows, wanted.nodes) & has_gpus & has_cpu
    return found


def _whole(room: Integers) -> Integers:
    """How many GPUs of each row are wholly free."""
    found: Integers = (room == MILLI_PER_GPU).sum(axis=1)
    return found
