"""What each request of a claim wants on a node, and which devices its selectors choose. Pure.

Source: allocator_incubating.go of 1.36 (validateDeviceRequest, isSelectable, selectorsMatch).
"""

from collections.abc import Mapping, Sequence

import msgspec

from gpuplane.kubernetes.objects import ApiNode
from gpuplane.sandbox.scheduler.capacity import InUse, find_consumed_capacity
from gpuplane.sandbox.scheduler.cel import MissingLibrary, SelectorError, Variables, matches
from gpuplane.sandbox.scheduler.claims import ExactRequest, Request, ResourceClaim
from gpuplane.sandbox.scheduler.pools import Candidate, DeviceId, Pool, includes_node
from gpuplane.sandbox.scheduler.slices import DeviceClass, Selector

MAX_CLAIM_DEVICES = 32
"""The most devices that a claim can have (resourceapi.AllocationResultsMaxSize)."""


class AllocationError(Exception):
    """Why the pod cannot be scheduled at all for now, whatever other nodes have; in kube-scheduler's words."""


class Wanted(msgspec.Struct, frozen=True):
    """A request for devices, or one of the alternatives of a request. `everything`: the devices of mode All."""

    name: str  # "main", or "main/alternative"
    request: ExactRequest
    device_class: DeviceClass
    count: int
    everything: tuple[Candidate, ...] | None = None


class Selection:
    """Which devices the selectors choose on a node, each asked once."""

    def __init__(self, node: ApiNode, pools: Sequence[Pool], in_use: InUse) -> None:
        self._node, self._pools, self._in_use = node, pools, in_use
        self._known: dict[tuple[str, str, DeviceId], bool] = {}

    def is_selected(self, claim: ResourceClaim, wanted: Wanted, candidate: Candidate) -> bool:
        """Whether class, request and node choose a device. Raises AllocationError where a selector fails."""
        key = (claim.key, wanted.name, candidate.id)
        if key not in self._known:
            name = wanted.device_class.metadata.name
            self._known[key] = (
                _selectors_match(f"class {name}", wanted.device_class.spec.selectors, candidate)
                and _selectors_match(f"claim {claim.key}", wanted.request.selectors, candidate)
                and (
                    not candidate.slice.spec.per_device_node_selection
                    or includes_node(*candidate.node_restrictions, candidate.device.all_nodes, self._node)
                )
            )
        return self._known[key]

    def list_wanted(self, claim: ResourceClaim, classes: Mapping[str, DeviceClass]) -> tuple[tuple[Wanted, ...], ...]:
        """The alternatives of each request of a claim. Raises AllocationError."""
        wanted = tuple(self._list_alternatives(claim, each, classes) for each in claim.spec.devices.requests)
        least = sum(min(each.count for each in alternatives) for alternatives in wanted)
        if least > MAX_CLAIM_DEVICES:
            raise AllocationError(
                f"claim {claim.key}: number of requested devices {least} exceeds the claim limit of {MAX_CLAIM_DEVICES}"
            )
        return wanted

    def _list_alternatives(
        self, claim: ResourceClaim, request: Request, classes: Mapping[str, DeviceClass]
    ) -> tuple[Wanted, ...]:
        if request.exactly is not None:
            return (self._make_wanted(claim, request.name, request.exactly, classes),)
        return tuple(
            self._make_wanted(claim, f"{request.name}/{each.name}", each, classes) for each in request.first_available
        )

    def _make_wanted(
        self, claim: ResourceClaim, name: str, request: ExactRequest, classes: Mapping[str, DeviceClass]
    ) -> Wanted:
        where = f"claim {claim.key}, request {name.split('/')[-1]}"
        device_class = classes.get(request.device_class_name)
        if device_class is None:
            missing = f'deviceclass.resource.k8s.io "{request.device_class_name}" not found'
            raise AllocationError(f"{where}: could not retrieve device class {request.device_class_name}: {missing}")
        wanted = Wanted(name, request, device_class, request.count)
        if request.allocation_mode != "All":
            return wanted
        everything: list[Candidate] = []
        for pool in self._pools:
            if pool.is_incomplete or pool.is_invalid:
                state = "being updated" if pool.is_incomplete else "invalid"
                raise AllocationError(f"{where}: asks for all devices, but resource pool {pool} is currently {state}")
            everything += [
                each
                for each in pool.candidates
                if self.is_selected(claim, wanted, each)
                and find_consumed_capacity(each, request.capacity, self._in_use) is not None
            ]
        return msgspec.structs.replace(wanted, count=len(everything), everything=tuple(everything))


def _selectors_match(whose: str, selectors: Sequence[Selector], candidate: Candidate) -> bool:
    device = candidate.device
    for index, selector in enumerate(selectors):
        if selector.cel is None:
            raise AllocationError(f"{whose}, selector #{index}: CEL expression empty (unsupported selector type?)")
        try:
            variables = Variables(
                candidate.slice.spec.driver, device.attributes, device.capacity, device.allow_multiple_allocations
            )
            if not matches(selector.cel.expression, variables):
                return False
        except MissingLibrary:
            raise
        except (SelectorError, ValueError) as wrong:
            raise AllocationError(f"{whose}: selector #{index}: {wrong}") from None
    return True
