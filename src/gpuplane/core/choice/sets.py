"""The best set of GPUs, exactly: which of the available ones to take, so that they lie well and leave the rest well.

What is best, in this order:
1. the worth of the set: the sum of what each pair of it is worth (`topology`);
2. what it leaves for whoever comes next: the worth of the best 8 of those left over, then of the best 4, of the best 2;
   to leave no such set is worse than to leave any;
3. the costs of its GPUs (`Question`), the least;
4. the lowest positions.

GPUs that are worth the same to every other are twins. Of a set only matters how many of each kind of twins it has, and
of a kind those that cost least are taken, then the lowest: so a choice is a vector of counts, and most machines have
few of them.

The table depends on the pairs alone: all vectors of each size, the most worth first. Beside it stand bitmaps, one bit a
row: which rows have at most n of a kind. A question joins a few of these big integers, and the lowest bit that is left
is the best row.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, repeat
from operator import add, neg
from typing import Literal, TypeAlias

from gpuplane.core.choice.question import Question
from gpuplane.core.choice.topology import Worths

MOST = 16
"""GPUs for which a table is made: 65,536 vectors where no two are twins."""

AHEAD = (8, 4, 2)
"""The sizes of the sets that are kept for whoever comes next."""

AT_MOST = [bytes(b"01"[count <= most] for count in range(256)) for most in range(MOST)]

Vector: TypeAlias = list[tuple[int, int]]
"""(kind, how many of it), of each kind that there is any of."""


class Sets:
    """The table of one machine. Building it takes some 40 ms at the most, asking it a fraction of one."""

    def __init__(self, worths: Worths) -> None:
        assert len(worths) <= MOST
        self._kinds = kinds(worths)
        self._kind = {gpu: kind for kind, gpus in enumerate(self._kinds) for gpu in gpus}
        self._rows = _table(worths, self._kinds)

    def best(self, question: Question) -> tuple[int, ...]:
        """The best set, ascending; () where there is none."""
        if not question.possible:
            return ()
        have, merits = self._count(question.there), self._merits(question)

        def merit(vector: Vector) -> int:
            return sum(merits[kind][count] for kind, count in vector)

        found = sorted(self._most(question.size, have, self._count(question.required)), key=merit, reverse=True)
        room = len(question.there) - question.size if question.leaves and len(found) > 1 else 0
        best = merit(self._leaving_most([size for size in AHEAD if size <= room], have, found))
        return tuple(gpu for gpu in range(len(self._kind)) if best & _bit(gpu))

    def left(self, size: int, gpus: Iterable[int]) -> int | None:
        """The worth of the best set of this size among these GPUs; None where there are too few."""
        found = self._rows[size].fit(self._count(gpus)) if size < len(self._rows) else 0
        return self._rows[size].worths[_lowest(found)] if found else None

    def _most(self, size: int, have: list[int], must: list[int]) -> list[Vector]:
        """The vectors that are worth most of those that fit."""
        rows, found = self._rows[size], list[Vector]()
        fit = rows.fit(have, must)
        most = rows.worths[_lowest(fit)]
        while fit and rows.worths[row := _lowest(fit)] == most:
            found.append(rows.vector(row))
            fit &= fit - 1
        return found

    def _leaving_most(self, sizes: Sequence[int], have: list[int], vectors: list[Vector]) -> Vector:
        """The first of those vectors that leave most. There is room for a set of each size."""
        ahead = [(self._rows[size], self._rows[size].fit(have)) for size in sizes]
        tops = [(rows, fit & rows.worth(rows.worths[_lowest(fit)])) for rows, fit in ahead]
        for vector in vectors:  # one that spoils nothing: mostly the first few are
            if all(rows.less(top, have, vector) for rows, top in tops):
                return vector
        for rows, fit in ahead:
            vectors = rows.leaving(fit, have, vectors)
        return vectors[0]

    def _count(self, gpus: Iterable[int]) -> list[int]:
        """How many there are of each kind."""
        counts = [0] * len(self._kinds)
        for gpu in gpus:
            counts[self._kind[gpu]] += 1
        return counts

    def _merits(self, question: Question) -> list[list[int]]:
        """What so many GPUs of a kind add to a set's merit: the bits of those that are taken, less their costs.

        Of each kind the required ones are taken first, then the cheapest, then the lowest. Of sets of one size the one
        with the highest merit costs least and has the lowest positions.
        """
        costs, there, merits = question.costs, question.there, []
        for gpus in self._kinds:
            turns = [gpu for gpu in gpus if gpu in there]
            if question.required or costs:
                turns.sort(key=lambda gpu: (gpu not in question.required, costs.get(gpu, 0)))
            merits.append([0, *accumulate(_bit(gpu) - (costs.get(gpu, 0) << MOST) for gpu in turns)])
        return merits


def _bit(gpu: int) -> int:
    """The lower a position, the higher its bit; costs stand above them all."""
    return 1 << MOST - 1 - gpu


class _Rows:
    """All vectors of one size, the most worth first, and bitmaps over them: bit n stands for row n."""

    def __init__(self, vectors: Iterable[int], worths: list[int], kinds: Sequence[Sequence[int]]) -> None:
        self.worths, self._all, self._width = worths, (1 << len(worths)) - 1, len(kinds)
        little: repeat[Literal["little"]] = repeat("little")
        self._counts = b"".join(map(int.to_bytes, vectors, repeat(len(kinds)), little))
        self._at_most = [
            [self._bitmap(kind, most) for most in range(len(gpus))] + [self._all] for kind, gpus in enumerate(kinds)
        ]

    def _bitmap(self, kind: int, most: int) -> int:
        """The rows with at most so many of a kind."""
        last = len(self._counts) - self._width + kind
        return int(self._counts[last :: -self._width].translate(AT_MOST[most]), 2)

    def vector(self, row: int) -> Vector:
        """What the row has."""
        counts = self._counts[row * self._width : (row + 1) * self._width]
        return [(kind, count) for kind, count in enumerate(counts) if count]

    def worth(self, least: int) -> int:
        """The rows that are worth so much at the least."""
        return (1 << bisect_right(self.worths, -least, key=neg)) - 1

    def fit(self, have: Iterable[int], must: Iterable[int] = ()) -> int:
        """The rows with at most `have` and at least `must` of each kind."""
        fit = self._all
        for at_most, count in zip(self._at_most, have, strict=True):
            fit &= at_most[count]
        for at_most, count in zip(self._at_most, must, strict=False):
            if count:
                fit &= ~at_most[count - 1]
        return fit

    def less(self, fit: int, have: Sequence[int], taken: Vector) -> int:
        """Those of the rows that fit which still do when some is taken of what there is."""
        for kind, count in taken:
            fit &= self._at_most[kind][have[kind] - count]
        return fit

    def leaving(self, fit: int, have: Sequence[int], vectors: Iterable[Vector]) -> list[Vector]:
        """Those of the vectors that leave the one of the rows that fit which is worth most."""
        found, most = list[Vector](), -1
        for vector in vectors:
            if left := self.less(fit, have, vector):
                if (worth := self.worths[_lowest(left)]) > most:
                    found, most, fit = [], worth, fit & self.worth(worth)
                found.append(vector)
        return found


def _lowest(rows: int) -> int:
    """The first of the rows."""
    return (rows & -rows).bit_length() - 1


BySize: TypeAlias = list[list[int]]
"""Something of each vector, by the size of the vectors."""


def _table(worths: Worths, kinds: Sequence[Sequence[int]]) -> list[_Rows]:
    """The rows of each size. All vectors are made kind by kind, with a byte for each, and what they are worth."""
    vectors, sums = [[0]], [[0]]
    for kind, gpus in enumerate(kinds):
        one = [[0]]  # what one of this kind is worth to each vector of the kinds before
        for other in kinds[:kind]:
            one = _with(one, len(other), repeat(repeat(worths[gpus[0]][other[0]])))
        sums = _with(sums, len(gpus), one, worths[gpus[0]][gpus[-1]])
        vectors = _with(vectors, len(gpus), repeat(repeat(1 << 8 * kind)))
    return [_Rows(*_sorted(*each), kinds) for each in zip(vectors, sums, strict=True)]


def _with(sizes: BySize, most: int, one: Iterable[Iterable[int]], pair: int = 0) -> BySize:
    """With none to `most` GPUs of one more kind: each adds its `one`, and `pair` for each that is before it."""
    found, layer = BySize([] for _ in range(len(sizes) + most)), sizes
    for n in range(most + 1):
        if n:
            before = (n - 1) * pair
            gains = (map(before.__add__, each) if before else each for each in one)
            layer = [list(map(add, values, gain)) for values, gain in zip(layer, gains, strict=False)]
        for size, values in enumerate(layer, n):
            found[size] += values
    return found


def _sorted(vectors: list[int], worths: list[int]) -> tuple[list[int], list[int]]:
    """Those that are worth most first."""
    order = sorted(range(len(vectors)), key=worths.__getitem__, reverse=True)
    return [vectors[n] for n in order], [worths[n] for n in order]


def kinds(worths: Worths) -> tuple[tuple[int, ...], ...]:
    """The GPUs by kind: of a kind are those that are worth the same to each other GPU, and to one another."""
    found: list[list[int]] = []
    for gpu in range(len(worths)):
        same = next((kind for kind in found if all(_twins(worths, gpu, other) for other in kind)), None)
        if same is None:
            found.append([gpu])
        else:
            same.append(gpu)
    return tuple(map(tuple, found))


def _twins(worths: Worths, one: int, other: int) -> bool:
    others = (each for each in range(len(worths)) if each not in (one, other))
    return all(worths[one][each] == worths[other][each] for each in others)
