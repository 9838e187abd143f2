"""Explains which devices are preferred: their affinity, the affinity of the remaining GPUs, and the alternatives.

For `gpuplane choose`. It calls the same function that answers kubelet.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from itertools import combinations
from typing import TypeAlias

from gpuplane.core import mps
from gpuplane.core.advertising import offer
from gpuplane.core.allocate.response import allocate
from gpuplane.core.choice.affinity import AffinityMatrix, Policy, total_affinity
from gpuplane.core.choice.preference import (
    degraded_costs,
    gpu_capacities,
    machine_affinities,
    preferred_ids,
    sharing_policy,
)
from gpuplane.core.choice.search import affinity_bound
from gpuplane.core.choice.selection import SelectionRequest
from gpuplane.core.choice.settable import FUTURE_SIZES, SetTable
from gpuplane.core.choice.tablecache import build_table, cached_table
from gpuplane.model.snapshot import Allocation, Snapshot
from gpuplane.model.value import Value
from gpuplane.model.views import Refused, Resource

MAX_SETS_SHOWN = 5
"""The number of `EqualSets` that are shown."""

POLICY_TEXTS: dict[Policy, str] = {
    "distributed": "on as many GPUs as possible, the least used first",
    "packed": "on as few GPUs as possible, the most used first",
    "topology": "on as many GPUs as possible, the best connected first",
    "numa": "on as many GPUs as possible, with the most pairs on one NUMA node",
}
"""How shares are chosen by each policy, for people."""

RemainderAffinities: TypeAlias = tuple[int | None, ...]
"""The affinities of the best 8, 4 and 2 of the remaining GPUs; None where too few remain."""


def describe_policy(resource: Resource, policy: Policy, policy_source: str = "") -> str:
    """How shares of a resource are chosen, for people. `policy_source`: where the policy is configured."""
    if resource.share_mib:
        return "all on one device, the one with the least memory that suffices"
    return f"{POLICY_TEXTS[policy]}{policy_source}{'; one of each GPU' * resource.distinct_gpus}"


class EqualSets(
    Value,
    rename={"affinity": "worth", "remainder_affinities": "leaves", "count": "sets", "lowest_gpus": "gpus"},
):
    """All sets of whole GPUs with the same affinity that leave the same remainder."""

    affinity: int
    remainder_affinities: RemainderAffinities
    count: int  # number of these sets
    lowest_gpus: tuple[int, ...]  # indices of the GPUs of the set with the lowest positions


class ChoiceExplanation(
    Value,
    rename={
        "affinity": "worth",
        "affinity_bound": "bound",
        "remainder_affinities": "leaves",
        "best_sets": "kinds",
        "reason": "why",
        "refusal": "refused",
    },
):
    """The preferred ids, and why these."""

    resource: str
    policy: Policy
    ids: tuple[str, ...]
    gpus: dict[int, int]  # index of a GPU → number of its ids
    affinity: int  # of all pairs of these GPUs
    affinity_bound: int | None  # no set has a higher affinity; None unless whole GPUs were searched without a table
    remainder_affinities: RemainderAffinities  # () for shares, and if the machine is too large for a table
    best_sets: tuple[EqualSets, ...]  # of whole GPUs, the best first; () as for `remainder_affinities`
    reason: str
    note: str  # an assumption of the answer; "" for none
    refusal: str  # why a container with this request would not start; "" if it would


def explain_choice(
    snapshot: Snapshot,
    resource: str,
    available: Collection[str] | None,
    required: Collection[str],
    size: int,
    policy: Policy | None = None,
) -> ChoiceExplanation:
    """What `preferred_ids` answers, and why, as if all MPS daemons were ready. `available`: None for all healthy."""
    snapshot, policy = mps.assume_daemons_ready(snapshot), policy or sharing_policy(snapshot)
    offered = offer(snapshot).resource(resource) or Resource(name=resource, devices=())
    if available is None:
        available = [device.id for device in offered.devices if not device.reasons]
    matrix = machine_affinities(snapshot, policy)
    build_table(matrix)
    ids = preferred_ids(snapshot, resource, available, required, size, policy)
    gpus = snapshot.gpus
    positions = _gpu_positions(snapshot, offered)
    counts = {
        position: sum(positions[id] == position for id in ids) for position in sorted({positions[id] for id in ids})
    }
    is_whole_gpus = len({*positions.values()}) == len(positions) and not offered.share_mib
    request = _selection_request(snapshot, resource, available, required, size)
    table = cached_table(matrix) if is_whole_gpus and request.is_possible else None
    equal_sets = tuple(_equivalent_sets(table, request, matrix)) if table is not None else ()
    return ChoiceExplanation(
        resource=resource,
        policy=policy,
        ids=ids,
        gpus={gpus[position].index: count for position, count in counts.items()},
        affinity=total_affinity(matrix, tuple(counts)),
        affinity_bound=affinity_bound(matrix, request)
        if is_whole_gpus and request.is_possible and table is None
        else None,
        remainder_affinities=_remainder_affinities(table, request.candidates - counts.keys())
        if table is not None
        else (),
        best_sets=tuple(
            sets.but(lowest_gpus=tuple(gpus[position].index for position in sets.lowest_gpus))
            for sets in equal_sets[:MAX_SETS_SHOWN]
        ),
        reason=_describe_set_choice(request, equal_sets)
        if is_whole_gpus
        else f"shares: {_describe_shares_choice(offered, policy, len(ids) < size)}",
        note=mps.ASSUMED_READY_NOTE if offered.mps else "",
        refusal=_refusal(snapshot, offered, frozenset(available), ids, size),
    )


def _gpu_positions(snapshot: Snapshot, resource: Resource) -> dict[str, int]:
    """Device id → position of its GPU in the machine's list."""
    gpus = {gpu.uuid: n for n, gpu in enumerate(snapshot.gpus)}
    return {device.id: gpus[device.unit.gpu] for device in resource.devices}


def _refusal(snapshot: Snapshot, resource: Resource, available: Set[str], ids: Sequence[str], size: int) -> str:
    """Why a container with these ids would not start; "" if it would.

    Supposes that kubelet takes missing ids from the available ones, and that other containers hold all the rest.
    """
    rest = (device.id for device in resource.devices if device.id in available and device.id not in ids)
    chosen = (*ids, *rest)[:size]
    if len(chosen) < size:
        return f"{resource.name}: {size} requested, {len(chosen)} available: kubelet does not admit the pod"
    unavailable_ids = (
        device.id for device in resource.devices if device.id not in available and device.id not in chosen
    )
    try:
        allocate(
            snapshot.but(allocations=(Allocation(resource=resource.name, devices=tuple(unavailable_ids)),)),
            resource.name,
            chosen,
        )
    except Refused as refused:
        return str(refused)
    return ""


def _selection_request(
    snapshot: Snapshot, resource: str, available: Collection[str], required: Collection[str], size: int
) -> SelectionRequest:
    found = gpu_capacities(snapshot, resource, available, frozenset(required))
    return SelectionRequest(
        available=frozenset(gpu.position for gpu in found if gpu.free_ids),
        required=frozenset(gpu.position for gpu in found if gpu.required_count),
        size=size,
        costs=degraded_costs(snapshot),
    )


def _equivalent_sets(table: SetTable, request: SelectionRequest, matrix: AffinityMatrix) -> Iterator[EqualSets]:
    """All possible sets, the best first: the same order as in `settable`."""
    found: dict[tuple[int, RemainderAffinities], list[tuple[int, ...]]] = {}
    for chosen in combinations(sorted(request.candidates), request.size):
        if request.required <= {*chosen}:
            key = total_affinity(matrix, chosen), _remainder_affinities(table, request.candidates.difference(chosen))
            found.setdefault(key, []).append(chosen)
    for (affinity, remainder), sets in sorted(found.items(), key=lambda each: _sort_key(*each[0]), reverse=True):
        yield EqualSets(affinity=affinity, remainder_affinities=remainder, count=len(sets), lowest_gpus=min(sets))


def _sort_key(affinity: int, remainder: Iterable[int | None]) -> tuple[int, ...]:
    return affinity, *(-1 if left is None else left for left in remainder)


def _remainder_affinities(table: SetTable, gpus: Collection[int]) -> tuple[int | None, ...]:
    return tuple(table.best_affinity(size, gpus) for size in FUTURE_SIZES)


def _describe_shares_choice(resource: Resource, policy: Policy, few: bool) -> str:
    return "no device has enough" if resource.share_mib and few else describe_policy(resource, policy)


def _describe_set_choice(request: SelectionRequest, equal_sets: tuple[EqualSets, ...]) -> str:
    if len(request.candidates) <= request.size:
        return "there are no others"
    if not request.is_possible:
        return "more GPUs are required than requested"
    if not equal_sets:
        return "the best set that a search found: there are too many GPUs to compare all sets"
    best, count = equal_sets[0], sum(each.count for each in equal_sets if each.affinity == equal_sets[0].affinity)
    if count == 1:
        return "no other set is as well connected"
    if best.count == 1:
        return f"{count} sets are equally well connected, and this one leaves the best sets for later requests"
    last = "the fewest degraded GPUs" if request.costs else "the lowest indices"
    if best.count == count:
        return f"{count} sets are equally well connected and leave equally good sets; this one has {last}"
    return f"{count} sets are equally well connected, {best.count} leave the best sets; of these this one has {last}"
