"""All Nodes and Pods of an API server as one picture: the nodes, who has what of them, and who waits for a place."""

from collections.abc import Iterable, Mapping, Sequence

from gpuplane.core.resourcenames import GPU_RESOURCE, MIG_RESOURCE_PREFIX
from gpuplane.model.nodegpus import NodeGpus, OfferedResource
from gpuplane.model.value import Value
from gpuplane.placement.cluster import Cluster, Node
from gpuplane.placement.kubernetes.held import Note, settle, unknown_nodes
from gpuplane.placement.kubernetes.nodes import (
    SHARED_RESOURCE,
    SeenNode,
    aliyun_unit_mib,
    read_node,
)
from gpuplane.placement.kubernetes.objects import ApiNode, ApiPod, Resources
from gpuplane.placement.kubernetes.peers import HeldGpu, held_gpus
from gpuplane.placement.kubernetes.pods import GpusThere, read_pod
from gpuplane.placement.pods import Pod


class SeenCluster(Value):
    """`pods`: those that have a place; `waiting`: those that have none yet, the highest priority first."""

    nodes: tuple[Node, ...]
    pods: tuple[Pod, ...] = ()
    waiting: tuple[Pod, ...] = ()
    notes: tuple[Note, ...] = ()

    def build(self) -> Cluster:
        """As arrays, with all that is taken. It fits: more than there is counts for nobody."""
        cluster = Cluster(self.nodes)
        for each in self.pods:
            assert each.placement is not None
            cluster.take(each.held, each.placement)
        return cluster


def read_cluster(nodes: Iterable[ApiNode], pods: Iterable[ApiPod]) -> SeenCluster:
    """What the API says. It never raises: what is not as it should be is among the notes."""
    listed = list(nodes)
    notes = list[Note]()
    seen = dict[str, SeenNode]()
    for each in listed:
        if each.metadata.name in seen:
            notes.append(Note("duplicate-name", each.metadata.name))
        else:
            seen[each.metadata.name] = read_node(each)
    there = _gpus_there(seen, {each.metadata.name: each.status.capacity or {} for each in listed})
    waiting, by_node, by_peers = list[Pod](), dict[str, list[Pod]](), dict[str, Sequence[HeldGpu]]()
    for api in pods:
        if not api.has_ended:
            pod = read_pod(api, there)
            (by_node.setdefault(api.spec.node_name, []) if api.spec.node_name else waiting).append(pod)
            if held := held_gpus(api.metadata.annotations or {}):
                by_peers[pod.name] = held
    notes += unknown_nodes(by_node, seen)
    placed = list[Pod]()
    for name, node in seen.items():
        found, said = settle(node, by_node.get(name, ()), by_peers)
        placed += found
        notes += said
    waiting.sort(key=lambda each: -each.priority)
    return SeenCluster(tuple(each.node for each in seen.values()), tuple(placed), tuple(waiting), tuple(notes))


def _gpus_there(seen: Mapping[str, SeenNode], capacities: Mapping[str, Resources]) -> GpusThere:
    resources = {GPU_RESOURCE: 0, SHARED_RESOURCE: 0}
    for each in seen.values():
        for resource in _offered(each.told):
            if resource is not None and not resource.name.startswith(MIG_RESOURCE_PREFIX):
                resources[resource.name] = max(resources.get(resource.name, 0), resource.share_mib)
    gpus = [gpu for each in seen.values() for gpu in each.node.gpus]
    return GpusThere(
        resources,
        frozenset(each.model for each in gpus),
        frozenset(each.id for each in gpus),
        aliyun_unit_mib(capacities),
    )


def _offered(told: NodeGpus | None) -> Iterable[OfferedResource | None]:
    for gpu in told.gpus if told is not None else ():
        yield gpu.resource
        yield from (each.resource for each in gpu.mig)
