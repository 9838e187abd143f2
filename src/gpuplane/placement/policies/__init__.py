"""How good a node and its GPUs are for a request: one module a policy. The engine takes the best."""

from collections.abc import Callable, Mapping

from gpuplane.placement.policies.binpack import Binpack, Spread
from gpuplane.placement.policies.fgd import Fgd
from gpuplane.placement.policies.policy import Policy
from gpuplane.placement.policies.wasteprice import WastePrice

POLICIES: Mapping[str, Callable[..., Policy]] = {
    "binpack": Binpack,
    "spread": Spread,
    "fgd": Fgd,
    "waste-price": WastePrice,
}
"""Name in the configuration → the policy, made of the workload that is expected; without one, it learns."""
