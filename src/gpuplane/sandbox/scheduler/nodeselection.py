"""Which nodes a selector matches (k8s.io/component-helpers/scheduling/corev1/nodeaffinity)."""

from gpuplane.sandbox.scheduler.objects import Node, NodeSelector, NodeSelectorTerm, Pod, Requirement


def matches_node(selector: NodeSelector, node: Node) -> bool:
    """Whether one of its terms matches. A term without requirements matches nothing."""
    return any(_matches_term(term, node) for term in selector.node_selector_terms)


def may_run_on(pod: Pod, node: Node) -> bool:
    """Whether a pod's node selector and required affinity match a node."""
    labels = node.metadata.labels
    required = pod.spec.affinity.node_affinity.required
    return all(labels.get(key) == value for key, value in pod.spec.node_selector.items()) and (
        required is None or matches_node(required, node)
    )


def _matches_term(term: NodeSelectorTerm, node: Node) -> bool:
    if not (term.match_expressions or term.match_fields):
        return False
    return all(_matches(each, node.metadata.labels.get(each.key)) for each in term.match_expressions) and all(
        each.key == "metadata.name" and _matches(each, node.metadata.name) for each in term.match_fields
    )


def _matches(requirement: Requirement, value: str | None) -> bool:
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
            try:
                found, bound = int(value or ""), int(requirement.values[0])
            except (ValueError, IndexError):
                return False
            return found > bound if requirement.operator == "Gt" else found < bound
    return False
