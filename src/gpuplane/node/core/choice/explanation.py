"""Explains which devices are preferred: their link score, the link score of the remaining GPUs, and the alternatives.

For `gpuplane choose`. It calls the same function that answers kubelet.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from itertools import combinations
from typing import TypeAlias

from gpuplane.base.value import Value
from gpuplane.node.core import mps
from gpuplane.node.core.advertising import offer
from gpuplane.node.core.allocate.response import allocate
from gpuplane.node.core.choice.gpusetrequest import GpuSetRequest
from gpuplane.node.core.choice.gpusets import LATER_REQUEST_SIZES, GpuSetTable
from gpuplane.node.core.choice.linkscores import LinkScoreMatrix, Policy, total_link_score
from gpuplane.node.core.choice.preference import (
    configured_policy,
    degraded_cost_by_gpu_position,
    list_device_id_usage,
    machine_link_score_matrix,
    preferred_ids,
)
from gpuplane.node.core.choice.search import link_score_bound
from gpuplane.node.core.choice.tablecache import build_table, cached_table
from gpuplane.node.model.snapshot import Allocation, Snapshot
from gpuplane.node.model.views import RequestRefused, Resource

MAX_SETS_SHOWN = 5
"""The number of `EqualSets` that are shown."""

POLICY_TEXTS: dict[Policy, str] = {
    "distributed": "on as many GPUs as possible, the least used first",
    "packed": "on as few GPUs as possible, the most used first",
    "topology": "on as many GPUs as possible, the best connected first",
    "numa": "on as many GPUs as possible; prefers GPU pairs on the same NUMA node",
}
"""How shares are chosen by each policy, for people."""

BestRemainingLinkScoresBySize: TypeAlias = tuple[int | None, ...]
"""The link scores of the best 8, 4 and 2 of the remaining GPUs; None where too few remain."""


def describe_policy(resource: Resource, policy: Policy, policy_source: str = "") -> str:
    """How shares of a resource are chosen, for people. `policy_source`: where the policy is configured."""
    if resource.share_mib:
        return "all on one device: the smallest one that has enough memory"
    return f"{POLICY_TEXTS[policy]}{policy_source}{'; only one share of each GPU' * resource.requires_distinct_gpus}"


class EqualSets(Value):
    """All sets of whole GPUs with the same link score that leave the same remainder."""

    link_score: int
    remaining_link_scores: BestRemainingLinkScoresBySize
    set_count: int  # number of these sets
    example_gpu_indices: tuple[int, ...]  # indices of the GPUs of the set with the lowest positions


class ChoiceExplanation(Value):
    """The preferred ids, and why these."""

    resource: str
    policy: Policy
    ids: tuple[str, ...]
    gpus: dict[int, int]  # index of a GPU → number of its ids
    link_score: int  # of all pairs of these GPUs
    link_score_bound: int | None  # no set has a higher link score; None unless whole GPUs were searched without a table
    remaining_link_scores: BestRemainingLinkScoresBySize  # () for shares, and if the machine is too large for a table
    best_sets: tuple[EqualSets, ...]  # of whole GPUs, the best first; () as for `remaining_link_scores`
    choice_reason: str
    assumption: str  # an assumption of the answer; "" for none
    refusal_text: str  # why a container with this request would not start; "" if it would


def explain_choice(
    snapshot: Snapshot,
    resource: str,
    available: Collection[str] | None,
    required: Collection[str],
    size: int,
    policy: Policy | None = None,
) -> ChoiceExplanation:
    """What `preferred_ids` answers, and why, as if all MPS daemons were ready. `available`: None for all healthy."""
    snapshot, policy = mps.assume_daemons_ready(snapshot), policy or configured_policy(snapshot)
    offered = offer(snapshot).resource(resource) or Resource(name=resource, devices=())
    if available is None:
        available = [device.id for device in offered.devices if not device.reasons]
    matrix = machine_link_score_matrix(snapshot, policy)
    build_table(matrix)
    ids = preferred_ids(snapshot, resource, available, required, size, policy)
    gpus = snapshot.gpus
    positions = _gpu_position_by_device_id(snapshot, offered)
    counts = {
        position: sum(positions[id] == position for id in ids) for position in sorted({positions[id] for id in ids})
    }
    is_whole_gpus = len({*positions.values()}) == len(positions) and not offered.share_mib
    request = _gpu_set_request(snapshot, resource, available, required, size)
    table = cached_table(matrix) if is_whole_gpus and request.can_be_satisfied else None
    equal_sets = tuple(_list_equally_good_sets(table, request, matrix)) if table is not None else ()
    return ChoiceExplanation(
        resource=resource,
        policy=policy,
        ids=ids,
        gpus={gpus[position].index: count for position, count in counts.items()},
        link_score=total_link_score(matrix, tuple(counts)),
        link_score_bound=link_score_bound(matrix, request)
        if is_whole_gpus and request.can_be_satisfied and table is None
        else None,
        remaining_link_scores=_link_scores_for_later_requests(table, request.selectable_gpus - counts.keys())
        if table is not None
        else (),
        best_sets=tuple(
            sets.but(example_gpu_indices=tuple(gpus[position].index for position in sets.example_gpu_indices))
            for sets in equal_sets[:MAX_SETS_SHOWN]
        ),
        choice_reason=_describe_set_choice(request, equal_sets)
        if is_whole_gpus
        else f"shares: {_describe_shares_choice(offered, policy, len(ids) < size)}",
        assumption=mps.ASSUMED_READY_NOTE if offered.uses_mps else "",
        refusal_text=_refusal_text(snapshot, offered, frozenset(available), ids, size),
    )


def _gpu_position_by_device_id(snapshot: Snapshot, resource: Resource) -> dict[str, int]:
    """Device id → position of its GPU in the machine's list."""
    gpus = {gpu.uuid: n for n, gpu in enumerate(snapshot.gpus)}
    return {device.id: gpus[device.unit.gpu] for device in resource.devices}


def _refusal_text(snapshot: Snapshot, resource: Resource, available: Set[str], ids: Sequence[str], size: int) -> str:
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
    except RequestRefused as refused:
        return str(refused)
    return ""


def _gpu_set_request(
    snapshot: Snapshot, resource: str, available: Collection[str], required: Collection[str], size: int
) -> GpuSetRequest:
    found = list_device_id_usage(snapshot, resource, available, frozenset(required))
    return GpuSetRequest(
        available_gpus=frozenset(gpu.position for gpu in found if gpu.free_ids),
        required_gpus=frozenset(gpu.position for gpu in found if gpu.required_id_count),
        size=size,
        cost_by_gpu=degraded_cost_by_gpu_position(snapshot),
    )


def _list_equally_good_sets(table: GpuSetTable, request: GpuSetRequest, matrix: LinkScoreMatrix) -> Iterator[EqualSets]:
    """All possible sets, the best first: the same order as in `gpusets`."""
    found: dict[tuple[int, BestRemainingLinkScoresBySize], list[tuple[int, ...]]] = {}
    for chosen in combinations(sorted(request.selectable_gpus), request.size):
        if request.required_gpus <= {*chosen}:
            key = (
                total_link_score(matrix, chosen),
                _link_scores_for_later_requests(table, request.selectable_gpus.difference(chosen)),
            )
            found.setdefault(key, []).append(chosen)
    for (link_score, remainder), sets in sorted(found.items(), key=lambda each: _set_rank(*each[0]), reverse=True):
        yield EqualSets(
            link_score=link_score,
            remaining_link_scores=remainder,
            set_count=len(sets),
            example_gpu_indices=min(sets),
        )


def _set_rank(link_score: int, later_link_scores: Iterable[int | None]) -> tuple[int, ...]:
    return link_score, *(-1 if left is None else left for left in later_link_scores)


def _link_scores_for_later_requests(table: GpuSetTable, gpus: Collection[int]) -> tuple[int | None, ...]:
    return tuple(table.best_link_score(size, gpus) for size in LATER_REQUEST_SIZES)


def _describe_shares_choice(resource: Resource, policy: Policy, has_too_few: bool) -> str:
    return (
        "no single device has enough free memory"
        if resource.share_mib and has_too_few
        else describe_policy(resource, policy)
    )


def _describe_set_choice(request: GpuSetRequest, equal_sets: tuple[EqualSets, ...]) -> str:
    if len(request.selectable_gpus) <= request.size:
        return "no other GPUs are available"
    if not request.can_be_satisfied:
        return "there are more required GPUs than requested GPUs"
    if not equal_sets:
        return "the best set found by a partial search: there are too many GPUs to compare all sets"
    best = equal_sets[0]
    count = sum(each.set_count for each in equal_sets if each.link_score == best.link_score)
    if count == 1:
        return "no other set is as well connected"
    if best.set_count == 1:
        return f"{count} sets are equally well connected, and this one leaves the best sets for later requests"
    last = "the fewest degraded GPUs" if request.cost_by_gpu else "the lowest indices"
    if best.set_count == count:
        return (
            f"{count} sets are equally well connected and leave equally good sets for later requests; this "
            f"set has {last}"
        )
    return (
        f"{count} sets are equally well connected; {best.set_count} of them leave the best sets for later "
        f"requests; of those {best.set_count}, this set has {last}"
    )
