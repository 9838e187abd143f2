"""What the devices of a claim must have in common. Pure.

Source: dynamic-resource-allocation/structured/internal/incubating/constraint.go.
"""

from collections.abc import Iterable

from gpuplane.sandbox.scheduler.claims import Constraint
from gpuplane.sandbox.scheduler.objects import Json
from gpuplane.sandbox.scheduler.pools import Candidate


def satisfies_constraint(
    constraint: Constraint, request: str, candidate: Candidate, chosen: Iterable[tuple[str, Candidate]]
) -> bool:
    """Whether a device may join those that a claim has already, each with the name of its request ("main/sub").

    With both attributes in one constraint, the one that has to match counts alone, as in kube-scheduler.
    """
    if not _applies_to_request(constraint, request):
        return True
    attribute = constraint.match_attribute or constraint.distinct_attribute or ""
    value = _lookup_attribute(candidate, attribute)
    if value is None:
        return False
    others = [_lookup_attribute(each, attribute) for name, each in chosen if _applies_to_request(constraint, name)]
    return all(value == other for other in others) if constraint.match_attribute else value not in others


def _applies_to_request(constraint: Constraint, request: str) -> bool:
    """An entry names a request, or one of those that it may choose from."""
    return not constraint.requests or request in constraint.requests or request.split("/")[0] in constraint.requests


def _lookup_attribute(candidate: Candidate, name: str) -> Json | None:
    """The value with its type; a name of the driver's domain may be published without it."""
    attributes = candidate.device.attributes
    domain, _, identifier = name.partition("/")
    if name in attributes:
        return attributes[name]
    return attributes.get(identifier) if domain == candidate.slice.spec.driver else None
