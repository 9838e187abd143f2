"""A good set of GPUs, in bounded time: for a machine that is too large for a table, and until its table is built.

The search starts with each GPU in turn, the most promising first. It adds the GPU with the highest gain until the set
is large enough, then swaps single GPUs as long as that improves the set. The best of these sets is the answer. The
criteria of `gpusets` are combined into one number here, so that a step compares two numbers:
1. the link score of the set;
2. the remainder: the set's GPUs have a low link score to all candidates. (For sets of one link score that is the same
   as a high sum over all remaining pairs. To find the best remaining sets of 8, 4 and 2 would cost a search each.)
3. the costs;
4. low positions.

No set has a higher link score than `link_score_bound`: no GPU can have better partners than the best candidates.
"""

from collections.abc import Iterator, Mapping, Sequence

from gpuplane.node.core.choice.gpusetrequest import GpuSetRequest
from gpuplane.node.core.choice.linkscores import LinkScoreMatrix

MAX_EVALUATIONS_PER_SEARCH = 1 << 12
"""How often one search looks at a GPU or at a swap, give or take one set: that takes about a millisecond."""


def find_set_by_local_search(matrix: LinkScoreMatrix, request: GpuSetRequest) -> tuple[int, ...]:
    """A good set, ascending; () if there is none."""
    if not request.can_be_satisfied:
        return ()
    candidates, size = sorted(request.selectable_gpus), request.size
    max_link_scores = _max_link_score_sum_by_gpu(matrix, request)
    scorer = _LocalSearch(matrix, candidates, request)
    starts = [
        frozenset({gpu}) for gpu in sorted(candidates, key=lambda gpu: (-max_link_scores[gpu], scorer.penalty[gpu]))
    ]
    best, work = frozenset[int](), MAX_EVALUATIONS_PER_SEARCH
    for start in [request.required_gpus] if request.required_gpus or not size else starts:
        found, looks = scorer.improve_by_swaps(scorer.grow_set(start, size), work - size * len(candidates))
        work -= size * len(candidates) + looks
        if not best or scorer.score(found) > scorer.score(best):
            best = found
        if work <= 0:
            break
    return tuple(sorted(best))


def link_score_bound(matrix: LinkScoreMatrix, request: GpuSetRequest) -> int:
    """An upper bound of the link score of any set: half of the sum of what its GPUs have with their best partners."""
    max_link_scores = _max_link_score_sum_by_gpu(matrix, request)
    rest = sorted((max_link_scores[gpu] for gpu in request.selectable_gpus - request.required_gpus), reverse=True)
    highest = sum(max_link_scores[gpu] for gpu in request.required_gpus) + sum(
        rest[: request.size - len(request.required_gpus)]
    )
    return highest // 2


def _max_link_score_sum_by_gpu(matrix: LinkScoreMatrix, request: GpuSetRequest) -> Mapping[int, int]:
    """GPU → the sum of its link scores to the required GPUs and to its best other partners."""
    found = {}
    for gpu in request.selectable_gpus:
        required_others = request.required_gpus - {gpu}
        row = matrix[gpu]
        others = sorted(
            (row[other] for other in request.selectable_gpus - required_others if other != gpu), reverse=True
        )
        found[gpu] = sum(row[other] for other in required_others) + sum(
            others[: max(0, request.size - 1 - len(required_others))]
        )
    return found


class _LocalSearch:
    """Scores a set by one number: its link score in large units (`scale`), less the penalty of each GPU."""

    def __init__(self, matrix: LinkScoreMatrix, candidates: Sequence[int], request: GpuSetRequest) -> None:
        self.matrix, self.candidates, self.required = matrix, candidates, request.required_gpus
        ranks = [
            [
                sum(matrix[gpu][other] for other in candidates) if request.considers_later_requests else 0
                for gpu in candidates
            ],
            [request.cost_by_gpu.get(gpu, 0) for gpu in candidates],
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

    def grow_set(self, start: frozenset[int], size: int) -> frozenset[int]:
        """Adds the GPU with the highest gain, again and again, until the set has `size` GPUs."""
        gpus, link_scores = set(start), self._link_score_to_set_by_gpu(start)
        while len(gpus) < size:
            best = max(
                (gpu for gpu in self.candidates if gpu not in gpus),
                key=lambda gpu: link_scores[gpu] - self.penalty[gpu],
            )
            gpus.add(best)
            for gpu in self.candidates:
                link_scores[gpu] += self.matrix[best][gpu] * self.scale
        return frozenset(gpus)

    def improve_by_swaps(self, start: frozenset[int], max_evaluations: int) -> tuple[frozenset[int], int]:
        """Makes the best swap, again and again, until none improves the set or all evaluations are used.

        Returns the set and the number of evaluations.
        """
        gpus, link_scores, looks = start, self._link_score_to_set_by_gpu(start), 0
        while looks < max_evaluations:
            gain, removed, added = max(self._possible_swaps(gpus, link_scores), default=(0, 0, 0))
            looks += (len(gpus) - len(self.required)) * (len(self.candidates) - len(gpus))
            if gain <= 0:
                break
            gpus = gpus - {removed} | {added}
            for gpu in self.candidates:
                link_scores[gpu] += (self.matrix[added][gpu] - self.matrix[removed][gpu]) * self.scale
        return gpus, looks

    def _possible_swaps(self, gpus: frozenset[int], link_scores: Mapping[int, int]) -> Iterator[tuple[int, int, int]]:
        """(gain, removed GPU, added GPU) of each possible swap."""
        gains = [(link_scores[gpu] - self.penalty[gpu], gpu) for gpu in self.candidates if gpu not in gpus]
        for removed in gpus - self.required:
            loss, row = link_scores[removed] - self.penalty[removed], self.matrix[removed]
            for gain, gpu in gains:
                yield gain - loss - row[gpu] * self.scale, removed, gpu

    def _link_score_to_set_by_gpu(self, gpus: frozenset[int]) -> dict[int, int]:
        """Each GPU → the sum of its link scores to these, scaled."""
        return {gpu: sum(self.matrix[gpu][other] for other in gpus) * self.scale for gpu in self.candidates}
