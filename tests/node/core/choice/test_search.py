"""The search, for large machines and for want of a table: never better than the best, and how far from it at most."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.node.core.choice.gpusetrequest import GpuSetRequest
from gpuplane.node.core.choice.gpusets import GpuSetTable
from gpuplane.node.core.choice.search import find_set_by_local_search, link_score_bound
from tests.node.core.choice.graphs import Pair, graph, graphs, requests, total


@given(st.data())
def test_a_set_that_meets_the_request_within_the_bound(data: st.DataObject) -> None:
    """It has the size and the required GPUs, all are available, and the best set is between it and the bound."""
    matrix = data.draw(graphs(12))
    request = data.draw(requests(len(matrix)))
    found = find_set_by_local_search(matrix, request)

    assert bool(found) == (request.can_be_satisfied and request.size > 0)
    if found:
        best = GpuSetTable(matrix).best_set(request)
        assert len(found) == request.size
        assert request.required_gpus <= set(found) <= request.selectable_gpus
        assert found == tuple(sorted(found))
        assert total(matrix, found) <= total(matrix, best) <= link_score_bound(matrix, request)


RACK: Pair = lambda i, j: 1820 if i // 8 == j // 8 else 10  # noqa: E731


@pytest.mark.parametrize(
    ("there", "size", "expected"),
    [
        (range(64), 8, range(8)),
        (range(3, 64), 8, range(8, 16)),  # a whole island, not most of one
        ([*range(4), *range(8, 13), *range(16, 19)], 4, range(4)),  # where nothing is left over
        (range(3, 64), 4, [3, 4, 5, 6]),  # of the island that is broken already
        ([*range(8), 9, *range(16, 24)], 1, [9]),  # one that is alone
        (range(32), 16, range(16)),
    ],
)
def test_a_rack_of_islands(there: list[int], size: int, expected: list[int]) -> None:
    """64 GPUs in NVLink islands of eight: more than a table takes."""
    request = GpuSetRequest(frozenset(there), frozenset(), size)

    assert find_set_by_local_search(graph(64, RACK), request) == tuple(expected)


def test_degraded_gpus_come_last_of_those_that_are_as_good() -> None:
    matrix = graph(24, lambda i, j: 10)

    assert find_set_by_local_search(matrix, GpuSetRequest(frozenset(range(24)), frozenset(), 2, {0: 1, 2: 1})) == (1, 3)
