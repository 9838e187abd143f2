"""The best set of GPUs, exactly: which of the candidates to take, so that they are well connected, and the rest too.

What is best, in this order:
1. the link score of the set: the sum over its pairs (`linkscores`);
2. the link score of what remains for later requests: of the best 8 remaining GPUs, then of the best 4, then of the best
   2; having too few for such a set is worse than having any;
3. the lowest costs (`GpuSetRequest`);
4. the lowest positions.

A set of GPUs is a number here: bit n stands for the GPU at position n. The table depends on the link scores alone. It
says of each set its link score, and the link score of the best 8, 4 and 2 GPUs in it. And it lists the sets of each
size, the highest link score first. A request takes the first of them that is possible, and compares it with the other
possible ones of the same link score.

GPUs with the same link score to every other GPU are equivalent, and form a group. Only the number of GPUs from each
group matters. So the lists have only the sets that take the first GPUs of each group, and each request numbers the GPUs
of a group anew: those that it prefers come first. Without groups, 16 GPUs behind one switch have 12,870 equally good
sets of 8, and a request compares them all.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise

from gpuplane.node.core.choice.gpusetrequest import GpuSetRequest
from gpuplane.node.core.choice.linkscores import LinkScoreMatrix

MAX_GPUS = 16
"""The largest machine that gets a table: it has 65,536 sets."""

LATER_REQUEST_SIZES = (8, 4, 2)
"""The sizes of the sets that are kept for later requests."""

TOO_FEW_GPUS = -1
"""In place of a link score: there is no set of this size. Lower than any link score."""


class GpuSetTable:
    """The table of one machine. docs/performance.md says how long it takes to build one, and to look a set up."""

    def __init__(self, matrix: LinkScoreMatrix) -> None:
        assert len(matrix) <= MAX_GPUS
        self._groups = group_equivalent_gpus(matrix)
        self._link_scores = _link_score_by_set(matrix)
        self._best_link_scores = {
            size: _best_link_score_by_set(self._link_scores, size) for size in LATER_REQUEST_SIZES
        }
        self._sets_by_size = _sets_by_size(self._link_scores, self._groups)

    def best_set(self, request: GpuSetRequest) -> tuple[int, ...]:
        """The best set, ascending; () if there is none."""
        if not request.can_be_satisfied:
            return ()
        bits = self._bit_by_gpu(request)
        selectable = sum(bits[gpu] for gpu in request.selectable_gpus)
        required = sum(bits[gpu] for gpu in request.required_gpus)
        fixed_bits = sum(bits) - selectable + required
        possible_sets = (chosen for chosen in self._sets_by_size[request.size] if chosen & fixed_bits == required)
        _, best_connected_sets = next(groupby(possible_sets, key=self._link_scores.__getitem__))

        def rank(chosen: int) -> tuple[list[int], int, list[int]]:
            gpus = [gpu for gpu, bit in enumerate(bits) if bit & chosen]
            remaining = selectable - chosen if request.considers_later_requests else 0
            later_link_scores = [-link_scores[remaining] for link_scores in self._best_link_scores.values()]
            return later_link_scores, sum(request.cost_by_gpu.get(gpu, 0) for gpu in gpus), gpus

        return tuple(min(map(rank, best_connected_sets))[-1])

    def best_link_score(self, size: int, gpus: Iterable[int]) -> int | None:
        """The link score of the best set of this size among these GPUs; None if they are too few.

        `size`: one of `LATER_REQUEST_SIZES`.
        """
        link_score = self._best_link_scores[size][sum(1 << gpu for gpu in gpus)]
        return None if link_score == TOO_FEW_GPUS else link_score

    def _bit_by_gpu(self, request: GpuSetRequest) -> list[int]:
        """The bit of each GPU. In a group, required GPUs come first, then available ones with the lowest costs."""

        def rank(gpu: int) -> tuple[bool, bool, int]:
            return (
                gpu not in request.required_gpus,
                gpu not in request.available_gpus,
                request.cost_by_gpu.get(gpu, 0),
            )

        bits = [0] * sum(map(len, self._groups))
        for group in self._groups:
            for gpu, position in zip(sorted(group, key=rank), group, strict=True):
                bits[gpu] = 1 << position
        return bits


def group_equivalent_gpus(matrix: LinkScoreMatrix) -> list[list[int]]:
    """The GPUs by group: those of a group have the same link score to each other GPU, and to one another."""
    groups: list[list[int]] = []
    for gpu in range(len(matrix)):
        for group in groups:
            if _are_equivalent(matrix, gpu, group[0]):
                group.append(gpu)
                break
        else:
            groups.append([gpu])
    return groups


def _are_equivalent(matrix: LinkScoreMatrix, one: int, other: int) -> bool:
    return all(matrix[one][gpu] == matrix[other][gpu] for gpu in range(len(matrix)) if gpu not in (one, other))


def _link_score_by_set(matrix: LinkScoreMatrix) -> list[int]:
    """The link score of each set. The list grows GPU by GPU: first all sets without the GPU, then the same with it."""
    link_scores = [0]
    for gpu, row in enumerate(matrix):
        gains = [0]  # what the GPU adds to each set of the GPUs before it
        for points in row[:gpu]:
            gains += [gain + points for gain in gains]
        link_scores += [link_score + gain for link_score, gain in zip(link_scores, gains, strict=True)]
    return link_scores


def _best_link_score_by_set(link_scores: Sequence[int], size: int) -> list[int]:
    """For each set, the link score of the best set of this size in it; `TOO_FEW_GPUS` if it has fewer GPUs.

    Each round compares every set that has one GPU with the same set without it. It looks at the lowest bit, and then
    makes that the highest. So the bits are in their old order after as many rounds as there are GPUs.
    """
    found = [link_score if gpus.bit_count() == size else TOO_FEW_GPUS for gpus, link_score in enumerate(link_scores)]
    for _ in range(len(link_scores).bit_length() - 1):
        without, having = found[::2], found[1::2]
        found = without + [a if a > b else b for a, b in zip(without, having, strict=True)]
    return found


def _sets_by_size(link_scores: Sequence[int], groups: Iterable[Sequence[int]]) -> list[list[int]]:
    """The sets of each size that take the first GPUs of each group, the highest link score first."""
    sets: Sequence[int] = range(len(link_scores))
    for group in groups:
        for earlier, later in pairwise(1 << gpu for gpu in group):
            sets = [gpus for gpus in sets if gpus & (earlier | later) != later]
    found: list[list[int]] = [[] for _ in range(len(link_scores).bit_length())]
    for gpus in sets:
        found[gpus.bit_count()].append(gpus)
    for sets_of_size in found:
        sets_of_size.sort(key=link_scores.__getitem__, reverse=True)
    return found
