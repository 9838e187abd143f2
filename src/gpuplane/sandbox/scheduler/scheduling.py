"""Where a pod with resource claims runs, and what its claims get: the decision of kube-scheduler 1.36. Pure.

Sources: pkg/scheduler/framework/plugins/dynamicresources/dynamicresources.go; the messages are those of
pkg/scheduler/framework/types.go (FitError). Of everything else that a scheduler does, only a pod's node selector and
its required node affinity count.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from gpuplane.kubernetes.objects import ApiNode, ApiPod
from gpuplane.sandbox.apiserver.quantities import parse_quantity
from gpuplane.sandbox.scheduler.allocator import InvalidPools, Pick, allocate
from gpuplane.sandbox.scheduler.capacity import InUse
from gpuplane.sandbox.scheduler.claims import Allocation, ResourceClaim
from gpuplane.sandbox.scheduler.nodeselection import matches_node, may_run_on
from gpuplane.sandbox.scheduler.results import make_allocation
from gpuplane.sandbox.scheduler.slices import DeviceClass, ResourceSlice
from gpuplane.sandbox.scheduler.wanted import AllocationError

FIRST_ALTERNATIVE_SCORE = 8
"""What the first alternative of a request scores; each one after it a point less."""
NODE_AFFINITY_TEXT = "node(s) didn't match Pod's node affinity/selector"
CLAIM_NOT_AVAILABLE_TEXT = "resourceclaim not available on the node"
CANNOT_ALLOCATE_TEXT = "cannot allocate all claims"
INVALID_POOLS_TEXT = "invalid resource pools were encountered"
PREEMPTION_NOT_HELPFUL_TEXT = "Preemption is not helpful for scheduling."

Outcome = Literal["scheduled", "waiting", "unschedulable", "failed"]


class Cluster(msgspec.Struct, frozen=True):
    """What the API server has."""

    nodes: tuple[ApiNode, ...] = ()
    slices: tuple[ResourceSlice, ...] = ()
    classes: tuple[DeviceClass, ...] = ()
    claims: tuple[ResourceClaim, ...] = ()


class Decision(msgspec.Struct, frozen=True):
    """What becomes of a pod.

    - scheduled: on `node`; `allocations` by claim; `as_good` are nodes that would have done as well.
    - waiting: a claim is not there yet.
    - unschedulable, failed (the reasons Unschedulable and SchedulerError of the condition PodScheduled): `message` says
      why. The allocation of claim `deallocate` is to be dropped: nobody uses it, and it keeps the pod from all nodes.
    """

    outcome: Outcome
    node: str = ""
    allocations: Mapping[str, Allocation] = {}
    as_good: tuple[str, ...] = ()
    message: str = ""
    deallocate: str = ""


def decide(cluster: Cluster, pod: ApiPod) -> Decision:
    """What becomes of a pod that has no node. Of nodes that are as good, the first by name."""
    claims = find_claims(cluster, pod)
    if claims is None:
        return Decision("waiting")
    classes = {each.metadata.name: each for each in cluster.classes}
    if missing := _missing_class(claims, classes):
        return _unschedulable(Counter({missing: len(cluster.nodes)}), len(cluster.nodes), counted=False)
    wanted = [each for each in claims if each.status.allocation is None]
    held = find_in_use(cluster.claims)
    found: dict[str, tuple[Pick, ...]] = {}
    reasons: Counter[str] = Counter()
    for node in sorted(cluster.nodes, key=lambda node: node.metadata.name):
        if not may_run_on(pod, node):
            reasons[NODE_AFFINITY_TEXT] += 1
        elif not all(_is_available(claim, node) for claim in claims):
            reasons[CLAIM_NOT_AVAILABLE_TEXT] += 1
        else:
            try:
                picks = allocate(node, wanted, cluster.slices, classes, held)
            except InvalidPools:
                reasons[INVALID_POOLS_TEXT] += 1
            except AllocationError as failure:
                return Decision("failed", message=f'running "DynamicResources" filter plugin: {failure}')
            else:
                if picks is None:
                    reasons[CANNOT_ALLOCATE_TEXT] += 1
                else:
                    found[node.metadata.name] = picks
    if not found:
        unused = [each for each in claims if each.status.allocation and not each.status.reserved_for]
        deallocate = unused[0].metadata.name if unused and reasons[CLAIM_NOT_AVAILABLE_TEXT] else ""
        return _unschedulable(reasons, len(cluster.nodes), deallocate=deallocate)
    best, *as_good = _best_nodes(found)
    node = next(each for each in cluster.nodes if each.metadata.name == best)
    allocations = {
        claim.metadata.name: make_allocation(claim, [pick for pick in found[best] if pick.claim == index], node)
        for index, claim in enumerate(wanted)
    }
    return Decision("scheduled", best, allocations, tuple(as_good))


def find_claims(cluster: Cluster, pod: ApiPod) -> tuple[ResourceClaim, ...] | None:
    """The claims of a pod; None while one is not there, is on its way out or is another pod's."""
    made = {each.name: each.resource_claim_name for each in pod.status.resource_claim_statuses or ()}
    known = {each.key: each for each in cluster.claims}
    found = []
    for each in pod.spec.resource_claims or ():
        if each.resource_claim_name is None and each.name in made and made[each.name] is None:
            continue  # no claim is needed
        name = each.resource_claim_name or made.get(each.name)
        claim = known.get(f"{pod.metadata.namespace}/{name}")
        if claim is None or claim.metadata.deletion_timestamp:
            return None
        owners = [owner.uid for owner in claim.metadata.owner_references or () if owner.kind == "Pod"]
        if each.resource_claim_name is None and owners != [pod.metadata.uid]:
            return None
        found.append(claim)
    return tuple(found)


def is_ready_to_bind(claim: ResourceClaim) -> bool:
    """Whether all conditions are true for which the devices of an allocated claim ask before a pod is bound."""
    true = {
        (*each.id, condition["type"])
        for each in claim.status.devices
        for condition in each.conditions
        if condition["status"] == "True"
    }
    results = claim.status.allocation.devices.results if claim.status.allocation else ()
    return all((*each.id, condition) in true for each in results for condition in each.binding_conditions)


def find_in_use(claims: Iterable[ResourceClaim]) -> InUse:
    """What the allocations of all claims hold. Admin access holds nothing."""
    in_use, devices = InUse(), set()
    for claim in claims:
        for result in claim.status.allocation.devices.results if claim.status.allocation else ():
            if result.share_id is not None:
                consumed = {name: parse_quantity(each).value for name, each in result.consumed_capacity.items()}
                in_use = in_use.with_share(result.id, consumed)
            elif not result.admin_access:
                devices.add(result.id)
    return msgspec.structs.replace(in_use, devices=frozenset(devices))


def _missing_class(claims: Sequence[ResourceClaim], classes: Mapping[str, DeviceClass]) -> str:
    for claim in claims:
        if claim.status.allocation is None:
            for request in claim.spec.devices.requests:
                for each in [request.exactly] if request.exactly else request.first_available:
                    if each.device_class_name not in classes:
                        name = f"{request.name}/{each.name}" if request.first_available else request.name
                        return f"request {name}: device class {each.device_class_name} does not exist"
    return ""


def _is_available(claim: ResourceClaim, node: ApiNode) -> bool:
    allocation = claim.status.allocation
    return allocation is None or allocation.node_selector is None or matches_node(allocation.node_selector, node)


def _best_nodes(found: Mapping[str, Sequence[Pick]]) -> list[str]:
    """The nodes with the best alternatives, by name."""
    scores = {
        node: sum(
            {
                (pick.claim, pick.request): FIRST_ALTERNATIVE_SCORE - pick.alternative
                for pick in picks
                if "/" in pick.wanted.name
            }.values()
        )
        for node, picks in found.items()
    }
    return sorted(node for node, score in scores.items() if score == max(scores.values()))


def _unschedulable(reasons: Counter[str], nodes: int, *, counted: bool = True, deallocate: str = "") -> Decision:
    """The message of a pod that fits nowhere; of reasons that hold for the pod itself there is no count."""
    each = sorted(f"{count} {reason}" if counted else reason for reason, count in reasons.items())
    head = f"0/{nodes} nodes are available"
    after = "deallocation of ResourceClaim completed" if deallocate else "still not schedulable"
    preemption = f"preemption: {head}: {nodes} {PREEMPTION_NOT_HELPFUL_TEXT}"
    return Decision("unschedulable", message=f"{head}: {', '.join(each)}. {after}, {preemption}", deallocate=deallocate)
