"""The table's answer is the best set: it equals what trying every set finds."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplane.node.core.choice.gpusetrequest import GpuSetRequest
from gpuplane.node.core.choice.gpusets import MAX_GPUS, GpuSetTable, group_equivalent_gpus
from tests.lengths import length
from tests.node.core.choice.graphs import REGULAR, best_left, brute, graph, graphs, requests


@settings(max_examples=length(60, 3000))
@given(st.data())
def test_the_answer_is_the_best_of_all_sets(data: st.DataObject) -> None:
    """On any graph, for any request."""
    matrix = data.draw(graphs(9))
    request = data.draw(requests(len(matrix)))

    assert GpuSetTable(matrix).best_set(request) == brute(matrix, request)


@pytest.mark.parametrize("name", [*REGULAR, "random"])
def test_the_answer_is_the_best_of_all_sets_of_16(name: str) -> None:
    """Any size, any availability; seeded, so that it is the same each time."""
    chance = random.Random(name)
    matrix = graph(MAX_GPUS, REGULAR.get(name, lambda i, j: chance.randrange(10, 2000, 10)))
    table = GpuSetTable(matrix)
    for _ in range(length(1, 200)):
        there = chance.sample(range(MAX_GPUS), chance.randint(1, MAX_GPUS))
        size = chance.randint(1, len(there))
        required = there[: chance.choice((0, 0, 1, size // 2))]
        request = GpuSetRequest(frozenset(there), frozenset(required[:size]), size)

        assert table.best_set(request) == brute(matrix, request)


@given(st.data())
def test_what_could_be_left_is_the_best_of_all_sets(data: st.DataObject) -> None:
    matrix = data.draw(graphs(9))
    gpus = data.draw(st.frozensets(st.integers(0, len(matrix) - 1)))
    size = data.draw(st.sampled_from((2, 4, 8)))
    left = GpuSetTable(matrix).best_link_score(size, gpus)

    assert (float("-inf") if left is None else left) == best_left(matrix, gpus, size)


def test_gpus_behind_one_switch_are_equivalent() -> None:
    """Then the table lists one set of each size. It lists all sets if no two GPUs are equivalent."""
    assert group_equivalent_gpus(graph(16, REGULAR["flat"])) == [[*range(16)]]
    assert group_equivalent_gpus(graph(8, REGULAR["pairs"])) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert group_equivalent_gpus(graph(16, REGULAR["hypercube"])) == [[gpu] for gpu in range(16)]


def test_a_machine_without_gpus_has_a_table_too() -> None:
    assert GpuSetTable(()).best_set(GpuSetRequest(frozenset(), frozenset(), 0)) == ()
    assert GpuSetTable(()).best_set(GpuSetRequest(frozenset(), frozenset(), 1)) == ()
