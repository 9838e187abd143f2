"""Where a request could go: nodes, and GPUs of them. What policies choose from.

Of the GPUs of a node that would be left the same, one is a candidate. Of several GPUs for one container there is one
set a node: those of one link group where that can be (the smallest group that suffices), and of these the fullest or
the emptiest, as the policy wants it. One GPU is taken where it takes least from a link group.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gpuplane.cluster.engine.arrays import Booleans, Integers
from gpuplane.cluster.engine.cluster import Cluster
from gpuplane.cluster.engine.dimensions import GPU_DIMENSIONS, GPU_SHARES, largest_milli
from gpuplane.cluster.engine.within import place_within
from gpuplane.cluster.model.requests import MILLI_PER_GPU, GpuRequest, Placement, Request

MAX_INT = np.iinfo(np.int64).max


class Candidates(NamedTuple):
    """Places where a request fits, c of them, those of one row one after the other.

    `gpus`: c × GPUs, in the order of their places. `before`, `after`: the room of these (`Cluster.room`) now and then;
    c × 0 where no GPU's room changes. `cpu_after`: of the node. `is_linked`: whether the GPUs reach each other as the
    request wants it. `instances_left`: for a MIG device, what its GPU has of this and of larger profiles.
    """

    rows: Integers
    gpus: Integers
    before: Integers
    after: Integers
    cpu_after: Integers
    is_linked: Booleans | None = None
    instances_left: Integers | None = None

    def where(self, kept: Booleans | Integers) -> "Candidates":
        """Those of them that are kept, or those at these places."""
        return Candidates(*(None if each is None else each[kept] for each in self))  # type: ignore[arg-type]


def candidates(cluster: Cluster, request: Request, rows: Integers, prefer_free: bool = False) -> Candidates:
    """Where among these rows a request could go."""
    if len(request.gpus) > 1:
        return _of_several(cluster, request, cluster.rows_with_enough(rows, request))
    rows = rows[cluster.has_room(rows, request)]
    if not request.gpus:
        nothing = np.zeros((len(rows), 0), np.int64)
        return Candidates(rows, nothing, nothing, nothing, cluster.cpu_free[rows] - request.cpu_milli)
    [wanted] = request.gpus
    fits = cluster.fits(rows, wanted)
    enough = fits.any(axis=1) if wanted.count == 1 else fits.sum(axis=1) >= wanted.count
    rows, fits = rows[enough], fits[enough]
    cpu_after = cluster.cpu_free[rows] - request.cpu_milli
    if wanted.profile:
        return _of_profile(cluster, wanted, rows, fits, cpu_after)
    before = cluster.room[rows]
    after = _room_after(cluster, wanted, rows, before)
    if wanted.count == 1:
        return _of_one(cluster, rows, fits, before, after, cpu_after)
    preference = before if prefer_free else -before
    gpus, is_linked = _pick(cluster, wanted, rows, fits, preference)
    found = Candidates(rows, gpus, _take(before, gpus), _take(after, gpus), cpu_after, is_linked)
    if wanted.linked == "required" and is_linked is not None:
        found = found.where(is_linked)
    return found


def _of_several(cluster: Cluster, request: Request, rows: Integers) -> Candidates:
    """For the GPUs of several containers: one place on each node, as `place_within` finds it. A GPU that two of them
    have is counted where it comes first; where it comes again it is as one that is not usable, before and after."""
    if not len(rows):
        return _placed(cluster, request, [])
    first, kind = _kinds_of_nodes(cluster, request, rows)
    found = [(number, int(row), place_within(cluster, row, request)) for number, row in enumerate(rows[first])]
    places = {number: (row, place) for number, row, place in found if place is not None}
    fits = np.isin(kind, [*places])
    rows, kind = rows[fits], kind[fits]
    of_kinds = _placed(cluster, request, [*places.values()])
    cpu_after = cluster.cpu_free[rows] - request.cpu_milli
    return of_kinds.where(np.searchsorted([*places], kind))._replace(rows=rows, cpu_after=cpu_after)


def _kinds_of_nodes(cluster: Cluster, request: Request, rows: Integers) -> tuple[Integers, Integers]:
    """(the place among these rows of the first of each kind, the kind of each row). GPUs of one kind of nodes are alike
    in all that the request looks at: one of them is searched."""
    alike: list[Integers | Booleans] = [each[rows] for each in (*cluster.gpu_free, cluster.room, cluster.link_group)]
    for wanted in request.kinds_of_gpus:
        amounts = [amount for _, amount in cluster.gpu_needs(cluster.needed_of_each_gpu(rows, wanted))]
        alike += [cluster.fits(rows, wanted), *(each for each in amounts if not isinstance(each, int))]
    _, first, kind = np.unique(np.concatenate(alike, axis=1), axis=0, return_index=True, return_inverse=True)
    return first, kind.reshape(-1)


def _placed(cluster: Cluster, request: Request, found: Sequence[tuple[int, Placement]]) -> Candidates:
    """The candidates that places on these rows are."""
    shares = [place.all_shares for _, place in found]
    rows = np.array([row for row, _ in found], np.int64)
    gpus = np.array([[share.gpu for share in each] for each in shares], np.int64)
    gpus = gpus.reshape(len(found), sum(each.count for each in request.gpus))
    before, after = np.full_like(gpus, -1), np.full_like(gpus, -1)
    for index, (row, each) in enumerate(zip(rows.tolist(), shares, strict=True)):
        for gpu in dict.fromkeys(share.gpu for share in each):
            column = next(column for column, share in enumerate(each) if share.gpu == gpu)
            before[index, column] = cluster.room[row, gpu]
            after[index, column] = cluster.room_after(row, gpu, [share for share in each if share.gpu == gpu])
    is_linked = None
    if cluster.has_links and any(each.wants_links for each in request.gpus):
        is_linked = np.array([_is_linked(cluster, row, request, place) for row, place in found], np.bool_)
    left = None
    if request.asks_for_mig:
        left = np.array([_instances_left(cluster, row, place) for row, place in found], np.int64)
    return Candidates(rows, gpus, before, after, cluster.cpu_free[rows] - request.cpu_milli, is_linked, left)


def _is_linked(cluster: Cluster, row: int, request: Request, place: Placement) -> bool:
    """Whether the GPUs of each part that wants them so are of one link group."""
    groups = [
        {int(cluster.link_group[row, share.gpu]) for share in part}
        for wanted, part in zip(request.gpus, place.shares, strict=True)
        if wanted.wants_links
    ]
    return all(len(each) == 1 and 0 not in each for each in groups)


def _instances_left(cluster: Cluster, row: int, place: Placement) -> int:
    """What the GPUs of all MIG devices have of these and of larger profiles."""
    shares = [share for share in place.all_shares if share.profile]
    return sum(
        int(cluster.gpu_free[dimension][row, share.gpu])
        for share in shares
        for dimension in cluster.profiles_from(share.profile)
    )


def _devices_left(cluster: Cluster, rows: Integers, profile: str) -> Integers:
    """What each GPU has of this MIG profile and of larger ones."""
    return sum(
        (cluster.gpu_free[each][rows] for each in cluster.profiles_from(profile)), np.zeros_like(cluster.room[rows])
    )


def _room_after(cluster: Cluster, wanted: GpuRequest, rows: Integers, before: Integers) -> Integers:
    if wanted.asks_milli_alone and not cluster.is_limited[GPU_SHARES]:
        return before - wanted.milli
    taken = cluster.needed_of_each_gpu(rows, wanted)

    def amounts(dimension: int) -> tuple[Integers, Integers]:
        free = cluster.gpu_free[dimension][rows] - GPU_DIMENSIONS[dimension].takes(taken)
        return free, cluster.gpu_has[dimension][rows]

    after: Integers = largest_milli(amounts, np.minimum)
    return after


def _of_one(
    cluster: Cluster, rows: Integers, fits: Booleans, before: Integers, after: Integers, cpu_after: Integers
) -> Candidates:
    """Each GPU that fits, but one of those that would be left alike."""
    key = np.where(fits, before * (MILLI_PER_GPU + 1) + after, -1 - np.arange(fits.shape[1]))
    gpus = None
    if cluster.has_links:
        gpus = np.argsort(_harm(cluster, rows), axis=1, kind="stable")
        key, fits = _take(key, gpus), np.take_along_axis(fits, gpus, axis=1)
    distinct = fits.copy()
    for column in range(1, fits.shape[1]):
        distinct[:, column:] &= key[:, column:] != key[:, :-column]
    index, gpu = np.nonzero(distinct)
    if gpus is not None:
        gpu = gpus[index, gpu]
    changed = before[index, gpu][:, None], after[index, gpu][:, None]
    return Candidates(rows[index], gpu[:, None], *changed, cpu_after[index])


def _harm(cluster: Cluster, rows: Integers) -> Integers:
    """What taking each GPU costs its link group: the fewer are wholly free there, the less. 0: it is in none, or is in
    use already."""
    group, is_free = cluster.link_group[rows], cluster.room[rows] == MILLI_PER_GPU
    mates = ((group[:, :, None] == group[:, None, :]) & is_free[:, None, :]).sum(axis=2)
    return np.where(is_free & (group > 0), mates, 0)


def _pick(
    cluster: Cluster, wanted: GpuRequest, rows: Integers, fits: Booleans, preference: Integers
) -> tuple[Integers, Booleans | None]:
    """(the GPUs of each row, whether they are of one link group; None where that does not matter)."""
    order = np.where(fits, -preference, 2 * MILLI_PER_GPU)
    is_linked = None
    if wanted.linked == "required" or (cluster.has_links and wanted.wants_links):
        group = cluster.link_group[rows]
        mates = ((group[:, :, None] == group[:, None, :]) & fits[:, None, :]).sum(axis=2)
        suffices = fits & (group > 0) & (mates >= wanted.count)
        is_linked = suffices.any(axis=1)
        for size in (mates, group):  # the smallest group; of equal ones the first
            size = np.where(suffices, size, MAX_INT)
            suffices &= size == size.min(axis=1, keepdims=True, initial=MAX_INT)
        order = np.where(is_linked[:, None] & ~suffices, 2 * MILLI_PER_GPU, order)
    gpus = np.argsort(order, axis=1, kind="stable")[:, : wanted.count]
    return np.sort(gpus, axis=1), is_linked


def _of_profile(
    cluster: Cluster, wanted: GpuRequest, rows: Integers, fits: Booleans, cpu_after: Integers
) -> Candidates:
    """The GPUs that have least left of this profile and of larger ones."""
    left = _devices_left(cluster, rows, wanted.profile)
    gpus = np.argsort(np.where(fits, left, MAX_INT), axis=1, kind="stable")[:, : wanted.count]
    gpus = np.sort(gpus, axis=1)
    nothing = np.zeros((len(rows), 0), np.int64)
    return Candidates(rows, gpus, nothing, nothing, cpu_after, None, _take(left, gpus).sum(axis=1))


def _take(values: Integers, columns: Integers) -> Integers:
    """`values[i, columns[i]]` for each row i."""
    return np.take_along_axis(values, columns, axis=1)
