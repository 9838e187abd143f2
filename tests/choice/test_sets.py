"""The table's answer is the best set: it equals what trying every set finds."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplane.core.choice.question import Question
from gpuplane.core.choice.sets import MOST, Sets, kinds
from tests.choice.graphs import REGULAR, best_left, brute, graph, graphs, questions
from tests.lengths import length


@settings(max_examples=length(150, 3000))
@given(st.data())
def test_the_answer_is_the_best_of_all_sets(data: st.DataObject) -> None:
    """On any graph, for any question."""
    worths = data.draw(graphs(9))
    question = data.draw(questions(len(worths)))

    assert Sets(worths).best(question) == brute(worths, question)


@pytest.mark.parametrize("name", [*REGULAR, "random"])
def test_the_answer_is_the_best_of_all_sets_of_16(name: str) -> None:
    """Any size, any availability; seeded, so that it is the same each time."""
    chance = random.Random(name)
    worths = graph(MOST, REGULAR.get(name, lambda i, j: chance.randrange(10, 2000, 10)))
    table = Sets(worths)
    for _ in range(length(5, 200)):
        there = chance.sample(range(MOST), chance.randint(1, MOST))
        size = chance.randint(1, len(there))
        required = there[: chance.choice((0, 0, 1, size // 2))]
        question = Question(frozenset(there), frozenset(required[:size]), size)

        assert table.best(question) == brute(worths, question)


@given(st.data())
def test_what_could_be_left_is_the_best_of_all_sets(data: st.DataObject) -> None:
    worths = data.draw(graphs(9))
    gpus = data.draw(st.frozensets(st.integers(0, len(worths) - 1)))
    size = data.draw(st.sampled_from((2, 4, 8)))
    left = Sets(worths).left(size, gpus)

    assert (float("-inf") if left is None else left) == best_left(worths, gpus, size)


def test_gpus_behind_one_switch_are_twins() -> None:
    """They need no more than a row a size; where no two are twins, all sets are rows."""
    assert kinds(graph(16, REGULAR["flat"])) == (tuple(range(16)),)
    assert kinds(graph(8, REGULAR["pairs"])) == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert kinds(graph(16, REGULAR["hypercube"])) == tuple((gpu,) for gpu in range(16))


def test_a_machine_without_gpus_has_a_table_too() -> None:
    assert Sets(()).best(Question(frozenset(), frozenset(), 0)) == ()
    assert Sets(()).best(Question(frozenset(), frozenset(), 1)) == ()
