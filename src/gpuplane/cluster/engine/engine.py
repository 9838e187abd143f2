"""The decision: the node and the GPUs that a policy likes best. Pure; what random ties are broken by is handed in.

The scores of a request are kept, and only nodes that have changed are looked at again. Where the policy prices anew,
a decision looks at the nodes that were best before and at some others, not at all: those that it leaves out take their
turn when prices change again, or when nothing fits on those that it knows.
"""

from collections import OrderedDict
from itertools import islice
from random import Random

import numpy as np
import numpy.typing as npt

from gpuplane.cluster.engine.arrays import Booleans, Floats, Integers
from gpuplane.cluster.engine.candidates import candidates
from gpuplane.cluster.engine.cluster import Cluster
from gpuplane.cluster.engine.policies.policy import Policy, Pricing
from gpuplane.cluster.model.requests import Placement, Request, share_of

MAX_RANKINGS = 512
"""Requests whose scores are kept; the one that was asked for longest ago goes."""
ROWS_PER_REPRICING = 150
"""Rows that a decision looks at by new prices: so many that were best by the old ones, and as many others in turn."""
ROWS_PER_BATCH = 4096
"""Rows that are scored at once: what is computed of them takes memory for each class of requests."""


class Engine:
    """Decides for one cluster by one policy. Ties: the first node, or by `random`."""

    def __init__(self, cluster: Cluster, policy: Policy, random: Random | None = None) -> None:
        self.cluster, self.policy, self._random = cluster, policy, random
        self._rankings: OrderedDict[Request, _Ranking] = OrderedDict()
        self._has_links = cluster.has_links

    def choose(self, request: Request) -> Placement | None:
        """Where a pod goes; None where it fits nowhere. Nothing is taken by that."""
        ranking = self._rank(request)
        best = ranking.best()
        if not len(best):
            return None
        row = int(best[self._random.randrange(len(best))] if self._random else best[0])
        return self._placement(request, row, ranking.gpus[row])

    def scores(self, request: Request) -> Floats:
        """Of each row, what its best place scores by present prices; −inf where the request does not fit. A place with
        GPUs that are linked as the request prefers it goes before all others, whatever they score."""
        ranking = self._rank(request)
        self._look(ranking, request, ranking.next_left(len(ranking.left)))
        return ranking.values.copy()

    def _placement(self, request: Request, row: int, gpus: npt.NDArray[np.uint16]) -> Placement:
        node = self.cluster.nodes[row]
        assert node is not None
        left = iter(gpus.tolist())
        shares = tuple(
            tuple(share_of(node.gpus[gpu], gpu, wanted) for gpu in islice(left, wanted.count))
            for wanted in request.gpus
        )
        return Placement(node.name, shares)

    def _rank(self, request: Request) -> "_Ranking":
        """The scores of a request by present prices, of the nodes that matter."""
        if self._has_links != self.cluster.has_links:  # from now on GPUs that are not linked score less
            self._has_links = self.cluster.has_links
            self._rankings.clear()
        pricing, size = self.policy.refresh(self.cluster), len(self.cluster.nodes)
        ranking = self._rankings.get(request)
        if ranking is None:
            ranking = self._rankings[request] = _Ranking(pricing, size, request)
            self._look(ranking, request, np.arange(size))
        else:
            ranking.grow(size)
            rows = self.cluster.rows_changed_since(ranking.version)
            if ranking.pricing is not pricing:
                rows = ranking.price_anew(pricing, rows)
            self._look(ranking, request, rows)
        while len(ranking.left) and ranking.values.max() == -np.inf:
            self._look(ranking, request, ranking.next_left(ROWS_PER_REPRICING))
        self._rankings.move_to_end(request)
        if len(self._rankings) > MAX_RANKINGS:
            self._rankings.popitem(last=False)
        return ranking

    def _look(self, ranking: "_Ranking", request: Request, rows: Integers) -> None:
        """Score these rows again."""
        ranking.version = self.cluster.version
        for first in range(0, len(rows), ROWS_PER_BATCH):
            self._score(ranking, request, rows[first : first + ROWS_PER_BATCH])

    def _score(self, ranking: "_Ranking", request: Request, rows: Integers) -> None:
        ranking.values[rows] = -np.inf
        found = candidates(self.cluster, request, rows, self.policy.prefers_free_gpus)
        if not len(found.rows):
            return
        scores = ranking.pricing.score(self.cluster, request, found)
        order: Integers | slice = slice(None)
        if (found.rows[1:] == found.rows[:-1]).any():  # the best of a row last: it stays; of equals the first
            keys = (scores,) if found.is_linked is None else (scores, found.is_linked)
            order = len(scores) - 1 - np.lexsort([each[::-1] for each in keys])
        rows = found.rows[order]
        ranking.values[rows], ranking.gpus[rows] = scores[order], found.gpus[order]
        if found.is_linked is not None:
            ranking.is_linked[rows] = found.is_linked[order]


class _Ranking:
    """The scores of one request, of a version of the cluster and one pricing. `left`: the rows that have not been
    looked at by these prices, though the request may fit there; the one that has waited longest first."""

    def __init__(self, pricing: Pricing, rows: int, request: Request) -> None:
        self.pricing, self.version = pricing, 0
        self.values: Floats = np.full(rows, -np.inf)
        self.is_linked: Booleans = np.ones(rows, np.bool_)  # as the request prefers it
        self.gpus = np.zeros((rows, sum(each.count for each in request.gpus)), np.uint16)
        self.left: Integers = np.zeros(0, np.int64)

    def best(self) -> Integers:
        """The rows that are the best of all, in order: of those that are linked, if there are any."""
        values = self.values
        if not self.is_linked.all() and (is_linked := self.is_linked & (values > -np.inf)).any():
            values = np.where(is_linked, values, -np.inf)
        most = values.max(initial=-np.inf)
        return np.flatnonzero(values == most) if most > -np.inf else np.zeros(0, np.int64)

    def price_anew(self, pricing: Pricing, changed: Integers) -> Integers:
        """Forget all scores; the rows to look at now: those that have changed, the best so far, and some others."""
        self.pricing = pricing
        self.left = self.left[self.values[self.left] == -np.inf]
        self.values[changed] = -np.inf
        known = np.flatnonzero(self.values > -np.inf)
        known = known[np.lexsort((-self.values[known], ~self.is_linked[known]))]
        self.values[:] = -np.inf
        looks = np.zeros(len(self.values), np.bool_)
        looks[changed] = looks[known[:ROWS_PER_REPRICING]] = looks[self.next_left(ROWS_PER_REPRICING)] = True
        self.left = np.concatenate([self.left, known[ROWS_PER_REPRICING:]])
        return np.flatnonzero(looks)

    def next_left(self, number: int) -> Integers:
        """So many of the rows that are left, taken from there."""
        rows, self.left = self.left[:number], self.left[number:]
        return rows

    def grow(self, rows: int) -> None:
        """Nodes have come."""
        if more := rows - len(self.values):
            self.values = np.pad(self.values, (0, more), constant_values=-np.inf)
            self.is_linked = np.pad(self.is_linked, (0, more), constant_values=True)
            self.gpus = np.pad(self.gpus, [(0, more), (0, 0)])
