"""How good a node and its GPUs are for a request: one module a policy. The engine takes the best.

Nothing here needs NumPy: a policy is imported when it is made.
"""

import re
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuplane.cluster.engine.policies.policy import Policy
    from gpuplane.cluster.engine.workload import Workload

POLICIES: Mapping[str, str] = {
    "binpack": "binpack.Binpack",
    "spread": "binpack.Spread",
    "fgd": "fgd.Fgd",
    "waste-price": "wasteprice.WastePrice",
}
"""Name in the configuration → module and class of the policy, made of the workload that is expected; without one, it
learns."""


class UnknownPolicy(ValueError):
    """A text that names no policy, and says what is wrong with it. `name`: what stands where a name should; "" where
    something else is wrong."""

    def __init__(self, text: str, name: str = "") -> None:
        super().__init__(text)
        self.name = name


def parse_policy(text: str) -> dict[str, float]:
    """Name → weight, above 0, of "fgd" or "waste-price:1+spread:0.1". Raises UnknownPolicy."""
    found = dict[str, float]()
    for part in text.split("+"):
        name, colon, weight = part.partition(":")
        if name not in POLICIES:
            raise UnknownPolicy(f"{name!r} is no policy: there are {', '.join(POLICIES)}", name)
        if name in found:
            raise UnknownPolicy(f"{text!r} has {name} twice")
        if colon and not (re.fullmatch(r"\d{1,6}(\.\d{1,6})?", weight, re.ASCII) and float(weight) > 0):
            raise UnknownPolicy(f"{part!r}: a weight is a number above 0, as in {name}:0.5")
        found[name] = float(weight or 1)
    return found


def make_policy(text: str, workload: "Workload | None" = None) -> "Policy":
    """The policy of a name, or of names with weights, for the workload that is expected. Raises UnknownPolicy."""
    parts = [(weight, _make(name, workload)) for name, weight in parse_policy(text).items()]
    if len(parts) == 1:
        return parts[0][1]
    from gpuplane.cluster.engine.policies.weighted import Weighted

    return Weighted(parts)


def _make(name: str, workload: "Workload | None") -> "Policy":
    module, _, kind = POLICIES[name].partition(".")
    policy: Policy = getattr(import_module(f"{__name__}.{module}"), kind)(workload)
    return policy
