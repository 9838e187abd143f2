"""The best set of GPUs, exactly: which of the candidates to take, so that they are well connected, and the rest too.

What is best, in this order:
1. the affinity of the set: the sum over its pairs (`affinity`);
2. the affinity of what remains for later requests: of the best 8 remaining GPUs, then of the best 4, then of the best
   2; having too few for such a set is worse than having any;
3. the lowest costs (`SelectionRequest`);
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
from gpuplane.core.choice.selection import SelectionRequest

MAX_GPUS = 16
"""The largest machine that gets a table: 65,536 vectors if no two GPUs are equivalent."""

FUTURE_SIZES = (8, 4, 2)
"""The sizes of the sets that are kept for later requests."""

AT_MOST_TABLES = [bytes(b"01"[count <= limit] for count in range(256)) for limit in range(MAX_GPUS)]
"""AT_MOST_TABLES[limit] translates each count into b"1" if it is at most the limit, else into b"0"."""

CountVector: TypeAlias = list[tuple[int, int]]
"""(group, number of its GPUs), of each group with at least one."""


class SetTable:
    """The table of one machine. Building it takes at most some 40 ms, a look-up takes a fraction of a millisecond."""

    def __init__(self, matrix: AffinityMatrix) -> None:
        assert len(matrix) <= MAX_GPUS
        self._groups = group_equivalent_gpus(matrix)
        self._group_of = {gpu: group for group, gpus in enumerate(self._groups) for gpu in gpus}
        self._rows_of_size = _rows_by_size(matrix, self._groups)

    def best_set(self, request: SelectionRequest) -> tuple[int, ...]:
        """The best set, ascending; () if there is none."""
        if not request.is_possible:
            return ()
        available, required = self._count_by_group(request.candidates), self._count_by_group(request.required)
        scores = self._scores_by_group(request)

        def score(vector: CountVector) -> int:
            return sum(scores[group][count] for group, count in vector)

        found = sorted(self._top_vectors(request.size, available, required), key=score, reverse=True)
        remaining = len(request.candidates) - request.size if request.considers_remainder and len(found) > 1 else 0
        sizes = [size for size in FUTURE_SIZES if size <= remaining]
        best = score(self._vector_with_best_remainder(sizes, available, found))
        return tuple(gpu for gpu in range(len(self._group_of)) if best & _position_bit(gpu))

    def best_affinity(self, size: int, gpus: Iterable[int]) -> int | None:
        """The affinity of the best set of this size among these GPUs; None if they are too few."""
        if size >= len(self._rows_of_size):
            return None
        rows = self._rows_of_size[size]
        fitting = rows.fitting_rows(self._count_by_group(gpus))
        return rows.affinities[_first_row(fitting)] if fitting else None

    def _top_vectors(self, size: int, available: list[int], required: list[int]) -> list[CountVector]:
        """Of the vectors that fit, those with the highest affinity."""
        rows, found = self._rows_of_size[size], list[CountVector]()
        fitting = rows.fitting_rows(available, required)
        highest = rows.affinities[_first_row(fitting)]
        while fitting and rows.affinities[row := _first_row(fitting)] == highest:
            found.append(rows.vector_of(row))
            fitting &= fitting - 1
        return found

    def _vector_with_best_remainder(
        self, sizes: Sequence[int], available: list[int], vectors: list[CountVector]
    ) -> CountVector:
        """The first of the vectors that leave the best sets of these sizes. Enough GPUs remain for each size."""
        future = [(self._rows_of_size[size], self._rows_of_size[size].fitting_rows(available)) for size in sizes]
        best_rows = [
            (rows, fitting & rows.rows_with_affinity(rows.affinities[_first_row(fitting)])) for rows, fitting in future
        ]
        for vector in vectors:  # one that leaves the best set of every size; mostly one of the first does
            if all(rows.rows_fitting_without(best, available, vector) for rows, best in best_rows):
                return vector
        for rows, fitting in future:
            vectors = rows.vectors_with_best_remainder(fitting, available, vectors)
        return vectors[0]

    def _count_by_group(self, gpus: Iterable[int]) -> list[int]:
        """The number of GPUs of each group."""
        counts = [0] * len(self._groups)
        for gpu in gpus:
            counts[self._group_of[gpu]] += 1
        return counts

    def _scores_by_group(self, request: SelectionRequest) -> list[list[int]]:
        """scores[group][n]: what n GPUs of a group add to a set's score: their position bits, less their costs.

        Of each group the required GPUs are taken first, then those with the lowest costs, then the lowest positions. Of
        sets of one size the one with the highest score has the lowest costs and then the lowest positions.
        """
        costs, candidates, scores = request.costs, request.candidates, []
        for gpus in self._groups:
            order = [gpu for gpu in gpus if gpu in candidates]
            if request.required or costs:
                order.sort(key=lambda gpu: (gpu not in request.required, costs.get(gpu, 0)))
            scores.append([0, *accumulate(_position_bit(gpu) - (costs.get(gpu, 0) << MAX_GPUS) for gpu in order)])
        return scores


def _position_bit(gpu: int) -> int:
    """The lower a position, the higher its bit; one unit of costs is more than all of these bits."""
    return 1 << MAX_GPUS - 1 - gpu


class _VectorRows:
    """All vectors of one size, the highest affinity first, and bitmaps over them: bit n stands for row n."""

    def __init__(self, vectors: Iterable[int], affinities: list[int], groups: Sequence[Sequence[int]]) -> None:
        self.affinities, self._all_rows, self._row_bytes = affinities, (1 << len(affinities)) - 1, len(groups)
        little: repeat[Literal["little"]] = repeat("little")
        self._count_bytes = b"".join(map(int.to_bytes, vectors, repeat(len(groups)), little))
        self._at_most_bitmaps = [
            [self._at_most_bitmap(group, limit) for limit in range(len(gpus))] + [self._all_rows]
            for group, gpus in enumerate(groups)
        ]

    def _at_most_bitmap(self, group: int, limit: int) -> int:
        """The rows with at most this many GPUs of a group."""
        last = len(self._count_bytes) - self._row_bytes + group
        return int(self._count_bytes[last :: -self._row_bytes].translate(AT_MOST_TABLES[limit]), 2)

    def vector_of(self, row: int) -> CountVector:
        """The vector of a row."""
        counts = self._count_bytes[row * self._row_bytes : (row + 1) * self._row_bytes]
        return [(group, count) for group, count in enumerate(counts) if count]

    def rows_with_affinity(self, minimum: int) -> int:
        """The rows with at least this affinity."""
        return (1 << bisect_right(self.affinities, -minimum, key=neg)) - 1

    def fitting_rows(self, available: Iterable[int], required: Iterable[int] = ()) -> int:
        """The rows with at most `available` and at least `required` GPUs of each group."""
        fitting = self._all_rows
        for at_most, count in zip(self._at_most_bitmaps, available, strict=True):
            fitting &= at_most[count]
        for at_most, count in zip(self._at_most_bitmaps, required, strict=False):
            if count:
                fitting &= ~at_most[count - 1]
        return fitting

    def rows_fitting_without(self, fitting: int, available: Sequence[int], taken: CountVector) -> int:
        """Those of the fitting rows that still fit after these GPUs are taken."""
        for group, count in taken:
            fitting &= self._at_most_bitmaps[group][available[group] - count]
        return fitting

    def vectors_with_best_remainder(
        self, fitting: int, available: Sequence[int], vectors: Iterable[CountVector]
    ) -> list[CountVector]:
        """Those of the vectors after which the fitting row with the highest affinity remains possible."""
        found, highest = list[CountVector](), -1
        for vector in vectors:
            if remaining := self.rows_fitting_without(fitting, available, vector):
                if (affinity := self.affinities[_first_row(remaining)]) > highest:
                    found, highest, fitting = [], affinity, fitting & self.rows_with_affinity(affinity)
                found.append(vector)
        return found


def _first_row(rows: int) -> int:
    """The first row of a bitmap."""
    return (rows & -rows).bit_length() - 1


ValuesBySize: TypeAlias = list[list[int]]
"""values[size]: one value for each vector of that size."""


def _rows_by_size(matrix: AffinityMatrix, groups: Sequence[Sequence[int]]) -> list[_VectorRows]:
    """The rows of each size. Builds all vectors group by group, with one byte for each group, and their affinities."""
    vectors, affinities = [[0]], [[0]]
    for group, gpus in enumerate(groups):
        gains = [[0]]  # the affinity of one GPU of this group to each vector of the groups before
        for other in groups[:group]:
            gains = _add_group(gains, len(other), repeat(repeat(matrix[gpus[0]][other[0]])))
        affinities = _add_group(affinities, len(gpus), gains, matrix[gpus[0]][gpus[-1]])
        vectors = _add_group(vectors, len(gpus), repeat(repeat(1 << 8 * group)))
    return [_VectorRows(*_sort_by_affinity(*each), groups) for each in zip(vectors, affinities, strict=True)]


def _add_group(sizes: ValuesBySize, limit: int, gains: Iterable[Iterable[int]], pair_gain: int = 0) -> ValuesBySize:
    """The values with up to `limit` GPUs of one more group: each adds its gain, and `pair_gain` for each before it."""
    found, layer = ValuesBySize([] for _ in range(len(sizes) + limit)), sizes
    for n in range(limit + 1):
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
