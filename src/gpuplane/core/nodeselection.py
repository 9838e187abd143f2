"""Whether a node matches a selector, and whether taints are tolerated.

Sources: k8s.io/component-helpers/scheduling/corev1/nodeaffinity; k8s.io/api/core/v1/toleration.go.
"""

import re
from collections.abc import Iterable, Mapping

from gpuplane.model.nodeselection import NodeSelector, NodeSelectorTerm, Requirement, Taint, Toleration

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
