"""What the engine asks of a policy."""

from typing import Protocol

from gpuplane.cluster.engine.arrays import Floats
from gpuplane.cluster.engine.candidates import Candidates
from gpuplane.cluster.engine.cluster import Cluster
from gpuplane.cluster.model.requests import Request


class Pricing(Protocol):
    """What a place is worth, as long as the policy sees the whole cluster the same way. A place's score depends on
    the state of its node alone: the engine keeps it until the node changes."""

    @property
    def gpu_points(self) -> float:
        """About what a place scores more that leaves a whole GPU more of use; by it, scores of policies are added."""

    def score(self, cluster: Cluster, request: Request, found: Candidates) -> Floats:
        """How good each of these candidates is."""


class Policy(Protocol):
    """Looks at the cluster and the workload as a whole."""

    prefers_free_gpus: bool
    """Of several GPUs for one container: whether the emptiest are taken, or the fullest."""

    def refresh(self, cluster: Cluster) -> Pricing:
        """The pricing to use from now on, asked for before each decision. Scores of two pricings do not compare. A
        policy that is asked about another cluster than before begins anew."""
