"""Which node a pod goes to, and which devices its claims get there. Pure.

Of everything that kube-scheduler looks at, these count: a node's taints, a pod's node selector and required node
affinity, its resources, and its claims. Of nodes that would do, the first by name is taken.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal

import msgspec

from gpuplane.kubernetes.objects import ApiNode, ApiPod, added, larger, quantities
from gpuplane.kubernetes.selectors import matches_node, tolerates
from gpuplane.sandbox.scheduler.allocator import MissingClass, allocate
from gpuplane.sandbox.scheduler.cel import MissingLibrary, SelectorError
from gpuplane.sandbox.scheduler.objects import Allocation, DeviceClass, DeviceId, ResourceClaim, ResourceSlice

TAINTED_TEXT, NOT_SELECTED_TEXT = (
    "node(s) had untolerated taint(s)",
    "node(s) didn't match Pod's node affinity/selector",
)
CLAIM_ELSEWHERE_TEXT, CANNOT_ALLOCATE_TEXT = "resourceclaim not available on the node", "cannot allocate all claims"


class Cluster(msgspec.Struct, frozen=True):
    """What the API server has."""

    nodes: tuple[ApiNode, ...] = ()
    pods: tuple[ApiPod, ...] = ()
    slices: tuple[ResourceSlice, ...] = ()
    classes: tuple[DeviceClass, ...] = ()
    claims: tuple[ResourceClaim, ...] = ()


class Placement(msgspec.Struct, frozen=True):
    """Where a pod goes, and what its claims get, by their keys: those that were not allocated before."""

    node: str
    allocations: Mapping[str, Allocation] = {}


class Unschedulable(Exception):
    """Why a pod has no node. `reason`: of its condition PodScheduled."""

    def __init__(self, message: str, reason: str = "Unschedulable") -> None:
        super().__init__(message)
        self.reason = reason


def decide(cluster: Cluster, pod: ApiPod) -> Placement | None:
    """Where a pod goes; None while one of its claims is not there. Raises Unschedulable, MissingLibrary."""
    claims = find_claims(cluster, pod)
    if claims is None:
        return None
    reasons: Counter[str] = Counter()
    for node in sorted(cluster.nodes, key=lambda node: node.metadata.name):
        if why := _obstacle(cluster, pod, claims, node):
            reasons[why] += 1
            continue
        if (allocations := _allocate(cluster, claims, node)) is not None:
            return Placement(node.metadata.name, allocations)
        reasons[CANNOT_ALLOCATE_TEXT] += 1
    each = ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items()))
    raise Unschedulable(f"0/{len(cluster.nodes)} nodes are available: {each}.")


def find_claims(cluster: Cluster, pod: ApiPod) -> tuple[ResourceClaim, ...] | None:
    """The claims of a pod; None while one is not there, is on its way out or is another pod's."""
    made = {each.name: each.resource_claim_name for each in pod.status.resource_claim_statuses or ()}
    known = {each.key: each for each in cluster.claims}
    found = []
    for each in pod.spec.resource_claims or ():
        name = each.resource_claim_name or made.get(each.name)
        claim = known.get(f"{pod.metadata.namespace}/{name}")
        if claim is None or claim.metadata.deletion_timestamp:
            return None
        owners = [owner.uid for owner in claim.metadata.owner_references or () if owner.kind == "Pod"]
        if each.resource_claim_name is None and owners != [pod.metadata.uid]:
            return None
        found.append(claim)
    return tuple(found)


def _obstacle(cluster: Cluster, pod: ApiPod, claims: Iterable[ResourceClaim], node: ApiNode) -> str:
    """What keeps a pod from a node, but for claims that have no devices yet; "" for nothing."""
    name, labels, affinity = node.metadata.name, node.metadata.labels or {}, pod.spec.affinity
    required = affinity.node_affinity.required if affinity and affinity.node_affinity else None
    wanted = pod.spec.node_selector or {}
    if not (labels.items() >= wanted.items() and (required is None or matches_node(required, name, labels))):
        return NOT_SELECTED_TEXT
    if not tolerates(pod.spec.tolerations or (), node.spec.taints or ()):
        return TAINTED_TEXT
    if short := _insufficient(cluster, pod, node):
        return f"Insufficient {short}"
    selectors = (each.status.allocation.node_selector for each in claims if each.status.allocation)
    reached = all(each is None or matches_node(each, name, labels) for each in selectors)
    return "" if reached else CLAIM_ELSEWHERE_TEXT


def _insufficient(cluster: Cluster, pod: ApiPod, node: ApiNode) -> str:
    """The first resource of which a node has too little left; "" for none. Of a node that says nothing, nothing is
    counted: a described one may have no more than a name."""
    if not (has := quantities(node.status.allocatable)):
        return ""
    there = [each for each in cluster.pods if each.spec.node_name == node.metadata.name and not each.has_ended]
    taken: dict[str, Decimal] = {}
    for each in there:
        taken = added(taken, _amounts(each))
    needed = added(taken, _amounts(pod))
    return next((name for name in sorted(_amounts(pod)) if needed[name] > has.get(name, Decimal(0))), "")


def _amounts(pod: ApiPod) -> dict[str, Decimal]:
    """What a pod takes of a node: its containers at once, or its largest init container."""
    total: dict[str, Decimal] = {"pods": Decimal(1)}
    sidecars = [each for each in pod.spec.init_containers or () if each.is_sidecar]
    for each in (*pod.spec.containers, *sidecars):
        total = added(total, quantities(each.amounts()))
    for each in pod.spec.init_containers or ():
        total = larger(total, quantities(each.amounts()))
    return total


def _allocate(cluster: Cluster, claims: Sequence[ResourceClaim], node: ApiNode) -> Mapping[str, Allocation] | None:
    """What the claims get on a node that have nothing yet; None where there is not enough. Raises Unschedulable."""
    wanted = [each for each in claims if each.status.allocation is None]
    if not wanted:
        return {}
    classes = {each.metadata.name: each for each in cluster.classes}
    try:
        return allocate(node, wanted, cluster.slices, classes, find_in_use(cluster.claims))
    except MissingLibrary:
        raise
    except MissingClass as missing:
        raise Unschedulable(f"0/{len(cluster.nodes)} nodes are available: {missing}.") from None
    except (SelectorError, ValueError) as wrong:
        text = f'running "DynamicResources" filter plugin: {wrong}'
        raise Unschedulable(text, "SchedulerError") from None


def find_in_use(claims: Iterable[ResourceClaim]) -> frozenset[DeviceId]:
    """The devices that claims have. Admin access holds nothing."""
    allocations = (each.status.allocation for each in claims if each.status.allocation is not None)
    return frozenset(each.id for one in allocations for each in one.devices.results if not each.admin_access)
