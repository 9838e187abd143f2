"""A good set of GPUs, in bounded time: for a machine that is too large for a table, and until its table is built.

The search starts with each GPU in turn, the most promising first. It adds the GPU with the highest gain until the set
is large enough, then swaps single GPUs as long as that improves the set. The best of these sets is the answer. The
criteria of `settable` are combined into one number here, so that a step compares two numbers:
1. the affinity of the set;
2. the remainder: the set's GPUs have a low affinity to all candidates. (For sets of one affinity that is the same as a
   high sum over all remaining pairs. To find the best remaining sets of 8, 4 and 2 would cost a search each.)
3. the costs;
4. low positions.

No set has a higher affinity than `affinity_bound`: no GPU can have better partners than the best candidates.
"""

from collections.abc import Iterator, Mapping, Sequence

from gpuplane.core.choice.affinity import AffinityMatrix
from gpuplane.core.choice.selection import SelectionRequest

MAX_LOOKS = 1 << 12
"""How often one search looks at a GPU or at a swap, give or take one set: that takes about a millisecond."""


def find_good_set(matrix: AffinityMatrix, request: SelectionRequest) -> tuple[int, ...]:
    """A good set, ascending; () if there is none."""
    if not request.is_possible:
        return ()
    candidates, size = sorted(request.candidates), request.size
    max_affinities = _max_affinities(matrix, request)
    scorer = _Scorer(matrix, candidates, request)
    starts = [
        frozenset({gpu}) for gpu in sorted(candidates, key=lambda gpu: (-max_affinities[gpu], scorer.penalty[gpu]))
    ]
    best, work = frozenset[int](), MAX_LOOKS
    for start in [request.required] if request.required or not size else starts:
        found, looks = scorer.improve(scorer.grow(start, size), work - size * len(candidates))
        work -= size * len(candidates) + looks
        if not best or scorer.score(found) > scorer.score(best):
            best = found
        if work <= 0:
            break
    return tuple(sorted(best))


def affinity_bound(matrix: AffinityMatrix, request: SelectionRequest) -> int:
    """An upper bound of the affinity of any set: half of the sum of what its GPUs have with their best partners."""
    max_affinities = _max_affinities(matrix, request)
    rest = sorted((max_affinities[gpu] for gpu in request.candidates - request.required), reverse=True)
    highest = sum(max_affinities[gpu] for gpu in request.required) + sum(rest[: request.size - len(request.required)])
    return highest // 2


def _max_affinities(matrix: AffinityMatrix, request: SelectionRequest) -> Mapping[int, int]:
    """GPU → the sum of its affinities to the required GPUs and to its best other partners."""
    found = {}
    for gpu in request.candidates:
        required_others = request.required - {gpu}
        row = matrix[gpu]
        others = sorted((row[other] for other in request.candidates - required_others if other != gpu), reverse=True)
        found[gpu] = sum(row[other] for other in required_others) + sum(
            others[: max(0, request.size - 1 - len(required_others))]
        )
    return found


class _Scorer:
    """Scores a set by one number: its affinity in large units (`scale`), less the penalty of each GPU."""

    def __init__(self, matrix: AffinityMatrix, candidates: Sequence[int], request: SelectionRequest) -> None:
        self.matrix, self.candidates, self.required = matrix, candidates, request.required
        ranks = [
            [
                sum(matrix[gpu][other] for other in candidates) if request.considers_remainder else 0
                for gpu in candidates
            ],
            [request.costs.get(gpu, 0) for gpu in candidates],
            list(range(len(candidates))),
        ]
        prices = [0] * len(candidates)
        for rank in ranks:
            unit = 1 + sum(rank)
            prices = [penalty * unit + each for penalty, each in zip(prices, rank, strict=True)]
        self.scale = 1 + sum(prices)
        self.penalty = dict(zip(candidates, prices, strict=True))

    def score(self, gpus: frozenset[int]) -> int:
        """The score of a set."""
        pairs = sum(self.matrix[one][other] for one in gpus for other in gpus) // 2
        return pairs * self.scale - sum(self.penalty[gpu] for gpu in gpus)

    def grow(self, start: frozenset[int], size: int) -> frozenset[int]:
        """Adds the GPU with the highest gain, again and again, until the set has `size` GPUs."""
        gpus, affinities = set(start), self._affinities_to(start)
        while len(gpus) < size:
            best = max(
                (gpu for gpu in self.candidates if gpu not in gpus), key=lambda gpu: affinities[gpu] - self.penalty[gpu]
            )
            gpus.add(best)
            for gpu in self.candidates:
                affinities[gpu] += self.matrix[best][gpu] * self.scale
        return frozenset(gpus)

    def improve(self, start: frozenset[int], work: int) -> tuple[frozenset[int], int]:
        """Makes the best swap, again and again, until none improves the set or `work` looks are used: set and looks."""
        gpus, affinities, looks = start, self._affinities_to(start), 0
        while looks < work:
            gain, removed, added = max(self._swaps(gpus, affinities), default=(0, 0, 0))
            looks += (len(gpus) - len(self.required)) * (len(self.candidates) - len(gpus))
            if gain <= 0:
                break
            gpus = gpus - {removed} | {added}
            for gpu in self.candidates:
                affinities[gpu] += (self.matrix[added][gpu] - self.matrix[removed][gpu]) * self.scale
        return gpus, looks

    def _swaps(self, gpus: frozenset[int], affinities: Mapping[int, int]) -> Iterator[tuple[int, int, int]]:
        """(gain, removed GPU, added GPU) of each possible swap."""
        gains = [(affinities[gpu] - self.penalty[gpu], gpu) for gpu in self.candidates if gpu not in gpus]
        for removed in gpus - self.required:
            loss, row = affinities[removed] - self.penalty[removed], self.matrix[removed]
            for gain, gpu in gains:
                yield gain - loss - row[gpu] * self.scale, removed, gpu

    def _affinities_to(self, gpus: frozenset[int]) -> dict[int, int]:
        """Each GPU → the sum of its affinities to these, scaled."""
        return {gpu: sum(self.matrix[gpu][other] for other in gpus) * self.scale for gpu in self.candidates}
