"""Pods of the API, as tests want them."""

from typing import Any

from gpuplane.sandbox.node.objects import PodMetadata, PodObject

Json = dict[str, Any]


def bound_pod(
    name: str = "a", *, status: Json | None = None, labels: dict[str, str] | None = None, **spec: Any
) -> PodObject:
    """A pod on node n1 with one container "main", unless the specification says otherwise."""
    metadata = PodMetadata(
        name=name, namespace="ns", uid=f"uid-{name}", resource_version="7", generation=1, labels=labels
    )
    containers = [{"name": "main", "image": "busybox"}]
    return PodObject(metadata, {"nodeName": "n1", "containers": containers, **spec}, status or {})
