"""Feature labels as an object of node-feature-discovery, which puts them on the Node: GPU Feature Discovery's way.

The object has the name and the fields of GPU Feature Discovery's (k8s-device-plugin 0.20, internal/lm/output.go), in
the agent's namespace. So the agent needs no right on Nodes: node-feature-discovery's master has it. It is kept by
server-side apply. Its owner is the Node: when that is deleted, the API server deletes the object. (GFD's owner is its
pod, with which the labels go at every restart.)
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuplane.kubernetes.client import own_namespace
from gpuplane.kubernetes.client.errors import ApiServerError
from gpuplane.kubernetes.objects import ApiNode, ApiObject
from gpuplane.node.apiserver.keeper import node_settings
from gpuplane.node.apiserver.node import NODES_PATH
from gpuplane.node.apiserver.nodemetadata import Labels, describe_refused
from gpuplane.node.core.reports.nodelabels import writable_labels
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import NODE_FEATURE_PART

if TYPE_CHECKING:
    from gpuplane.kubernetes.client.api import ApiClient

NAME_PREFIX = "nvidia-features-for-"
NODE_NAME_LABEL = "nfd.node.kubernetes.io/node-name"
MANAGED_BY = ("app.kubernetes.io/managed-by", "gpuplane")
VERSION, KIND = "nfd.k8s-sigs.io/v1alpha1", "NodeFeature"
NO_FEATURES: Mapping[str, Any] = {"flags": {}, "attributes": {}, "instances": {}}
NOT_FOUND = 404


class NodeFeature:
    """What `keeper.keep` keeps for the Node of this name."""

    part = NODE_FEATURE_PART
    rights = "deploy/components/node-feature"
    was_ours = False
    is_urgent = False

    def __init__(self, name: str, labels: Labels, kubeconfig: Path | None) -> None:
        self._node, self._labels, self._kubeconfig = name, labels, kubeconfig

    def is_wanted(self, snapshot: Snapshot) -> bool:
        return node_settings(snapshot).labels == "node-feature"

    def inputs(self, snapshot: Snapshot) -> object:
        return self._labels(snapshot)

    async def derive(self, snapshot: Snapshot) -> Mapping[str, str] | None:
        return self._labels(snapshot)

    async def write(self, client: "ApiClient", wanted: Mapping[str, str]) -> str:
        labels, refused = writable_labels(wanted)
        node = (await client.get(f"{NODES_PATH}/{self._node}", ApiNode, metadata_only=True)).metadata
        owner = {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": node.uid}
        metadata = {
            "name": f"{NAME_PREFIX}{self._node}",
            "labels": dict([(NODE_NAME_LABEL, self._node), MANAGED_BY]),
            "ownerReferences": [owner],
        }
        body = {"apiVersion": VERSION, "kind": KIND, "metadata": metadata}
        body["spec"] = {"features": NO_FEATURES, "labels": labels}
        await client.apply(self._path(), body)
        return f"NodeFeature {NAME_PREFIX}{self._node} is up to date{describe_refused(refused)}"

    async def remove(self, client: "ApiClient") -> None:
        """Delete the object, where it is ours."""
        key, value = MANAGED_BY
        try:
            found = await client.get(self._path(), ApiObject, metadata_only=True)
            if (found.metadata.labels or {}).get(key) == value:
                await client.send("DELETE", self._path())
        except ApiServerError as error:
            if error.code != NOT_FOUND:
                raise

    def _path(self) -> str:
        space = own_namespace(self._kubeconfig)
        return f"/apis/{VERSION}/namespaces/{space}/nodefeatures/{NAME_PREFIX}{self._node}"
