"""Several policies at once: a place is as good as its scores by each of them, by weight.

Scores of two policies do not compare. So each counts in the worth of a GPU: its points over those that it gives for a
whole one (`Pricing.gpu_points`).
"""

from collections.abc import Sequence

import numpy as np

from gpuplane.cluster.engine.arrays import Floats
from gpuplane.cluster.engine.candidates import Candidates
from gpuplane.cluster.engine.cluster import Cluster
from gpuplane.cluster.engine.policies.policy import Policy, Pricing
from gpuplane.cluster.model.requests import Request


class Weighted:
    """Policies with their weights, one or more; the heaviest decides what only one can."""

    def __init__(self, parts: Sequence[tuple[float, Policy]]) -> None:
        self._parts = tuple(parts)
        self.prefers_free_gpus = max(self._parts, key=lambda part: part[0])[1].prefers_free_gpus
        self._pricing = Sum(())

    def refresh(self, cluster: Cluster) -> "Sum":
        """The sum of their pricings; the same one until one of them prices anew."""
        now = [(weight, policy.refresh(cluster)) for weight, policy in self._parts]
        before = [pricing for _, pricing in self._pricing.parts]
        if len(before) != len(now) or any(old is not new for old, (_, new) in zip(before, now, strict=True)):
            self._pricing = Sum(now)
        return self._pricing


class Sum:
    """A pricing that is the sum of others."""

    gpu_points = 1.0

    def __init__(self, parts: Sequence[tuple[float, Pricing]]) -> None:
        self.parts = tuple(parts)

    def score(self, cluster: Cluster, request: Request, found: Candidates) -> Floats:
        """In GPUs, by weight."""
        scores: Floats = np.zeros(len(found.rows))
        for weight, pricing in self.parts:
            scores += weight / pricing.gpu_points * pricing.score(cluster, request, found)
        return scores
