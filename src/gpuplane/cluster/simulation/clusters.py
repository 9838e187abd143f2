"""A cluster that was read, to try policies on: its open nodes, empty, and its pods as those that arrive."""

from gpuplane.cluster.engine.cluster import Cluster
from gpuplane.cluster.engine.engine import Engine
from gpuplane.cluster.engine.policies import make_policy
from gpuplane.cluster.engine.policies.expected import usual_gpu
from gpuplane.cluster.engine.workload import request_class
from gpuplane.cluster.model.requests import Request
from gpuplane.cluster.reading.cluster import SeenCluster
from gpuplane.cluster.simulation.pods import TracePod
from gpuplane.cluster.simulation.workers import Trace


def trace_of(seen: SeenCluster) -> Trace:
    """All pods, whether they run or wait, without those that ask for MIG devices: how much of a GPU one is, nobody
    says. What asks for memory or for ids counts as so much of a usual GPU. Nobody knows for how long a pod stays."""
    nodes = tuple(each for each in seen.nodes if each.is_schedulable)
    usual = usual_gpu(Cluster(nodes))
    pods = [
        TracePod(each.name, each.request, _demand_milli(each.request, *usual))
        for each in (*seen.pods, *seen.waiting)
        if each.uid and not each.request.asks_for_mig
    ]
    return Trace(nodes, tuple(pods))


def _demand_milli(request: Request, memory_mib: int, unit_milli: int) -> int:
    """Of all its parts together."""
    parts = (request_class(Request(gpus=(each,)), memory_mib, unit_milli) for each in request.gpus)
    return sum(each.gpus * each.milli for each in parts)


def without_impossible(trace: Trace) -> Trace:
    """Without the pods that no node has room for, even when all are empty: none of them is a policy's demand."""
    empty, fits = Engine(Cluster(trace.nodes), make_policy("binpack")), dict[Request, bool]()
    for each in trace.pods:
        if each.request not in fits:
            fits[each.request] = empty.choose(each.request) is not None
    return trace.but(pods=tuple(each for each in trace.pods if fits[each.request]))
