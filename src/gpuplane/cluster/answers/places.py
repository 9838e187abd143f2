"""Where a pod is or goes, and what is expected: what several answers say or look at."""

from collections.abc import Iterable

from gpuplane.base.value import Value
from gpuplane.cluster.engine.cluster import Cluster
from gpuplane.cluster.engine.configuration import PlacementConfig
from gpuplane.cluster.engine.workload import Workload
from gpuplane.cluster.model.pods import Pod
from gpuplane.cluster.model.requests import Placement


class PlaceShown(Value, omit_defaults=False):
    """GPUs of a node, by their ids."""

    node: str
    gpus: tuple[str, ...] = ()


def expected_workload(
    config: PlacementConfig, running: Iterable[Pod], waiting: Iterable[Pod], *, times: float = 1.0
) -> Workload:
    """What is expected: the pods that run and those that wait, each of these as so many."""
    workload = config.workload()
    for each in running:
        workload.arrive(each.request)
    for each in waiting:
        workload.arrive(each.request, times)
    return workload


def show_place(cluster: Cluster, placement: Placement) -> PlaceShown:
    node = cluster.nodes[cluster.rows[placement.node]]
    assert node is not None
    gpus = dict.fromkeys(share.gpu for share in placement.all_shares)
    return PlaceShown(placement.node, tuple(node.gpus[gpu].id for gpu in gpus))
