"""How good a node and its GPUs are for a request: one module a policy. The engine takes the best."""

from collections.abc import Callable, Mapping

from gpuplane.cluster.engine.configuration import parse_policy
from gpuplane.cluster.engine.policies.binpack import Binpack, Spread
from gpuplane.cluster.engine.policies.fgd import Fgd
from gpuplane.cluster.engine.policies.policy import Policy
from gpuplane.cluster.engine.policies.wasteprice import WastePrice
from gpuplane.cluster.engine.policies.weighted import Weighted
from gpuplane.cluster.engine.workload import Workload

POLICIES: Mapping[str, Callable[..., Policy]] = {
    "binpack": Binpack,
    "spread": Spread,
    "fgd": Fgd,
    "waste-price": WastePrice,
}
"""Name in the configuration → the policy, made of the workload that is expected; without one, it learns."""


def make_policy(text: str, workload: Workload | None = None) -> Policy:
    """The policy of a name, or of names with weights, for the workload that is expected. Raises UnknownPolicy."""
    parts = [(weight, POLICIES[name](workload)) for name, weight in parse_policy(text).items()]
    return parts[0][1] if len(parts) == 1 else Weighted(parts)
