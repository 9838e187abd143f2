"""Objects of the API as a played node has them: whole, since it passes on what it does not read."""

from typing import Any

import msgspec

from gpuplane.kubernetes.objects import ApiStruct, ObjectMetadata
from gpuplane.kubernetes.selectors import Taint
from gpuplane.sandbox.kubelet.pods import Pod, pod_from_object

Json = dict[str, Any]


class PodMetadata(ObjectMetadata):
    """`deletion_grace_period_seconds`: how long its containers may take to end."""

    deletion_grace_period_seconds: int | None = None
    creation_timestamp: str = ""


class PodObject(ApiStruct):
    """A pod that is bound to a node."""

    metadata: PodMetadata
    spec: Json
    status: Json = msgspec.field(default_factory=dict)

    @property
    def key(self) -> str:
        """ "namespace/name"."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def path(self) -> str:
        """Where the API server has it."""
        return f"/api/v1/namespaces/{self.metadata.namespace}/pods/{self.metadata.name}"

    @property
    def has_ended(self) -> bool:
        """Whether it has ended for good."""
        return self.status.get("phase") in ("Succeeded", "Failed")

    @property
    def is_deleted(self) -> bool:
        """Whether somebody has asked for its end."""
        return self.metadata.deletion_timestamp is not None

    def as_pod(self) -> Pod:
        """As the device manager sees it."""
        metadata = {"name": self.metadata.name, "namespace": self.metadata.namespace, "uid": self.metadata.uid}
        return pod_from_object({"metadata": metadata, "spec": self.spec, "status": self.status})

    def containers(self) -> list[Json]:
        """Its init containers and the others, in the order in which they start."""
        return [*(self.spec.get("initContainers") or ()), *self.spec["containers"]]

    def as_json(self) -> Json:
        """As the API has it."""
        builtins: Json = msgspec.to_builtins(self)
        return {"apiVersion": "v1", "kind": "Pod", **builtins}


class NodeObject(ApiStruct):
    """A played node's own Node. `spec` has its taints."""

    metadata: ObjectMetadata
    spec: Json = msgspec.field(default_factory=dict)
    status: Json = msgspec.field(default_factory=dict)

    def taints(self) -> list[Taint]:
        """What keeps pods away, or evicts them."""
        return [Taint(each["key"], each["effect"], each.get("value", "")) for each in self.spec.get("taints") or ()]


def is_sidecar(container: Json) -> bool:
    """Of an init container: whether it runs on beside those after it."""
    return bool(container.get("restartPolicy") == "Always")
