"""The Nodes, Pods and PodDisruptionBudgets of an API server, or of a file that kubectl has written.

The API server is asked once, in pages. That needs the right to list nodes and pods. Who may not list budgets is told
so, and gets the rest.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gpuplane.base.strict import InvalidInput
from gpuplane.cluster.reading.budgets import ApiBudget
from gpuplane.cluster.reading.cluster import SeenCluster, read_cluster
from gpuplane.cluster.reading.notes import Note
from gpuplane.kubernetes.client import ApiServerError, connect
from gpuplane.kubernetes.client.lists import ObjectList
from gpuplane.kubernetes.objects import NOT_DECODED, ApiNode, ApiPod, decode_objects

if TYPE_CHECKING:
    from gpuplane.kubernetes.client.api import ApiClient

NODES_PATH, PODS_PATH, BUDGETS_PATH = "/api/v1/nodes", "/api/v1/pods", "/apis/policy/v1/poddisruptionbudgets"
MAX_NODES, MAX_PODS, MAX_BUDGETS = 50_000, 500_000, 100_000
NOT_ENDED = "status.phase!=Succeeded,status.phase!=Failed"
RESOURCES_BY_PATH = {NODES_PATH: "nodes", PODS_PATH: "pods"}
MAX_BYTES = 4 << 30
"""Of a file."""


class ClusterUnavailable(Exception):
    """The cluster cannot be listed. The message says why, and which right is missing if that is the reason."""


async def list_cluster(kubeconfig: Path | None) -> SeenCluster:
    """What the API server of a kubeconfig says now; None: of the cluster that this process runs in. Raises
    ClusterUnavailable."""
    path = NODES_PATH
    try:
        async with connect(kubeconfig) as client:
            nodes = await client.list(NODES_PATH, ApiNode, size_limit="cluster", kind="node", max_objects=MAX_NODES)
            path = PODS_PATH
            pods = await client.list(
                PODS_PATH, ApiPod, fields=NOT_ENDED, size_limit="cluster", kind="pod", max_objects=MAX_PODS
            )
            budgets, unread = await _list_budgets(client)
    except ApiServerError as error:
        if error.code == 403:
            raise ClusterUnavailable(
                f"the user of {kubeconfig or 'this pod'} may not list {RESOURCES_BY_PATH[path]} (403): "
                "a ClusterRole has to allow the verb list for nodes and pods"
            ) from None
        raise ClusterUnavailable(f"{error}") from None
    unreadable = (*nodes.unreadable.items(), *pods.unreadable.items(), *budgets.unreadable.items())
    return _read((nodes.items, pods.items, budgets.items), unreadable, unread)


async def _list_budgets(client: "ApiClient") -> tuple[ObjectList[ApiBudget], list[Note]]:
    """(the budgets, a note where they may not be listed)."""
    try:
        return await client.list(
            BUDGETS_PATH, ApiBudget, size_limit="cluster", kind="budget", max_objects=MAX_BUDGETS
        ), []
    except ApiServerError as error:
        if error.code != 403:
            raise
        return ObjectList("", [], {}), [
            Note("budgets-unread", "poddisruptionbudgets", "a ClusterRole has to allow the verb list (403)")
        ]


class _Item(msgspec.Struct):
    kind: str = ""


class _List(msgspec.Struct):
    items: list[msgspec.Raw]
    kind: object = None


def read_saved(data: bytes, file: str) -> SeenCluster:
    """What `kubectl get nodes,pods,pdb --all-namespaces -o json` wrote. Raises InvalidInput.

    A NodeList or a PodList, as `kubectl get --raw` gives it, has items that do not say their kind.
    """
    try:
        found = msgspec.json.decode(data, type=_List)
    except NOT_DECODED as error:
        raise InvalidInput(
            [f"{file}: it is not what `kubectl get nodes,pods,pdb --all-namespaces -o json` writes: {error}"]
        ) from None
    by_kind = dict[str, list[msgspec.Raw]]()
    of_all = str(found.kind).removesuffix("List")
    for each in found.items:
        try:
            kind = msgspec.json.decode(each, type=_Item).kind or of_all
        except NOT_DECODED:
            kind = "Node"  # it cannot be read as one either, and is named
        by_kind.setdefault(kind, []).append(each)
    nodes, unreadable_nodes = decode_objects(by_kind.get("Node", []), ApiNode, "node")
    pods, unreadable_pods = decode_objects(by_kind.get("Pod", []), ApiPod, "pod")
    budgets, unreadable_budgets = decode_objects(by_kind.get("PodDisruptionBudget", []), ApiBudget, "budget")
    unreadable = (*unreadable_nodes.items(), *unreadable_pods.items(), *unreadable_budgets.items())
    return _read((nodes, pods, budgets), unreadable)


def _read(
    objects: tuple[list[ApiNode], list[ApiPod], list[ApiBudget]],
    unreadable: Iterable[tuple[str, str]],
    notes: Iterable[Note] = (),
) -> SeenCluster:
    found = read_cluster(*objects)
    return found.but(notes=(*notes, *(Note("object-unreadable", *each) for each in unreadable), *found.notes))
