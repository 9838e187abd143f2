"""A cluster that was read, to try policies on: its open nodes, empty, and its pods as those that arrive."""

from gpuplane.placement.cluster import Cluster
from gpuplane.placement.kubernetes.cluster import SeenCluster
from gpuplane.placement.policies.expected import usual_gpu
from gpuplane.placement.simulation.pods import Pod
from gpuplane.placement.simulation.workers import Trace
from gpuplane.placement.workload import request_class


def trace_of(seen: SeenCluster) -> Trace:
    """All pods, whether they run or wait. What asks for memory or for ids counts as so much of a usual GPU. Nobody
    knows for how long a pod stays."""
    nodes = tuple(each for each in seen.nodes if each.is_schedulable)
    usual, pods = usual_gpu(Cluster(nodes)), list[Pod]()
    for each in (*seen.pods, *seen.waiting):
        if each.uid:
            kind = request_class(each.request, *usual)
            pods.append(Pod(each.name, each.request, kind.gpus * kind.milli))
    return Trace(nodes, tuple(pods))
