"""A good set of GPUs, in bounded time: for a machine with more GPUs than a table takes, and until its table is made.

From the GPUs that promise most, one after the other, a set grows by the one that adds most, and then single GPUs are
exchanged as long as that makes it better; the best of these sets is the answer. What `sets` puts in order is here put
into one number, so that a step compares two numbers:
1. the worth of the set;
2. what is left lies well: the set's GPUs are worth little to those that there are. (For sets of one worth this is the
   same as that the sum of all pairs that are left over is high. The best sets of 8, 4 and 2 would cost a search each.)
3. the costs;
4. low positions.

No set can be worth more than `bound`: a GPU of it can have no better partners than the best there are.
"""

from collections.abc import Iterator, Mapping, Sequence

from gpuplane.core.choice.question import Question
from gpuplane.core.choice.topology import Worths

WORK = 1 << 12
"""How often one search looks at a GPU or at an exchange, give or take one set: about a millisecond's worth."""


def search(worths: Worths, question: Question) -> tuple[int, ...]:
    """A good set, ascending; () where there is none."""
    if not question.possible:
        return ()
    there, size = sorted(question.there), question.size
    potentials = _potentials(worths, question)
    value = _Value(worths, there, question)
    starts = [frozenset({gpu}) for gpu in sorted(there, key=lambda gpu: (-potentials[gpu], value.price[gpu]))]
    best, work = frozenset[int](), WORK
    for start in [question.required] if question.required or not size else starts:
        found, looks = value.improve(value.grow(start, size), work - size * len(there))
        work -= size * len(there) + looks
        if not best or value.of(found) > value.of(best):
            best = found
        if work <= 0:
            break
    return tuple(sorted(best))


def bound(worths: Worths, question: Question) -> int:
    """What no set can be worth more than: half of what its GPUs are worth with the best partners that there are."""
    potentials = _potentials(worths, question)
    rest = sorted((potentials[gpu] for gpu in question.there - question.required), reverse=True)
    most = sum(potentials[gpu] for gpu in question.required) + sum(rest[: question.size - len(question.required)])
    return most // 2


def _potentials(worths: Worths, question: Question) -> Mapping[int, int]:
    """What each GPU is worth with the required ones and the best other partners."""
    found = {}
    for gpu in question.there:
        sure = question.required - {gpu}
        row = worths[gpu]
        others = sorted((row[other] for other in question.there - sure if other != gpu), reverse=True)
        found[gpu] = sum(row[other] for other in sure) + sum(others[: max(0, question.size - 1 - len(sure))])
    return found


class _Value:
    """What sets are worth in one number: their worth in large units, less the price of each GPU."""

    def __init__(self, worths: Worths, there: Sequence[int], question: Question) -> None:
        self.worths, self.there, self.required = worths, there, question.required
        ranks = [
            [sum(worths[gpu][other] for other in there) if question.leaves else 0 for gpu in there],
            [question.costs.get(gpu, 0) for gpu in there],
            list(range(len(there))),
        ]
        prices = [0] * len(there)
        for rank in ranks:
            unit = 1 + sum(rank)
            prices = [price * unit + each for price, each in zip(prices, rank, strict=True)]
        self.unit = 1 + sum(prices)
        self.price = dict(zip(there, prices, strict=True))

    def of(self, gpus: frozenset[int]) -> int:
        """The value of a set."""
        pairs = sum(self.worths[one][other] for one in gpus for other in gpus) // 2
        return pairs * self.unit - sum(self.price[gpu] for gpu in gpus)

    def grow(self, start: frozenset[int], size: int) -> frozenset[int]:
        """The set with the GPU that adds most, again and again."""
        gpus, near = set(start), self._near(start)
        while len(gpus) < size:
            best = max((gpu for gpu in self.there if gpu not in gpus), key=lambda gpu: near[gpu] - self.price[gpu])
            gpus.add(best)
            for gpu in self.there:
                near[gpu] += self.worths[best][gpu] * self.unit
        return frozenset(gpus)

    def improve(self, start: frozenset[int], work: int) -> tuple[frozenset[int], int]:
        """The set after exchanges, the best first, until none makes it better or the work is done; and the looks."""
        gpus, near, looks = start, self._near(start), 0
        while looks < work:
            gain, out, come = max(self._exchanges(gpus, near), default=(0, 0, 0))
            looks += (len(gpus) - len(self.required)) * (len(self.there) - len(gpus))
            if gain <= 0:
                break
            gpus = gpus - {out} | {come}
            for gpu in self.there:
                near[gpu] += (self.worths[come][gpu] - self.worths[out][gpu]) * self.unit
        return gpus, looks

    def _exchanges(self, gpus: frozenset[int], near: Mapping[int, int]) -> Iterator[tuple[int, int, int]]:
        """(gain, which goes, which comes) of each exchange."""
        come = [(near[gpu] - self.price[gpu], gpu) for gpu in self.there if gpu not in gpus]
        for out in gpus - self.required:
            loss, row = near[out] - self.price[out], self.worths[out]
            for gain, gpu in come:
                yield gain - loss - row[gpu] * self.unit, out, gpu

    def _near(self, gpus: frozenset[int]) -> dict[int, int]:
        """What each GPU is worth to these, in units."""
        return {gpu: sum(self.worths[gpu][other] for other in gpus) * self.unit for gpu in self.there}
