"""Which nodes a pod, a slice or an allocation is for."""

from gpuplane.kubernetes import selectors as nodeselection
from gpuplane.kubernetes.selectors import NodeSelector
from gpuplane.sandbox.scheduler.objects import Node, Pod


def matches_node(selector: NodeSelector, node: Node) -> bool:
    """Whether it selects the node."""
    return nodeselection.matches_node(selector, node.metadata.name, node.metadata.labels)


def may_run_on(pod: Pod, node: Node) -> bool:
    """Whether a pod's node selector and required affinity match a node."""
    labels = node.metadata.labels
    required = pod.spec.affinity.node_affinity.required
    return all(labels.get(key) == value for key, value in pod.spec.node_selector.items()) and (
        required is None or matches_node(required, node)
    )
