"""The two plain policies: fill what is filled most, or least. A node's other GPUs count after those that are chosen."""

import numpy as np

from gpuplane.cluster.engine.arrays import Floats
from gpuplane.cluster.engine.candidates import Candidates
from gpuplane.cluster.engine.cluster import Cluster
from gpuplane.cluster.engine.workload import Workload
from gpuplane.cluster.model.requests import MILLI_PER_GPU, Request

GPU_WEIGHT = 1000.0
"""A milli-GPU less left on the chosen GPUs counts more than all that a node's other GPUs have."""


class Binpack:
    """The GPUs and the node with the least left; of requests without GPUs, the node with the least GPUs free."""

    sign = -1.0
    prefers_free_gpus = False
    gpu_points = GPU_WEIGHT * MILLI_PER_GPU

    def __init__(self, workload: Workload | None = None) -> None:
        """The workload does not matter."""

    def refresh(self, cluster: Cluster) -> "Binpack":
        """Nothing of the whole cluster counts."""
        return self

    def score(self, cluster: Cluster, request: Request, found: Candidates) -> Floats:
        """How full the node and its GPUs are."""
        room = cluster.room[found.rows]
        on_node = np.maximum(room, 0).sum(axis=1) / MILLI_PER_GPU
        on_gpus = found.before.sum(axis=1) if found.instances_left is None else found.instances_left
        scores: Floats = self.sign * (GPU_WEIGHT * on_gpus + on_node)
        return scores


class Spread(Binpack):
    """The other way round: the GPUs and the node with the most left."""

    sign = 1.0
    prefers_free_gpus = True
