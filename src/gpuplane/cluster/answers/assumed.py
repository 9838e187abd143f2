"""Which GPUs pods have where nobody says it: as they would fit best, when all that is known is held.

A node may have more held than it has. That is never refused, and the node is named among the notes.
"""

from collections.abc import Sequence

import numpy as np

from gpuplane.cluster.engine.cluster import Cluster
from gpuplane.cluster.engine.within import place_parts
from gpuplane.cluster.model.nodes import Node
from gpuplane.cluster.model.pods import Pod
from gpuplane.cluster.model.requests import GpuRequest, Placement, Request, Share, share_of
from gpuplane.cluster.reading.cluster import SeenCluster
from gpuplane.cluster.reading.notes import Note


def assume_places(seen: SeenCluster) -> SeenCluster:
    """The same cluster, in which all pods have places for all of their GPUs."""
    cluster, pods = Cluster(seen.nodes), list[Pod]()
    nodes = {each.name: each for each in seen.nodes}
    for each in seen.pods:
        assert each.placement is not None
        cluster.hold(each.request, each.placement)
        if each.unknown:
            shares = _assume(cluster, nodes[each.placement.node], [wanted for _, wanted in each.unknown])
            each = each.with_shares(shares)
        pods.append(each)
    over_held = [Note("over-held", each.name) for each in seen.nodes if cluster.is_over_held(each.name)]
    return seen.but(pods=tuple(pods), notes=(*seen.notes, *over_held))


def build(seen: SeenCluster) -> Cluster:
    """The nodes as arrays, with all that pods have."""
    cluster = Cluster(seen.nodes)
    for each in seen.pods:
        assert each.placement is not None
        cluster.hold(each.request, each.placement)
    return cluster


def _assume(cluster: Cluster, node: Node, wanted: Sequence[GpuRequest]) -> Sequence[Sequence[Share]]:
    """Takes these GPUs where they fit; else those that have most left, two ids of one GPU as NVIDIA's plugin gives them
    out if it comes to that."""
    row = cluster.rows[node.name]
    if found := place_parts(cluster, row, wanted):
        cluster.take(Request(), Placement(node.name, found))
        return found
    parts = list[tuple[Share, ...]]()
    for each in wanted:
        shares = list[Share]()
        for _ in range(min(each.count, sum(gpu.units for gpu in node.gpus) + 1) if node.gpus else 0):
            place = _freest(cluster, row, len(node.gpus), each)
            share = share_of(node.gpus[place], place, each)
            if share.profile and share.profile not in node.gpus[place].profiles:
                continue
            cluster.hold(Request(), Placement(node.name, ((share,),)))
            shares.append(share)
        parts.append(tuple(shares))
    return parts


def _freest(cluster: Cluster, row: int, gpus: int, wanted: GpuRequest) -> int:
    """The GPU of a node that has the most left of what is wanted; one where it fits before all others."""
    fits = cluster.fits(np.array([row]), wanted)[0, :gpus]
    left = (cluster.mig_free(wanted.profile) if wanted.profile else cluster.milli_free)[row, :gpus]
    return int(np.lexsort((left, fits))[-1])
