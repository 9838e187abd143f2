"""The search, for large machines and for want of a table: never better than the best, and how far from it at most."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.core.choice.question import Question
from gpuplane.core.choice.search import bound, search
from gpuplane.core.choice.sets import Sets
from tests.choice.graphs import Pair, graph, graphs, questions, total


@given(st.data())
def test_a_set_that_meets_the_question_within_the_bound(data: st.DataObject) -> None:
    """Its size, of what is available, with what is required; the best set's worth is between its own and the bound."""
    worths = data.draw(graphs(12))
    question = data.draw(questions(len(worths)))
    found = search(worths, question)

    assert bool(found) == (question.possible and question.size > 0)
    if found:
        best = Sets(worths).best(question)
        assert len(found) == question.size
        assert question.required <= set(found) <= question.there
        assert found == tuple(sorted(found))
        assert total(worths, found) <= total(worths, best) <= bound(worths, question)


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
    question = Question(frozenset(there), frozenset(), size)

    assert search(graph(64, RACK), question) == tuple(expected)


def test_degraded_gpus_come_last_of_those_that_are_as_good() -> None:
    worths = graph(24, lambda i, j: 10)

    assert search(worths, Question(frozenset(range(24)), frozenset(), 2, {0: 1, 2: 1})) == (1, 3)
