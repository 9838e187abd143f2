"""The two plain policies: fill what is filled most, or least. A node's other GPUs count after those that are chosen."""

import numpy as np

from gpuplane.placement.cluster import Cluster, Integers
from gpuplane.placement.policies.policy import Scores, pick_gpus
from gpuplane.placement.requests import WHOLE, Request

GPU_WEIGHT = 1000.0
"""A milli-GPU less left on the chosen GPUs counts more than all that a node's other GPUs have."""


class Binpack:
    """The GPUs and the node with the least left; of requests without GPUs, the node with the least GPUs free."""

    sign = -1.0

    def refresh(self, cluster: Cluster) -> int:
        """Nothing of the whole cluster counts."""
        return 0

    def score(self, cluster: Cluster, request: Request, rows: Integers) -> Scores:
        """How full the row and its GPUs are."""
        room = cluster.has_room(rows, request)
        free = cluster.milli_free[rows].astype(np.float64)
        on_node = np.where(cluster.is_usable[rows], free, 0.0).sum(axis=1) / (WHOLE * max(free.shape[1], 1))
        if not request.gpus:
            return Scores(np.where(room, self.sign * on_node, -np.inf), np.zeros((len(rows), 0), np.int64))
        [wanted] = request.gpus
        fits = cluster.fits(rows, wanted)
        enough, gpus = pick_gpus(fits, self.sign * free, wanted.count)
        on_gpus = np.take_along_axis(free, gpus, axis=1).sum(axis=1) if free.shape[1] else on_node
        return Scores(np.where(room & enough, self.sign * (GPU_WEIGHT * on_gpus + on_node), -np.inf), gpus)


class Spread(Binpack):
    """The other way round: the GPUs and the node with the most left."""

    sign = 1.0
