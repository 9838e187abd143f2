"""Which nodes a pod, a claim or a slice is for: selectors, taints and tolerations, and whether they match.

Sources: k8s.io/api/core/v1/types.go (fields that are not here are not looked at) and toleration.go;
k8s.io/component-helpers/scheduling/corev1/nodeaffinity.
"""

import re
from collections.abc import Iterable, Mapping

import msgspec


class _ApiObject(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """A part of the API's objects."""


class Requirement(_ApiObject, frozen=True):
    """`operator`: In, NotIn, Exists, DoesNotExist, Gt or Lt; another one is never met."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class NodeSelectorTerm(_ApiObject, frozen=True):
    """All of these have to be met: by labels, and by fields, of which there is `metadata.name`."""

    match_expressions: tuple[Requirement, ...] = ()
    match_fields: tuple[Requirement, ...] = ()


class NodeSelector(_ApiObject, frozen=True):
    """One of these has to match."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class Taint(_ApiObject, frozen=True):
    """What keeps pods from a node, or claims from a device."""

    key: str
    effect: str = ""
    value: str = ""


class Toleration(_ApiObject, frozen=True):
    """Of a taint; the operator is Equal where none is given. The seconds are of those that evict."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


BLOCKING = ("NoSchedule", "NoExecute")
"""The effects of taints that keep others away."""
NUMBER = re.compile(r"[+-]?[0-9]+")


def matches_node(selector: NodeSelector, name: str, labels: Mapping[str, str]) -> bool:
    """Whether one of its terms matches. A term without requirements matches nothing."""
    return any(_matches_term(term, name, labels) for term in selector.node_selector_terms)


def meets(requirement: Requirement, value: str | None) -> bool:
    """Whether a label or field with this value meets it; None: there is none."""
    match requirement.operator:
        case "In":
            return value in requirement.values
        case "NotIn":
            return value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            found, bound = value or "", requirement.values[0] if requirement.values else ""
            if not (NUMBER.fullmatch(found) and NUMBER.fullmatch(bound)):
                return False
            return int(found) > int(bound) if requirement.operator == "Gt" else int(found) < int(bound)
    return False


def tolerates(tolerations: Iterable[Toleration], taints: Iterable[Taint]) -> bool:
    """Whether none of these taints keeps away who has these tolerations."""
    tolerations = tuple(tolerations)
    return all(any(_tolerates(each, taint) for each in tolerations) for taint in taints if taint.effect in BLOCKING)


def _matches_term(term: NodeSelectorTerm, name: str, labels: Mapping[str, str]) -> bool:
    if not (term.match_expressions or term.match_fields):
        return False
    return all(meets(each, labels.get(each.key)) for each in term.match_expressions) and all(
        each.key == "metadata.name" and meets(each, name) for each in term.match_fields
    )


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect not in ("", taint.effect) or toleration.key not in ("", taint.key):
        return False
    if toleration.operator in ("", "Equal"):
        return toleration.value == taint.value
    return toleration.operator == "Exists"
