"""All Nodes and Pods of an API server as one picture: the nodes, who has what of them, and who waits for a place."""

from collections.abc import Iterable, Mapping, Sequence

from gpuplane.base.value import Value
from gpuplane.cluster.model.nodes import Node
from gpuplane.cluster.model.pods import Pod
from gpuplane.cluster.reading.budgets import ApiBudget, Budgets
from gpuplane.cluster.reading.held import read_held, unknown_nodes
from gpuplane.cluster.reading.nodes import (
    SHARED_RESOURCE,
    SeenNode,
    aliyun_unit_mib,
    offered_resources,
    read_node,
)
from gpuplane.cluster.reading.notes import Note
from gpuplane.cluster.reading.peers import GPU_MEMORY, HeldGpu, held_gpus
from gpuplane.cluster.reading.pods import GpusThere, read_pod
from gpuplane.kubernetes.objects import ApiNode, ApiPod
from gpuplane.kubernetes.resourcenames import GPU_RESOURCE, MIG_RESOURCE_PREFIX


class SeenCluster(Value):
    """`pods`: those on a node, of some of which nobody says which GPUs they have (`Pod.unknown`); `waiting`: those on
    none yet, the highest priority first. `budgets`: name of each budget of disruption → how many of its pods may end
    now."""

    nodes: tuple[Node, ...]
    pods: tuple[Pod, ...] = ()
    waiting: tuple[Pod, ...] = ()
    budgets: Mapping[str, int] = {}
    notes: tuple[Note, ...] = ()


def read_cluster(
    nodes: Iterable[ApiNode], pods: Iterable[ApiPod], disruption_budgets: Iterable[ApiBudget] = ()
) -> SeenCluster:
    """What the API says. It never raises: what is not as it should be is among the notes."""
    listed, notes = list(nodes), list[Note]()
    seen, doubled = dict[str, SeenNode](), dict[str, None]()
    for each in listed:
        if each.metadata.name in seen:
            doubled[each.metadata.name] = None
        else:
            seen[each.metadata.name] = read_node(each)
    there, budgets = _gpus_there(seen, listed), Budgets(disruption_budgets)
    waiting, by_node, by_peers = list[Pod](), dict[str, list[Pod]](), dict[str, Sequence[HeldGpu]]()
    names, uids, ports = set[str](), set[str](), dict[str, int]()
    for api in pods:
        if api.has_ended:
            continue
        pod = _with_budgets(read_pod(api, there), budgets.of(api), budgets.allowed)
        if pod.name in names or pod.uid in uids:
            doubled[pod.name] = None
            if pod.name in names:
                continue
            pod = pod.but(uid=pod.name)
        names.add(pod.name)
        uids.add(pod.uid)
        if api.has_claims:
            notes.append(Note("claims-unread", pod.name))
        if api.spec.node_name:
            by_node.setdefault(api.spec.node_name, []).append(pod)
        elif api.spec.scheduling_gates:
            notes.append(Note("gated", pod.name))
        elif not api.metadata.deletion_timestamp:
            waiting.append(pod)
        ports.update(dict.fromkeys(api.host_ports, 1))
        if held := held_gpus(api):
            by_peers[pod.name] = held
    notes += [Note("duplicate-name", name) for name in doubled]
    notes += unknown_nodes(by_node, seen)
    with_gpus = [each.node for each in seen.values() if each.node.gpus]
    if len(with_gpus) > 1:
        notes += [Note("model-unknown", each.name) for each in with_gpus if not all(gpu.model for gpu in each.gpus)]
    placed = list[Pod]()
    seen = {
        name: each._replace(node=each.node.but(others={**each.node.others, **ports})) for name, each in seen.items()
    }
    for name, node in seen.items():
        found, said = read_held(node, by_node.get(name, ()), by_peers)
        placed += found
        notes += said
    waiting.sort(key=lambda each: -each.priority)
    return SeenCluster(
        tuple(each.node for each in seen.values()), tuple(placed), tuple(waiting), budgets.allowed, tuple(notes)
    )


def _with_budgets(pod: Pod, budgets: tuple[str, ...], allowed: Mapping[str, int]) -> Pod:
    """The pod with its budgets. It cannot move while one allows no disruption, nor if it has several: such a pod is
    never evicted (eviction.go)."""
    stays = len(budgets) > 1 or any(not allowed[each] for each in budgets)
    return pod.but(budgets=budgets, can_move=pod.can_move and not stays)


def _gpus_there(seen: Mapping[str, SeenNode], nodes: Iterable[ApiNode]) -> GpusThere:
    resources = {GPU_RESOURCE: 0, SHARED_RESOURCE: 0}
    for each in seen.values():
        for resource in offered_resources(each.annotation) if each.annotation is not None else ():
            if not resource.name.startswith(MIG_RESOURCE_PREFIX):
                resources[resource.name] = max(resources.get(resource.name, 0), resource.share_mib)
    gpus = [gpu for each in seen.values() for gpu in each.node.gpus]
    return GpusThere(
        resources,
        frozenset(each.model for each in gpus),
        frozenset(each.id for each in gpus),
        aliyun_unit_mib(nodes),
        any(GPU_MEMORY in each.node.others for each in seen.values()),
    )
