"""The Nodes and Pods of an API server, listed once, in pages. Needs the right to list both, and no other."""

from pathlib import Path

from gpuplane.placement.kubernetes.cluster import SeenCluster, read_cluster
from gpuplane.placement.kubernetes.objects import ApiNode, ApiPod

NODES, PODS = "/api/v1/nodes", "/api/v1/pods"
MOST_NODES, MOST_PODS = 50_000, 500_000
NOT_ENDED = "status.phase!=Succeeded,status.phase!=Failed"
RIGHTS = {NODES: "nodes", PODS: "pods"}


class ClusterUnavailable(Exception):
    """The cluster cannot be listed. The message says why, and which right is missing if that is the reason."""


async def list_cluster(kubeconfig: Path | None) -> SeenCluster:
    """What the API server of a kubeconfig says now; None: of the cluster that this process runs in. Raises
    ClusterUnavailable."""
    from gpuplane.apiserver.connection import ApiServerError, connect, list_pages

    path = NODES
    try:
        async with connect(kubeconfig) as client:
            nodes = await list_pages(client, NODES, ApiNode, most=MOST_NODES)
            path = PODS
            pods = await list_pages(client, PODS, ApiPod, NOT_ENDED, MOST_PODS)
    except ApiServerError as error:
        if error.code == 403:
            raise ClusterUnavailable(
                f"the user of {kubeconfig or 'this pod'} may not list {RIGHTS[path]} (403): a ClusterRole has to allow "
                "the verb list for nodes and pods"
            ) from None
        raise ClusterUnavailable(f"{error}") from None
    return read_cluster(nodes, pods)
