"""Which shares to take: ids that share GPUs, as time slices and MIG devices do.

Shares are spread or packed, and where that leaves a choice of GPUs, the best set of them is taken (`tablecache`):
- distributed: as many GPUs as possible: no second id of a GPU before the first of every other; then the least used
  GPUs; then those with the highest link score.
- packed: as few GPUs as possible; then the most used, each filled up before the next; then those with the highest
  link score.
- topology, numa: as many GPUs as possible; then those with the highest link score, also to what the request already
  has; then the least used.
If several are still equal, the lowest position.

NVIDIA's plugin (internal/rm/allocate.go) has the first two. It looks at the use of a GPU before the size of the
request, and never at links: with it a packed request that one GPU could serve may be split.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import accumulate, groupby

from gpuplane.base.value import Value
from gpuplane.node.core.choice.gpusetrequest import GpuSetRequest
from gpuplane.node.core.choice.linkscores import Policy

GpuSetChooser = Callable[[GpuSetRequest], Sequence[int]]
"""Chooses the best set of GPUs."""


class DeviceIdUsage(Value):
    """The ids of one GPU, or of another unit that is shared, as one request finds them."""

    position: int  # in the machine's list; of another unit, in the resource's list
    held_id_count: int  # ids that other containers hold
    required_id_count: int  # ids that the request requires: it has them already
    free_ids: Sequence[str]


def choose_shares(gpus: Sequence[DeviceIdUsage], size: int, policy: Policy, choose_set: GpuSetChooser) -> list[str]:
    """At most `size` free ids, by the policy."""
    free = [gpu for gpu in gpus if gpu.free_ids]
    required_gpus = frozenset(gpu.position for gpu in gpus if gpu.required_id_count)
    if policy == "packed":
        return _choose_on_fewest_gpus(free, required_gpus, size, choose_set)
    return _choose_on_most_gpus(free, required_gpus, size, choose_set, least_used_first=policy == "distributed")


def choose_memory_shares(gpus: Sequence[DeviceIdUsage], size: int) -> list[str]:
    """Free ids of one GPU: of the one that the request already uses, else of the one with the fewest that suffice.

    So large requests find room as long as possible. [] if no GPU has enough.
    """
    candidates = [gpu for gpu in gpus if gpu.required_id_count] or gpus
    fitting = [gpu for gpu in candidates if len(gpu.free_ids) >= size]
    return list(min(fitting, key=lambda gpu: len(gpu.free_ids)).free_ids[:size]) if fitting else []


def _choose_on_most_gpus(
    gpus: Sequence[DeviceIdUsage],
    required_gpus: frozenset[int],
    size: int,
    choose_set: GpuSetChooser,
    *,
    least_used_first: bool,
) -> list[str]:
    """The rank of an id is how many ids of its GPU the request has before it, and how used the GPU is.

    All ids of a rank are taken before the next. Only the last rank can be too large, so that there is a choice.
    """
    ranks: dict[tuple[int, int], list[tuple[DeviceIdUsage, str]]] = {}
    for gpu in gpus:
        for nth, id in enumerate(gpu.free_ids[:size], gpu.required_id_count):
            ranks.setdefault((nth, gpu.held_id_count if least_used_first else 0), []).append((gpu, id))
    found: list[tuple[DeviceIdUsage, str]] = []
    for nth, used in sorted(ranks):
        rank, missing = ranks[nth, used], size - len(found)
        if missing < len(rank) and nth == 0:
            so_far = required_gpus | {gpu.position for gpu, _ in found}
            chosen = _add_best_gpus(choose_set, (gpu for gpu, _ in rank), so_far, missing)
            rank = [(gpu, id) for gpu, id in rank if gpu.position in chosen]
        found += sorted(rank, key=lambda each: each[0].held_id_count)[:missing]
        if len(found) >= size:
            break
    return [id for _, id in found]


def _choose_on_fewest_gpus(
    gpus: Sequence[DeviceIdUsage], required_gpus: frozenset[int], size: int, choose_set: GpuSetChooser
) -> list[str]:
    """The free ids of the GPUs that the request already uses, then those of as few others as possible."""
    order = sorted(
        gpus,
        key=lambda gpu: (
            gpu.position not in required_gpus,
            -gpu.held_id_count - gpu.required_id_count,
            len(gpu.free_ids),
        ),
    )
    others = [gpu for gpu in order if gpu.position not in required_gpus]
    few = _fewest_gpus(others, size - sum(len(gpu.free_ids) for gpu in order if gpu.position in required_gpus))
    chosen = required_gpus
    for _, equal in groupby(others, key=lambda gpu: (gpu.held_id_count, len(gpu.free_ids))):
        tied = list(equal)
        chosen = _add_best_gpus(choose_set, tied, chosen, sum(gpu.position in few for gpu in tied))
    return [id for gpu in order if gpu.position in chosen for id in gpu.free_ids][:size]


def _fewest_gpus(gpus: Sequence[DeviceIdUsage], size: int) -> Collection[int]:
    """The smallest set of these GPUs with `size` free ids, and of such sets the one with the first GPUs of the order.

    All of them if they have too few ids together.
    """
    free_counts = [len(gpu.free_ids) for gpu in gpus]
    if sum(free_counts) <= size:
        return {gpu.position for gpu in gpus}
    slots = bisect_left(list(accumulate(sorted(free_counts, reverse=True))), size) + 1 if size > 0 else 0
    found = set[int]()
    for n, gpu in enumerate(gpus):
        if slots and free_counts[n] + sum(sorted(free_counts[n + 1 :], reverse=True)[: slots - 1]) >= size:
            found.add(gpu.position)
            slots, size = slots - 1, size - free_counts[n]
    return found


def _add_best_gpus(
    choose_set: GpuSetChooser, gpus: Iterable[DeviceIdUsage], required_gpus: frozenset[int], count: int
) -> frozenset[int]:
    """The GPUs that the request already uses, and the `count` best of these; of equal sets the least used."""
    costs = {gpu.position: gpu.held_id_count for gpu in gpus}
    if count in (0, len(costs)):
        return required_gpus | costs.keys() if count else required_gpus
    request = GpuSetRequest(
        frozenset(costs), required_gpus, len(required_gpus) + count, costs, considers_later_requests=False
    )
    return frozenset(choose_set(request))
