"""What is written into a claim of the devices that it got: results, configurations, and the nodes that reach them.

Source: dynamic-resource-allocation/structured/internal/incubating/allocator_incubating.go of 1.36.
"""

from collections.abc import Iterable, Sequence
from uuid import UUID, uuid5

from gpuplane.kubernetes.objects import ApiNode
from gpuplane.kubernetes.selectors import NodeSelector, NodeSelectorTerm, Requirement
from gpuplane.sandbox.scheduler.allocator import Pick
from gpuplane.sandbox.scheduler.claims import Allocation, DeviceAllocation, ResourceClaim, Result
from gpuplane.sandbox.scheduler.slices import Configuration, DeviceClass

SHARE_ID_NAMESPACE = UUID("f6a0e6ce-2f3c-4a3f-9d43-0d3e7c1b7a51")
"""The name space of the UIDs of shares."""


def make_allocation(claim: ResourceClaim, picks: Sequence[Pick], node: ApiNode) -> Allocation:
    """The allocation of a claim, without its time."""
    config = (*_class_configurations(picks), *_claim_configurations(claim, picks))
    results = tuple(_make_result(pick, f"{claim.metadata.uid} {index}") for index, pick in enumerate(picks))
    devices = DeviceAllocation(results=results, config=config)
    return Allocation(devices=devices, node_selector=_node_selector(picks, node))


def _make_result(pick: Pick, share: str) -> Result:
    """`share`: what names this share of a device, in all the cluster. The real scheduler takes a random UID."""
    driver, pool, name = pick.candidate.id
    return Result(
        request=pick.wanted.name,
        driver=driver,
        pool=pool,
        device=name,
        admin_access=True if pick.wanted.request.admin_access else None,
        tolerations=pick.wanted.request.tolerations,
        binding_conditions=pick.candidate.device.binding_conditions,
        binding_failure_conditions=pick.candidate.device.binding_failure_conditions,
        share_id=str(uuid5(SHARE_ID_NAMESPACE, share)) if pick.is_shared else None,
        consumed_capacity={name: each.text for name, each in pick.consumed.items()},
    )


def _class_configurations(picks: Iterable[Pick]) -> Iterable[Configuration]:
    """Those of each class once, for all requests that got devices of it."""
    by_class: dict[str, tuple[DeviceClass, list[str]]] = {}
    for pick in picks:
        found = pick.wanted.device_class
        _, requests = by_class.setdefault(found.metadata.name, (found, []))
        if pick.wanted.name not in requests:
            requests.append(pick.wanted.name)
    for found, requests in by_class.values():
        for each in found.spec.config:
            yield Configuration(source="FromClass", requests=tuple(requests), opaque=each.opaque)


def _claim_configurations(claim: ResourceClaim, picks: Iterable[Pick]) -> Iterable[Configuration]:
    """Those for all requests, and those that name a request, or the alternative that was taken; word for word.

    One that names two requests is there twice, as kube-scheduler has it.
    """
    taken = dict.fromkeys(pick.wanted.name for pick in picks)
    for each in claim.spec.devices.config:
        times = sum(name in each.requests or name.split("/")[0] in each.requests for name in taken)
        for _ in range(times if each.requests else 1):
            yield Configuration(source="FromClaim", requests=each.requests, opaque=each.opaque)


def _node_selector(picks: Iterable[Pick], node: ApiNode) -> NodeSelector | None:
    """The node itself where a device is on it or binds to it; else what all the devices ask of a node."""
    fields: list[Requirement] = []
    expressions: list[Requirement] = []
    for pick in picks:
        name, selector = pick.candidate.node_restrictions
        if name is not None or pick.candidate.device.binds_to_node:
            only = Requirement("metadata.name", "In", (node.metadata.name,))
            return NodeSelector((NodeSelectorTerm(match_fields=(only,)),))
        for term in selector.node_selector_terms if selector else ():
            fields += [each for each in term.match_fields if each not in fields]
            expressions += [each for each in term.match_expressions if each not in expressions]
    if not (fields or expressions):
        return None
    return NodeSelector((NodeSelectorTerm(match_expressions=tuple(expressions), match_fields=tuple(fields)),))
