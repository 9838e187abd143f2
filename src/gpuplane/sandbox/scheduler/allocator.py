"""Which devices of one node a pod's claims get: the first solution of kube-scheduler's exhaustive search. Pure.

Claims, requests and devices are tried in their order, each claim with what the claims before it took. A request that
may choose takes the first of its alternatives with which everything after it can be met. Source, rule by rule:
dynamic-resource-allocation/structured/internal/incubating/allocator_incubating.go of 1.36.

Errors are of two kinds. `AllocationError` ends the attempt for the pod, whatever other nodes have: the scheduler does
not go on when a selector fails or a pool is being updated. `InvalidPools` concerns this node alone.
"""

from collections.abc import Mapping, Sequence

import msgspec

from gpuplane.kubernetes.objects import ApiNode
from gpuplane.kubernetes.selectors import tolerates
from gpuplane.sandbox.scheduler.capacity import Consumed, InUse, find_consumed_capacity
from gpuplane.sandbox.scheduler.claims import ResourceClaim
from gpuplane.sandbox.scheduler.constraints import satisfies_constraint
from gpuplane.sandbox.scheduler.counters import has_available_counters
from gpuplane.sandbox.scheduler.pools import Candidate, Pool, gather_pools
from gpuplane.sandbox.scheduler.slices import DeviceClass, ResourceSlice
from gpuplane.sandbox.scheduler.wanted import MAX_CLAIM_DEVICES, AllocationError, Selection, Wanted


class InvalidPools(Exception):
    """Nothing fits on this node, which has a pool that is invalid."""


class _TooManyDevices(Exception):
    """A claim would have more than it can have: other devices do not help, other alternatives may."""


class Pick(msgspec.Struct, frozen=True):
    """One device for one request: which claim, which of its requests, which alternative; what it takes of a share."""

    claim: int
    request: int
    alternative: int
    wanted: Wanted
    candidate: Candidate
    consumed: Consumed = {}

    @property
    def is_shared(self) -> bool:
        """Whether others may have the device, too."""
        return self.candidate.device.allow_multiple_allocations


Picks = tuple[Pick, ...]


def allocate(
    node: ApiNode,
    claims: Sequence[ResourceClaim],
    slices: Sequence[ResourceSlice],
    classes: Mapping[str, DeviceClass],
    in_use: InUse,
) -> Picks | None:
    """The devices of all claims; None where the node has not enough. Raises AllocationError, InvalidPools."""
    pools = gather_pools(slices, node)
    selection = Selection(node, pools, in_use)
    wanted = [selection.list_wanted(claim, classes) for claim in claims]
    found = _Search(claims, wanted, {(pool.driver, pool.name): pool for pool in pools}, selection, in_use).run()
    if found is None and any(pool.is_invalid for pool in pools):
        raise InvalidPools
    return found


class _Search:
    """One search on one node. What it chooses goes from step to step; nothing of it is kept here."""

    def __init__(
        self,
        claims: Sequence[ResourceClaim],
        wanted: Sequence[Sequence[Sequence[Wanted]]],
        pools: Mapping[tuple[str, str], Pool],
        selection: Selection,
        in_use: InUse,
    ) -> None:
        self._claims, self._wanted, self._pools = claims, wanted, pools
        self._selection, self._in_use = selection, in_use
        self._candidates = [each for pool in pools.values() for each in pool.candidates]

    def run(self) -> Picks | None:
        """The picks for all claims."""
        return self._allocate_claim(0, ())

    def _allocate_claim(self, claim: int, picks: Picks) -> Picks | None:
        """The picks for a claim and those after it, beside those made."""
        if claim == len(self._claims):
            return picks
        try:
            return self._allocate_request(claim, 0, picks)
        except _TooManyDevices:
            return None

    def _allocate_request(self, claim: int, request: int, picks: Picks) -> Picks | None:
        """The picks for a request and all after it. Raises _TooManyDevices where no alternative is small enough."""
        if request == len(self._wanted[claim]):
            return self._allocate_claim(claim + 1, picks)
        too_many = 0
        alternatives = self._wanted[claim][request]
        for alternative in range(len(alternatives)):
            try:
                found = self._allocate_devices(claim, request, alternative, 0, 0, picks)
            except _TooManyDevices:
                too_many += 1
            else:
                if found is not None:
                    return found
        if too_many == len(alternatives):
            raise _TooManyDevices
        return None

    def _allocate_devices(
        self, claim: int, request: int, alternative: int, done: int, start: int, picks: Picks
    ) -> Picks | None:
        """The picks for what is left of a request, and all after it; `done` devices of it are picked.

        Devices before `start` were tried: the order within a request does not matter.
        """
        wanted = self._wanted[claim][request][alternative]
        if wanted.everything == ():
            return None
        if done >= wanted.count:
            return self._allocate_request(claim, request + 1, picks)
        if sum(each.claim == claim for each in picks) + wanted.count - done > MAX_CLAIM_DEVICES:
            raise _TooManyDevices
        if wanted.everything is not None:
            pick = self._take_if_allowed(
                Pick(claim, request, alternative, wanted, wanted.everything[done]), picks, must=True
            )
            if pick is None:
                return None
            return self._allocate_devices(claim, request, alternative, done + 1, 0, (*picks, pick))
        for index in range(start, len(self._candidates)):
            pick = self._take_if_allowed(
                Pick(claim, request, alternative, wanted, self._candidates[index]), picks, must=False
            )
            if pick is None:
                continue
            found = self._allocate_devices(claim, request, alternative, done + 1, index + 1, (*picks, pick))
            if found is not None:
                return found
        return None

    def _take_if_allowed(self, pick: Pick, picks: Picks, *, must: bool) -> Pick | None:
        """The pick, if the device may be taken beside those picked. Raises AllocationError where it must and cannot."""
        claim, wanted, candidate = self._claims[pick.claim], pick.wanted, pick.candidate
        if not self._is_free(pick, picks):
            return None
        if not must and not self._selection.is_selected(claim, wanted, candidate):
            return None
        consumed = find_consumed_capacity(candidate, wanted.request.capacity, self._with_picked_shares(picks))
        if consumed is None:
            return None
        pool = self._pools[candidate.slice.spec.driver, candidate.slice.spec.pool.name]
        if not has_available_counters(pool, candidate, self._in_use, [each.candidate for each in picks]):
            return None
        if not tolerates(wanted.request.tolerations, candidate.device.taints):
            return None
        chosen = [(each.wanted.name, each.candidate) for each in picks if each.claim == pick.claim]
        for constraint in claim.spec.devices.constraints:
            if satisfies_constraint(constraint, wanted.name, candidate, chosen):
                continue
            if must:
                raise AllocationError(
                    f"claim {claim.key}, request {wanted.name.split('/')[-1]}: cannot add device "
                    f"{'/'.join(candidate.id)} because a claim constraint would not be satisfied"
                )
            return None
        return msgspec.structs.replace(pick, consumed=consumed) if pick.is_shared else pick

    def _is_free(self, pick: Pick, picks: Picks) -> bool:
        """Admin access looks past what other claims hold, but gives no device twice to one claim."""
        same = [] if pick.is_shared else [each for each in picks if each.candidate.id == pick.candidate.id]
        if pick.wanted.request.admin_access:
            return all(each.claim != pick.claim for each in same)
        return not same and pick.candidate.id not in self._in_use.devices

    def _with_picked_shares(self, picks: Picks) -> InUse:
        """What is in use with the shares that are picked."""
        in_use = self._in_use
        for each in picks:
            if each.is_shared:
                in_use = in_use.with_share(
                    each.candidate.id, {name: taken.value for name, taken in each.consumed.items()}
                )
        return in_use
