"""The decision: the node and the GPUs that a policy likes best. Pure; what random ties are broken by is handed in."""

from collections import OrderedDict
from random import Random

import numpy as np

from gpuplane.placement.cluster import Cluster, Integers
from gpuplane.placement.policies.policy import Floats, Policy
from gpuplane.placement.requests import Placement, Request

KEPT = 512
"""Requests whose scores are kept; the one that was asked for longest ago goes."""


class Engine:
    """Decides for one cluster by one policy. Ties: the first node, or by `random`."""

    def __init__(self, cluster: Cluster, policy: Policy, random: Random | None = None) -> None:
        self.cluster, self.policy, self._random = cluster, policy, random
        self._rankings: OrderedDict[Request, _Ranking] = OrderedDict()

    def choose(self, request: Request) -> Placement | None:
        """Where a pod goes; None where it fits nowhere. Nothing is taken by that."""
        ranking = self._rank(request)
        if not len(ranking.values) or (best := ranking.values.max()) == -np.inf:
            return None
        ties = np.flatnonzero(ranking.values == best)
        row = int(ties[self._random.randrange(len(ties)) if self._random else 0])
        return self._placement(request, row, ranking.gpus[row])

    def _placement(self, request: Request, row: int, gpus: Integers) -> Placement:
        node = self.cluster.nodes[row]
        assert node is not None
        shares = tuple(tuple(self.cluster.share_of(row, int(gpu), wanted) for gpu in gpus) for wanted in request.gpus)
        return Placement(node.name, shares)

    def _rank(self, request: Request) -> "_Ranking":
        """The scores of all nodes, of which only those are looked at again that have changed."""
        generation, cluster = self.policy.refresh(self.cluster), self.cluster
        ranking = self._rankings.get(request)
        if ranking is None or ranking.generation != generation or len(ranking.values) != len(cluster.nodes):
            ranking = self._rankings[request] = _Ranking(generation, len(cluster.nodes), request)
            rows = np.arange(len(cluster.nodes))
        else:
            rows = cluster.rows_changed_since(ranking.version)
        if len(rows):
            values, gpus = self.policy.score(cluster, request, rows)
            ranking.values[rows], ranking.gpus[rows] = values, gpus
        ranking.version = cluster.version
        self._rankings.move_to_end(request)
        if len(self._rankings) > KEPT:
            self._rankings.popitem(last=False)
        return ranking


class _Ranking:
    """The scores of one request, of a version of the cluster and a generation of the policy."""

    def __init__(self, generation: int, rows: int, request: Request) -> None:
        self.generation, self.version = generation, 0
        self.values: Floats = np.full(rows, -np.inf)
        self.gpus: Integers = np.zeros((rows, sum(each.count for each in request.gpus)), np.int64)
