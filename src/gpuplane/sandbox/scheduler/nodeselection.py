"""Which nodes a pod, a slice or an allocation is for."""

from gpuplane.kubernetes import selectors as nodeselection
from gpuplane.kubernetes.objects import ApiNode, ApiPod
from gpuplane.kubernetes.selectors import NodeSelector


def matches_node(selector: NodeSelector, node: ApiNode) -> bool:
    """Whether it selects the node."""
    return nodeselection.matches_node(selector, node.metadata.name, node.metadata.labels or {})


def may_run_on(pod: ApiPod, node: ApiNode) -> bool:
    """Whether a pod's node selector and required affinity match a node."""
    labels, affinity = node.metadata.labels or {}, pod.spec.affinity
    required = affinity.node_affinity.required if affinity and affinity.node_affinity else None
    return all(labels.get(key) == value for key, value in (pod.spec.node_selector or {}).items()) and (
        required is None or matches_node(required, node)
    )
