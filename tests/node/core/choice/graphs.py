"""Machines to ask about: how GPUs may be joined, and the stated objective in its plainest form."""

from collections.abc import Callable, Iterable, Mapping
from itertools import combinations

from hypothesis import strategies as st

from gpuplane.node.core.choice.gpusetrequest import GpuSetRequest
from gpuplane.node.core.choice.linkscores import LinkScoreMatrix

Pair = Callable[[int, int], int]


def graph(count: int, pair: Pair) -> LinkScoreMatrix:
    """The link scores of the pairs of so many GPUs; `pair` is asked once for each, with the lower one first."""
    asked = {(i, j): pair(i, j) for i, j in combinations(range(count), 2)}
    return tuple(tuple(asked.get((min(i, j), max(i, j)), 0) for j in range(count)) for i in range(count))


REGULAR: Mapping[str, Pair] = {
    "flat": lambda i, j: 10,
    "nothing known": lambda i, j: 0,
    "pairs": lambda i, j: 250 if i // 2 == j // 2 else 10,
    "tree": lambda i, j: (0, 50, 40, 20, 10)[(i ^ j).bit_length()],
    "islands of four": lambda i, j: 1220 if i // 4 == j // 4 else 10,
    "interleaved islands": lambda i, j: 1220 if i % 3 == j % 3 else 10,
    "ring": lambda i, j: 110 if j - i in (1, 15) else 10,
    "hypercube": lambda i, j: 110 if (i ^ j).bit_count() == 1 else 10,
    "torus": lambda i, j: 110 if _beside(i // 4, j // 4, i % 4, j % 4) else 10,
    "star": lambda i, j: 100 if i == 0 else 0,
}
"""Graphs whose GPUs are all alike, or nearly: most sets have the same link score."""


def _beside(i: int, j: int, a: int, b: int) -> bool:
    return (i == j and (a - b) % 4 in (1, 3)) or (a == b and (i - j) % 4 in (1, 3))


@st.composite
def graphs(draw: st.DrawFn, most: int) -> LinkScoreMatrix:
    """Any graph: regular, with few or many different link scores; its GPUs in any order."""
    count = draw(st.integers(1, most))
    values = draw(st.sampled_from([(0, 1), (10, 20, 110), (10, 20, 30, 50, 110, 210), tuple(range(0, 2000, 7))]))
    free = draw(st.lists(st.sampled_from(values), min_size=count * count, max_size=count * count))
    pair = draw(st.sampled_from([*REGULAR.values(), lambda i, j: free[i * count + j]]))
    order = draw(st.permutations(range(count)))
    return graph(count, lambda i, j: pair(*sorted((order[i], order[j]))))


@st.composite
def requests(draw: st.DrawFn, count: int) -> GpuSetRequest:
    """Any request for so many GPUs, also those that no set can meet."""
    some = st.frozensets(st.integers(0, count - 1))
    return GpuSetRequest(
        available_gpus=draw(some | st.just(frozenset(range(count)))),
        required_gpus=draw(st.just(frozenset[int]()) | some),
        size=draw(st.integers(0, count + 1)),
        cost_by_gpu=draw(st.just(dict[int, int]()) | st.dictionaries(st.integers(0, count - 1), st.integers(0, 3))),
        considers_later_requests=draw(st.booleans()),
    )


def brute(matrix: LinkScoreMatrix, request: GpuSetRequest) -> tuple[int, ...]:
    """All sets, sifted by one part of the objective after the other."""
    candidates = sorted(request.available_gpus | request.required_gpus)
    sets = [each for each in combinations(candidates, request.size) if request.required_gpus <= set(each)]
    keys: list[Callable[[tuple[int, ...]], float]] = [lambda each: total(matrix, each)]
    if request.considers_later_requests:
        keys += [
            lambda each, size=size: best_left(matrix, [gpu for gpu in candidates if gpu not in each], size)  # type: ignore[misc]
            for size in (8, 4, 2)
        ]
    keys.append(lambda each: -sum(request.cost_by_gpu.get(gpu, 0) for gpu in each))
    for key in keys:
        most = max(map(key, sets), default=0)
        sets = [each for each in sets if key(each) == most]
    return min(sets, default=())


def best_left(matrix: LinkScoreMatrix, gpus: Iterable[int], size: int) -> float:
    """The link score of the best set of this size; lower than any other if there is none."""
    return max((total(matrix, each) for each in combinations(gpus, size)), default=float("-inf"))


def total(matrix: LinkScoreMatrix, gpus: Iterable[int]) -> int:
    """The sum of the pairs."""
    return sum(matrix[one][other] for one, other in combinations(gpus, 2))
