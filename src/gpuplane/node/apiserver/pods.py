"""The pods of our node: their names and labels. Watched only while a part needs them (`core/podwatch.py`).

Only metadata is asked for, and of that only labels that the configuration names are kept. RBAC cannot restrict a list
of pods to those of one node, so whoever gives this right lets the agent read the metadata of all pods.

A static pod has two UIDs: kubelet names its cgroup and its logs by a hash of its file, which the API server has in the
annotation `kubernetes.io/config.hash` of the mirror pod (kubelet: pkg/kubelet/types/pod_update.go).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gpuplane.base.tasks import run_until
from gpuplane.base.text import matches_pattern
from gpuplane.kubernetes.client.errors import ApiServerError
from gpuplane.kubernetes.client.informer import Informer
from gpuplane.kubernetes.objects import ApiPod, ObjectMetadata
from gpuplane.kubernetes.podref import PodMetadata
from gpuplane.node.core.podwatch import wanted_pod_watch
from gpuplane.node.model.facts import PodsObserved, StatusChanged
from gpuplane.node.model.node import Node
from gpuplane.node.model.status import PODS_PART, Status

if TYPE_CHECKING:
    from gpuplane.kubernetes.client.api import ApiClient, Event

PODS_PATH = "/api/v1/pods"
LIST_INTERVAL = 3600.0
"""Seconds after which the pods are listed again; until then one stream goes on where another ended."""
HASH_ANNOTATION, MIRROR_ANNOTATION = "kubernetes.io/config.hash", "kubernetes.io/config.mirror"
RIGHTS_ADVICE = "; the component pod-labels gives this right"


async def watch_pods(node: Node, name: str, kubeconfig: Path | None) -> None:
    """Keep the pods of the node of this name in the snapshot while any part needs them, for ever."""
    while True:
        await node.wait_until(lambda snapshot: wanted_pod_watch(snapshot) is not None, None)
        wanted = wanted_pod_watch(node.snapshot)
        assert wanted is not None
        changed = node.wait_until(lambda snapshot, wanted=wanted: wanted_pod_watch(snapshot) != wanted, None)  # type: ignore[misc]
        informer = Informer(
            kubeconfig,
            PODS_PATH,
            ApiPod,
            fields=f"spec.nodeName={name}",
            metadata_only=True,
            list_every=LIST_INTERVAL,
        )
        await run_until(changed, informer.run(_PodFollower(node, name, wanted.labels)))
        node.apply(PodsObserved(None))
        node.apply(StatusChanged(PODS_PART, None))


class _PodFollower:
    """Tells the agent which pods its node has. What was known stays while the API server is away."""

    def __init__(self, node: Node, name: str, allowed: tuple[str, ...]) -> None:
        self._node, self._name, self._allowed = node, name, allowed
        self._pods: dict[str, PodMetadata] = {}

    async def on_list(self, client: "ApiClient", objects: list[ApiPod]) -> None:
        self._pods = {_uid(each.metadata): _pod(each.metadata, self._allowed) for each in objects}
        self._node.apply(PodsObserved(dict(self._pods)))

    def on_watch_started(self, client: "ApiClient") -> None:
        text = f"watches the pods of Node {self._name} of {client.url}"
        self._node.apply(StatusChanged(PODS_PART, Status("ok", text)))

    async def on_change(self, client: "ApiClient", event: "Event[ApiPod]") -> None:
        uid, pod = _uid(event.object.metadata), _pod(event.object.metadata, self._allowed)
        if event.type == "DELETED":
            self._pods.pop(uid, None)
        elif self._pods.get(uid) == pod:
            return
        else:
            self._pods[uid] = pod
        self._node.apply(PodsObserved(dict(self._pods)))

    def on_failure(self, error: ApiServerError) -> float:
        right = RIGHTS_ADVICE if error.code == 403 else ""
        self._node.apply(StatusChanged(PODS_PART, Status("failing", f"{error}{right}")))
        return 0.0


def _uid(metadata: ObjectMetadata) -> str:
    """The UID by which kubelet names a pod's cgroup."""
    annotations = metadata.annotations or {}
    return (annotations.get(HASH_ANNOTATION) if MIRROR_ANNOTATION in annotations else "") or metadata.uid


def _pod(metadata: ObjectMetadata, allowed: tuple[str, ...]) -> PodMetadata:
    labels: Mapping[str, str] = metadata.labels or {}
    kept = {
        name: value for name, value in sorted(labels.items()) if any(matches_pattern(each, name) for each in allowed)
    }
    return PodMetadata(namespace=metadata.namespace, name=metadata.name, labels=kept)
