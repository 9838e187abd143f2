"""Which devices of one node a pod's claims get: the first solution of an exhaustive search, as kube-scheduler's. Pure.

Claims, requests and devices are tried in their order, each claim with what the claims before it took. A request that
may choose takes the first of its alternatives with which everything after it can be met. Source:
dynamic-resource-allocation/structured/internal/incubating/allocator_incubating.go of 1.36.

Left out: shares of a device, counters of partitions, and binding conditions. A device that has one is given to nobody.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from gpuplane.kubernetes.objects import ApiNode
from gpuplane.kubernetes.selectors import NodeSelector, NodeSelectorTerm, Requirement, matches_node, tolerates
from gpuplane.sandbox.scheduler.cel import Variables, matches
from gpuplane.sandbox.scheduler.objects import (
    Allocation,
    Configuration,
    Constraint,
    Device,
    DeviceAllocation,
    DeviceClass,
    DeviceId,
    ExactRequest,
    Json,
    Request,
    ResourceClaim,
    ResourceSlice,
    Result,
)


class MissingClass(Exception):
    """There is no device class of this name."""


class Candidate(msgspec.Struct, frozen=True):
    """A device, and its place."""

    device: Device
    driver: str
    pool: str

    @property
    def id(self) -> DeviceId:
        return self.driver, self.pool, self.device.name


class Pick(msgspec.Struct, frozen=True):
    """One device for one request of a claim: "main", or "main/alternative"."""

    claim: ResourceClaim
    name: str
    request: ExactRequest
    candidate: Candidate


Picks = tuple[Pick, ...]


def allocate(
    node: ApiNode,
    claims: Sequence[ResourceClaim],
    slices: Sequence[ResourceSlice],
    classes: Mapping[str, DeviceClass],
    in_use: frozenset[DeviceId],
) -> Mapping[str, Allocation] | None:
    """The allocation of each claim by its key; None where the node has not enough.

    Raises MissingClass, and SelectorError where a selector fails.
    """
    search = _Search(tuple(_candidates(slices, node)), classes, in_use)
    wanted = [(claim, request) for claim in claims for request in claim.spec.devices.requests]
    picks = next(search.solutions(wanted, ()), None)
    if picks is None:
        return None
    return {each.key: _allocation(each, [one for one in picks if one.claim is each], classes, node) for each in claims}


def _candidates(slices: Sequence[ResourceSlice], node: ApiNode) -> Iterator[Candidate]:
    """The devices that a node reaches: those of the newest slices of each pool that is complete."""
    pools: dict[tuple[str, str], list[ResourceSlice]] = {}
    for each in sorted(slices, key=lambda each: each.metadata.name):
        pools.setdefault((each.spec.driver, each.spec.pool.name), []).append(each)
    for (driver, pool), found in sorted(pools.items()):
        newest = max(each.spec.pool.generation for each in found)
        current = [each for each in found if each.spec.pool.generation == newest]
        if len(current) == current[0].spec.pool.resource_slice_count:
            for each in current:
                if _is_reached(each, node):
                    yield from (Candidate(device, driver, pool) for device in each.spec.devices if _is_whole(device))


def _is_reached(found: ResourceSlice, node: ApiNode) -> bool:
    spec = found.spec
    if spec.node_selector is not None:
        return matches_node(spec.node_selector, node.metadata.name, node.metadata.labels or {})
    return spec.all_nodes or spec.node_name == node.metadata.name


def _is_whole(device: Device) -> bool:
    return not (device.allow_multiple_allocations or device.consumes_counters or device.binding_conditions)


class _Search:
    """One search on one node. What it chooses goes from step to step; only what selectors say is kept here."""

    def __init__(
        self, candidates: Sequence[Candidate], classes: Mapping[str, DeviceClass], in_use: frozenset[DeviceId]
    ) -> None:
        self._candidates, self._classes, self._in_use = candidates, classes, in_use
        self._selected: dict[tuple[str, str], tuple[Candidate, ...]] = {}

    def solutions(self, wanted: Sequence[tuple[ResourceClaim, Request]], picks: Picks) -> Iterator[Picks]:
        """The picks for all requests, beside those made."""
        if not wanted:
            yield picks
            return
        (claim, request), *rest = wanted
        for name, alternative in _alternatives(request):
            selected = self._select(claim, name, alternative)
            for more in self._devices(claim, name, alternative, selected, picks):
                yield from self.solutions(rest, more)

    def _devices(
        self, claim: ResourceClaim, name: str, request: ExactRequest, selected: Sequence[Candidate], picks: Picks
    ) -> Iterator[Picks]:
        """The picks for one request. The order of devices within it does not matter."""
        count = len(selected) if request.allocation_mode == "All" else request.count

        def choose(start: int, left: int, picks: Picks) -> Iterator[Picks]:
            if left == 0:
                yield picks
                return
            for place in range(start, len(selected) - left + 1):
                pick = Pick(claim, name, request, selected[place])
                if self._is_allowed(pick, picks):
                    yield from choose(place + 1, left - 1, (*picks, pick))

        if selected:
            yield from choose(0, count, picks)

    def _select(self, claim: ResourceClaim, name: str, request: ExactRequest) -> tuple[Candidate, ...]:
        """The devices that class and request choose."""
        if (claim.key, name) not in self._selected:
            found = self._classes.get(request.device_class_name)
            if found is None:
                raise MissingClass(f"request {name}: device class {request.device_class_name} does not exist")
            expressions = [
                each.cel.expression for each in (*found.spec.selectors, *request.selectors) if each.cel is not None
            ]
            self._selected[claim.key, name] = tuple(
                each for each in self._candidates if _is_selected(each, expressions)
            )
        return self._selected[claim.key, name]

    def _is_allowed(self, pick: Pick, picks: Picks) -> bool:
        """Whether the device may be taken beside those picked. Admin access looks past what other claims hold."""
        same = [each for each in picks if each.candidate.id == pick.candidate.id]
        if pick.request.admin_access:
            is_free = all(each.claim is not pick.claim for each in same)
        else:
            is_free = not same and pick.candidate.id not in self._in_use
        return (
            is_free
            and tolerates(pick.request.tolerations, pick.candidate.device.taints)
            and all(_is_satisfied(each, pick, picks) for each in pick.claim.spec.devices.constraints)
        )


def _alternatives(request: Request) -> Iterator[tuple[str, ExactRequest]]:
    if request.exactly is not None:
        yield request.name, request.exactly
    yield from ((f"{request.name}/{each.name}", each) for each in request.first_available)


def _is_selected(candidate: Candidate, expressions: Iterable[str]) -> bool:
    variables = Variables(candidate.driver, candidate.device.attributes, candidate.device.capacity)
    return all(matches(each, variables) for each in expressions)


def _is_satisfied(constraint: Constraint, pick: Pick, picks: Picks) -> bool:
    """Whether a device may join those that its claim has (constraint.go). Of both attributes the first counts."""
    if not _concerns(constraint.requests, pick.name):
        return True
    attribute = constraint.match_attribute or constraint.distinct_attribute or ""
    value = _attribute(pick.candidate, attribute)
    others = [
        _attribute(each.candidate, attribute)
        for each in picks
        if each.claim is pick.claim and _concerns(constraint.requests, each.name)
    ]
    same = all(value == other for other in others) if constraint.match_attribute else value not in others
    return value is not None and same


def _concerns(requests: Sequence[str], name: str) -> bool:
    """Whether what names these requests is about one: an entry names a request, or one of those to choose from."""
    return not requests or name in requests or name.partition("/")[0] in requests


def _attribute(candidate: Candidate, name: str) -> Json | None:
    """The value with its type; a name of the driver's domain may be published without it."""
    domain, _, identifier = name.partition("/")
    attributes = candidate.device.attributes
    return attributes.get(name) or (attributes.get(identifier) if domain == candidate.driver else None)


def _allocation(
    claim: ResourceClaim, picks: Sequence[Pick], classes: Mapping[str, DeviceClass], node: ApiNode
) -> Allocation:
    """What is written into a claim. It is bound to the node, whichever nodes reach its devices."""
    results = tuple(
        Result(
            pick.name, *pick.candidate.id, admin_access=pick.request.admin_access, tolerations=pick.request.tolerations
        )
        for pick in picks
    )
    here = Requirement("metadata.name", "In", (node.metadata.name,))
    config = (*_class_configurations(picks, classes), *_claim_configurations(claim, picks))
    return Allocation(DeviceAllocation(results, config), NodeSelector((NodeSelectorTerm(match_fields=(here,)),)))


def _class_configurations(picks: Sequence[Pick], classes: Mapping[str, DeviceClass]) -> Iterator[Configuration]:
    """Those of each class once, for all requests that got devices of it."""
    for name in dict.fromkeys(each.request.device_class_name for each in picks):
        requests = dict.fromkeys(each.name for each in picks if each.request.device_class_name == name)
        for each in classes[name].spec.config:
            yield Configuration("FromClass", tuple(requests), each.opaque)


def _claim_configurations(claim: ResourceClaim, picks: Sequence[Pick]) -> Iterator[Configuration]:
    """Those for all requests, and those that name a request, or the alternative that was taken. One that names two
    requests is there twice, as kube-scheduler has it."""
    names = dict.fromkeys(pick.name for pick in picks)
    for each in claim.spec.devices.config:
        times = sum(_concerns(each.requests, name) for name in names) if each.requests else 1
        yield from (Configuration("FromClaim", each.requests, each.opaque) for _ in range(times))
