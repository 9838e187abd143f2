"""How much of the cluster's GPUs is free, and of no use to the usual pods: the measure of the FGD paper.

Source: USENIX ATC'23, and its simulator (pkg/utils/frag.go). Typical requests are the most frequent ones that make up
95 % of the pods. A node's fragmentation is the mean over them, by frequency, of: all that is free of its GPUs where the
request cannot run there (to one without a GPU they are of no use at all); else what is free of the GPUs that have too
little left for it. (Of several containers, the paper has none: each has to have room by itself, and a GPU is of use
that one of them fits into.) It is a measure of every policy, so it is computed without any policy's code.
"""

from collections import Counter
from collections.abc import Iterable

import numpy as np

from gpuplane.cluster.engine.cluster import Cluster
from gpuplane.cluster.model.requests import Request
from gpuplane.cluster.simulation.pods import TracePod

TYPICAL_PART = 0.95


def typical(pods: Iterable[TracePod]) -> dict[Request, float]:
    """The most frequent requests, by what a measure of GPUs looks at, and how frequent each is; together 1."""
    counts = Counter(Request(each.request.cpu_milli, 0, each.request.gpus) for each in pods)
    whole, chosen, found = counts.total(), 0, dict[Request, int]()
    for request, count in counts.most_common():
        if chosen >= TYPICAL_PART * whole:
            break
        found[request] = count
        chosen += count
    return {request: count / chosen for request, count in found.items()}


class FragmentationMeasure:
    """The measure of one cluster; nodes that have not changed are not looked at again."""

    def __init__(self, cluster: Cluster, requests: dict[Request, float]) -> None:
        self._cluster, self._requests = cluster, requests
        self._of_node = np.zeros(len(cluster.nodes))
        self._look(np.arange(len(cluster.nodes)))
        self._version = cluster.version

    def milli(self) -> float:
        """Milli-GPU of the whole cluster that are fragments now."""
        self._look(self._cluster.rows_changed_since(self._version))
        self._version = self._cluster.version
        return float(self._of_node.sum())

    def _look(self, rows: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> None:
        cluster = self._cluster
        free = np.where(cluster.is_usable[rows], cluster.milli_free[rows], 0)
        fragments = np.zeros(len(rows))
        for request, frequency in self._requests.items():
            useful = np.zeros(len(rows), np.int64)
            if request.gpus:
                runs, fits = cluster.cpu_free[rows] >= request.cpu_milli, np.zeros(free.shape, np.bool_)
                for wanted in request.kinds_of_gpus:
                    of_one = cluster.fits(rows, wanted)
                    runs, fits = runs & (of_one.sum(axis=1) >= wanted.count), fits | of_one
                useful = (free * fits).sum(axis=1) * runs
            fragments += frequency * (free.sum(axis=1) - useful)
        self._of_node[rows] = fragments
