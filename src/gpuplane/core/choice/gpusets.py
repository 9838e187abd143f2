"""The best set of GPUs, exactly: which of the candidates to take, so that they are well connected, and the rest too.

What is best, in this order:
1. the affinity of the set: the sum over its pairs (`affinity`);
2. the affinity of what remains for later requests: of the best 8 remaining GPUs, then of the best 4, then of the best
   2; having too few for such a set is worse than having any;
3. the lowest costs (`GpuSetRequest`);
4. the lowest positions.

GPUs with the same affinity to every other GPU are equivalent, and form a group. Of a set only the number of GPUs from
each group matters; of a group those with the lowest costs are taken, then the lowest positions. So a set is a vector of
counts, and most machines have few different vectors.

The table depends on the affinities alone: for each size all vectors, the highest affinity first. Beside it are bitmaps,
one bit a row: which rows have at most n GPUs of a group. A request combines a few of these big integers, and the lowest
remaining bit is the best row.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, repeat
from operator import add, neg
from typing import Literal, TypeAlias

from gpuplane.core.choice.affinity import AffinityMatrix
from gpuplane.core.choice.gpusetrequest import GpuSetRequest

MAX_GPUS = 16
"""The largest machine that gets a table: 65,536 vectors if no two GPUs are equivalent."""

LATER_REQUEST_SIZES = (8, 4, 2)
"""The sizes of the sets that are kept for later requests."""

AT_MOST_TRANSLATION_TABLES = [bytes(b"01"[count <= limit] for count in range(256)) for limit in range(MAX_GPUS)]
"""AT_MOST_TABLES[limit] translates each count into b"1" if it is at most the limit, else into b"0"."""

GpuCountsByGroup: TypeAlias = list[tuple[int, int]]
"""(group, number of its GPUs), of each group with at least one."""


class GpuSetTable:
    """The table of one machine. Building it takes at most some 40 ms, a look-up takes a fraction of a millisecond."""

    def __init__(self, matrix: AffinityMatrix) -> None:
        assert len(matrix) <= MAX_GPUS
        self._groups = group_equivalent_gpus(matrix)
        self._group_of = {gpu: group for group, gpus in enumerate(self._groups) for gpu in gpus}
        self._rows_of_size = _vectors_by_size(matrix, self._groups)

    def best_set(self, request: GpuSetRequest) -> tuple[int, ...]:
        """The best set, ascending; () if there is none."""
        if not request.can_be_satisfied:
            return ()
        available, required = self._count_by_group(request.selectable_gpus), self._count_by_group(request.required_gpus)
        scores = self._score_gain_by_group_and_count(request)

        def score(vector: GpuCountsByGroup) -> int:
            return sum(scores[group][count] for group, count in vector)

        found = sorted(self._vectors_of_highest_affinity(request.size, available, required), key=score, reverse=True)
        remaining = (
            len(request.selectable_gpus) - request.size if request.considers_later_requests and len(found) > 1 else 0
        )
        sizes = [size for size in LATER_REQUEST_SIZES if size <= remaining]
        best = score(self._vector_best_for_later_requests(sizes, available, found))
        return tuple(gpu for gpu in range(len(self._group_of)) if best & _position_score_bit(gpu))

    def best_affinity(self, size: int, gpus: Iterable[int]) -> int | None:
        """The affinity of the best set of this size among these GPUs; None if they are too few."""
        if size >= len(self._rows_of_size):
            return None
        rows = self._rows_of_size[size]
        fitting = rows.bitmap_of_possible_rows(self._count_by_group(gpus))
        return rows.affinities[_first_row_of_bitmap(fitting)] if fitting else None

    def _vectors_of_highest_affinity(
        self, size: int, available: list[int], required: list[int]
    ) -> list[GpuCountsByGroup]:
        """Of the vectors that fit, those with the highest affinity."""
        rows, found = self._rows_of_size[size], list[GpuCountsByGroup]()
        fitting = rows.bitmap_of_possible_rows(available, required)
        highest = rows.affinities[_first_row_of_bitmap(fitting)]
        while fitting and rows.affinities[row := _first_row_of_bitmap(fitting)] == highest:
            found.append(rows.vector_of(row))
            fitting &= fitting - 1
        return found

    def _vector_best_for_later_requests(
        self, later_sizes: Sequence[int], available: list[int], vectors: list[GpuCountsByGroup]
    ) -> GpuCountsByGroup:
        """The first of the vectors that leave the best sets of these sizes. Enough GPUs remain for each size."""
        future = [
            (self._rows_of_size[size], self._rows_of_size[size].bitmap_of_possible_rows(available))
            for size in later_sizes
        ]
        best_rows = [
            (rows, fitting & rows.bitmap_with_affinity_at_least(rows.affinities[_first_row_of_bitmap(fitting)]))
            for rows, fitting in future
        ]
        for vector in vectors:  # one that leaves the best set of every size; mostly one of the first does
            if all(rows.bitmap_possible_after_taking(best, available, vector) for rows, best in best_rows):
                return vector
        for rows, fitting in future:
            vectors = rows.vectors_best_for_later_request(fitting, available, vectors)
        return vectors[0]

    def _count_by_group(self, gpus: Iterable[int]) -> list[int]:
        """The number of GPUs of each group."""
        counts = [0] * len(self._groups)
        for gpu in gpus:
            counts[self._group_of[gpu]] += 1
        return counts

    def _score_gain_by_group_and_count(self, request: GpuSetRequest) -> list[list[int]]:
        """scores[group][n]: what n GPUs of a group add to a set's score: their position bits, less their costs.

        Of each group the required GPUs are taken first, then those with the lowest costs, then the lowest positions. Of
        sets of one size the one with the highest score has the lowest costs and then the lowest positions.
        """
        costs, candidates, scores = request.cost_by_gpu, request.selectable_gpus, []
        for gpus in self._groups:
            order = [gpu for gpu in gpus if gpu in candidates]
            if request.required_gpus or costs:
                order.sort(key=lambda gpu: (gpu not in request.required_gpus, costs.get(gpu, 0)))
            scores.append([0, *accumulate(_position_score_bit(gpu) - (costs.get(gpu, 0) << MAX_GPUS) for gpu in order)])
        return scores


def _position_score_bit(gpu: int) -> int:
    """The lower a position, the higher its bit; one unit of costs is more than all of these bits."""
    return 1 << MAX_GPUS - 1 - gpu


class _VectorsOfSize:
    """All vectors of one size, the highest affinity first, and bitmaps over them: bit n stands for row n."""

    def __init__(self, vectors: Iterable[int], affinities: list[int], groups: Sequence[Sequence[int]]) -> None:
        self.affinities, self._all_rows, self._row_bytes = affinities, (1 << len(affinities)) - 1, len(groups)
        little: repeat[Literal["little"]] = repeat("little")
        self._count_bytes = b"".join(map(int.to_bytes, vectors, repeat(len(groups)), little))
        self._at_most_bitmaps = [
            [self._bitmap_with_at_most(group, limit) for limit in range(len(gpus))] + [self._all_rows]
            for group, gpus in enumerate(groups)
        ]

    def _bitmap_with_at_most(self, group: int, limit: int) -> int:
        """The rows with at most this many GPUs of a group."""
        last = len(self._count_bytes) - self._row_bytes + group
        return int(self._count_bytes[last :: -self._row_bytes].translate(AT_MOST_TRANSLATION_TABLES[limit]), 2)

    def vector_of(self, row: int) -> GpuCountsByGroup:
        """The vector of a row."""
        counts = self._count_bytes[row * self._row_bytes : (row + 1) * self._row_bytes]
        return [(group, count) for group, count in enumerate(counts) if count]

    def bitmap_with_affinity_at_least(self, minimum: int) -> int:
        """The rows with at least this affinity."""
        return (1 << bisect_right(self.affinities, -minimum, key=neg)) - 1

    def bitmap_of_possible_rows(self, available: Iterable[int], required: Iterable[int] = ()) -> int:
        """The rows with at most `available` and at least `required` GPUs of each group."""
        fitting = self._all_rows
        for at_most, count in zip(self._at_most_bitmaps, available, strict=True):
            fitting &= at_most[count]
        for at_most, count in zip(self._at_most_bitmaps, required, strict=False):
            if count:
                fitting &= ~at_most[count - 1]
        return fitting

    def bitmap_possible_after_taking(
        self, possible_rows: int, available: Sequence[int], taken: GpuCountsByGroup
    ) -> int:
        """Those of the fitting rows that still fit after these GPUs are taken."""
        for group, count in taken:
            possible_rows &= self._at_most_bitmaps[group][available[group] - count]
        return possible_rows

    def vectors_best_for_later_request(
        self, possible_rows: int, available: Sequence[int], vectors: Iterable[GpuCountsByGroup]
    ) -> list[GpuCountsByGroup]:
        """Those of the vectors after which the fitting row with the highest affinity remains possible."""
        found, highest = list[GpuCountsByGroup](), -1
        for vector in vectors:
            if remaining := self.bitmap_possible_after_taking(possible_rows, available, vector):
                if (affinity := self.affinities[_first_row_of_bitmap(remaining)]) > highest:
                    found, highest, possible_rows = (
                        [],
                        affinity,
                        possible_rows & self.bitmap_with_affinity_at_least(affinity),
                    )
                found.append(vector)
        return found


def _first_row_of_bitmap(bitmap: int) -> int:
    """The first row of a bitmap."""
    return (bitmap & -bitmap).bit_length() - 1


VectorValuesBySize: TypeAlias = list[list[int]]
"""values[size]: one value for each vector of that size."""


def _vectors_by_size(matrix: AffinityMatrix, groups: Sequence[Sequence[int]]) -> list[_VectorsOfSize]:
    """The rows of each size. Builds all vectors group by group, with one byte for each group, and their affinities."""
    vectors, affinities = [[0]], [[0]]
    for group, gpus in enumerate(groups):
        gains = [[0]]  # the affinity of one GPU of this group to each vector of the groups before
        for other in groups[:group]:
            gains = _extend_by_group(gains, len(other), repeat(repeat(matrix[gpus[0]][other[0]])))
        affinities = _extend_by_group(affinities, len(gpus), gains, matrix[gpus[0]][gpus[-1]])
        vectors = _extend_by_group(vectors, len(gpus), repeat(repeat(1 << 8 * group)))
    return [_VectorsOfSize(*_sort_by_affinity(*each), groups) for each in zip(vectors, affinities, strict=True)]


def _extend_by_group(
    values_by_size: VectorValuesBySize, max_count: int, gains: Iterable[Iterable[int]], pair_gain: int = 0
) -> VectorValuesBySize:
    """The values with up to `limit` GPUs of one more group: each adds its gain, and `pair_gain` for each before it."""
    found, layer = VectorValuesBySize([] for _ in range(len(values_by_size) + max_count)), values_by_size
    for n in range(max_count + 1):
        if n:
            before = (n - 1) * pair_gain
            added = (map(before.__add__, each) if before else each for each in gains)
            layer = [list(map(add, values, gain)) for values, gain in zip(layer, added, strict=False)]
        for size, values in enumerate(layer, n):
            found[size] += values
    return found


def _sort_by_affinity(vectors: list[int], affinities: list[int]) -> tuple[list[int], list[int]]:
    """Both lists in descending order of affinity."""
    order = sorted(range(len(vectors)), key=affinities.__getitem__, reverse=True)
    return [vectors[n] for n in order], [affinities[n] for n in order]


def group_equivalent_gpus(matrix: AffinityMatrix) -> tuple[tuple[int, ...], ...]:
    """The GPUs by group: those of a group have the same affinity to each other GPU, and to one another."""
    found: list[list[int]] = []
    for gpu in range(len(matrix)):
        same = next((group for group in found if all(_are_equivalent(matrix, gpu, other) for other in group)), None)
        if same is None:
            found.append([gpu])
        else:
            same.append(gpu)
    return tuple(map(tuple, found))


def _are_equivalent(matrix: AffinityMatrix, one: int, other: int) -> bool:
    others = (each for each in range(len(matrix)) if each not in (one, other))
    return all(matrix[one][each] == matrix[other][each] for each in others)
