"""The pods of our node: their names and labels, for series of metrics. Watched only where the configuration wants it.

Only metadata is asked for, and of that only labels that the configuration names are kept. RBAC cannot restrict a list
of pods to those of one node, so whoever gives this right lets the agent read the metadata of all pods.

A static pod has two UIDs: kubelet names its cgroup and its logs by a hash of its file, which the API server has in the
annotation `kubernetes.io/config.hash` of the mirror pod (kubelet: pkg/kubelet/types/pod_update.go).
"""

import asyncio
import importlib
import random
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gpuplane.base.text import matches_pattern
from gpuplane.kubernetes.podref import PodMetadata
from gpuplane.node.apiserver.node import CLIENT_MODULE, next_pause
from gpuplane.node.model.config import MetricsSettings
from gpuplane.node.model.facts import PodsObserved, StatusChanged
from gpuplane.node.model.node import Node
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import PODS, Status

if TYPE_CHECKING:
    from gpuplane.kubernetes.client.connection import Metadata

PODS_PATH = "/api/v1/pods"
HASH_ANNOTATION, MIRROR_ANNOTATION = "kubernetes.io/config.hash", "kubernetes.io/config.mirror"
RIGHT = "; the component pod-labels gives this right"


async def watch_pods(node: Node, name: str, kubeconfig: Path | None) -> None:
    """Keep the pods of the node of this name in the snapshot while the configuration wants it, for ever."""
    while True:
        await node.wait_until(lambda snapshot: _settings(snapshot).watch_pods, None)
        await asyncio.to_thread(importlib.import_module, CLIENT_MODULE)
        settings = _settings(node.snapshot)
        watching = asyncio.create_task(_watch(node, name, kubeconfig, settings.pod_labels))
        try:
            await _until_changed(node, settings)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        node.apply(PodsObserved(None))
        node.apply(StatusChanged(PODS, None))


async def _until_changed(node: Node, settings: MetricsSettings) -> None:
    await node.wait_until(lambda snapshot: _settings(snapshot) != settings, None)


def _settings(snapshot: Snapshot) -> MetricsSettings:
    return snapshot.config.settings.metrics if snapshot.config.settings is not None else MetricsSettings()


async def _watch(node: Node, name: str, kubeconfig: Path | None, allowed: tuple[str, ...]) -> None:
    """One list and one stream after another, for ever. What was known stays while the API server is away."""
    from gpuplane.kubernetes.client.connection import ApiServerError

    rested = 0.0
    while True:
        began = node.now()
        try:
            await _follow_once(node, name, kubeconfig, allowed)
        except ApiServerError as error:
            node.apply(StatusChanged(PODS, Status("failing", f"{error}{RIGHT if error.code == 403 else ''}")))
        rested = next_pause(rested, node.now() - began)
        await asyncio.sleep(rested * random.uniform(0.5, 1))  # noqa: S311 (spreads load; no secret)


async def _follow_once(node: Node, name: str, kubeconfig: Path | None, allowed: tuple[str, ...]) -> None:
    from gpuplane.kubernetes.client.connection import connect, list_objects, watch_objects

    ours = f"spec.nodeName={name}"
    async with connect(kubeconfig) as client:
        listing = await list_objects(client, PODS_PATH, ours)
        pods = {_uid(each.metadata): _pod(each.metadata, allowed) for each in listing.items}
        node.apply(PodsObserved(dict(pods)))
        async with watch_objects(client, PODS_PATH, ours, listing.metadata.resourceVersion) as events:
            node.apply(StatusChanged(PODS, Status("ok", f"watches the pods of Node {name} of {client.base_url}")))
            async for event in events:
                uid, pod = _uid(event.object.metadata), _pod(event.object.metadata, allowed)
                if event.type == "DELETED":
                    pods.pop(uid, None)
                elif event.type in ("ADDED", "MODIFIED") and pods.get(uid) != pod:
                    pods[uid] = pod
                else:
                    continue
                node.apply(PodsObserved(dict(pods)))


def _uid(metadata: "Metadata") -> str:
    """The UID by which kubelet names a pod's cgroup."""
    annotations = metadata.annotations or {}
    return (annotations.get(HASH_ANNOTATION) if MIRROR_ANNOTATION in annotations else "") or metadata.uid


def _pod(metadata: "Metadata", allowed: tuple[str, ...]) -> PodMetadata:
    labels: Mapping[str, str] = metadata.labels or {}
    kept = {
        name: value for name, value in sorted(labels.items()) if any(matches_pattern(each, name) for each in allowed)
    }
    return PodMetadata(namespace=metadata.namespace, name=metadata.name, labels=kept)
