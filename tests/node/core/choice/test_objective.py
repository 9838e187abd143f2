"""What our objective costs and gains beside that of NVIDIA's go-gpuallocator: the figures of docs/choice.md.

Theirs (gpuallocator/besteffort_policy.go): of all divisions of the free GPUs into sets of the wanted size, the one that
is worth most in all, and of it the best set. Ours: the set that is worth most now.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from gpuplane.node.core.choice.gpusetrequest import GpuSetRequest
from gpuplane.node.core.choice.gpusets import GpuSetTable
from gpuplane.node.core.choice.linkscores import LinkScoreMatrix, link_score_matrix
from gpuplane.node.hardware.described.machinefile import read_machine
from gpuplane.node.hardware.described.profiles import find_machine_file

PAGE = (Path(__file__).parents[4] / "docs/choice.md").read_text()
Pair: TypeAlias = tuple[int, int]
FEWEST = 4  # free GPUs: with fewer there is one pair to choose, and nothing that follows


def divisions(free: Sequence[int]) -> Iterator[list[Pair]]:
    """Into pairs; of an odd number any one is left."""
    if len(free) < 2:
        yield []
    elif len(free) % 2:
        for i in range(len(free)):
            yield from divisions((*free[:i], *free[i + 1 :]))
    else:
        for i in range(1, len(free)):
            yield from ([(free[0], free[i]), *rest] for rest in divisions((*free[1:i], *free[i + 1 :])))


def drawn(free: tuple[int, ...], matrix: LinkScoreMatrix, choose: Callable[[tuple[int, ...]], Pair]) -> list[int]:
    """The link score of each pod's pair, one pod after the other until no pair is left."""
    found = []
    while len(free) >= 2:
        one, other = choose(free)
        found.append(matrix[one][other])
        free = tuple(gpu for gpu in free if gpu not in (one, other))
    return found


def test_the_first_pod_gets_more_and_all_together_less() -> None:
    """On a DGX-1 V100, in every state with four or more free GPUs, where each pod asks for two."""
    matrix = link_score_matrix(
        read_machine(find_machine_file("dgx1-v100").read_bytes(), "dgx1-v100").gpus or (), "topology"
    )
    sets = GpuSetTable(matrix)

    def ours(free: tuple[int, ...]) -> Pair:
        one, other = sorted(sets.best_set(GpuSetRequest(frozenset(free), frozenset(), 2)))
        return one, other

    def theirs(free: tuple[int, ...]) -> Pair:
        best = max(divisions(free), key=lambda division: sum(matrix[one][other] for one, other in division))
        return max(best, key=lambda pair: matrix[pair[0]][pair[1]])

    states = [free for size in range(FEWEST, 9) for free in itertools.combinations(range(8), size)]
    both = [(drawn(free, matrix, ours), drawn(free, matrix, theirs)) for free in states]
    lower = sum(sum(mine) < sum(other) for mine, other in both)
    more = sum(mine[0] for mine, _ in both) / sum(other[0] for _, other in both) - 1

    assert not any(sum(mine) > sum(other) for mine, other in both)
    assert f" {lower} of {len(states)} " in " ".join(PAGE.split())
    assert f" {more:.1%} ".replace("%", " %") in " ".join(PAGE.split())
