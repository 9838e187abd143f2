"""The plans of chaos: functions of their seeds, and no fault is left out."""

from collections.abc import Callable, Iterator
from itertools import islice

import pytest

from gpuplane.node.core.kinds.nvidia.faults import CATALOGUE
from tests.chaos.plan import HAPPENS, UNTOLD, bursts, codes
from tests.chaos.setups import profile
from tests.chaos.steps import Burst, Death, Edit
from tests.chaos.turns import rounds


@pytest.mark.parametrize("plan", [lambda seed: bursts(profile("hgx-h100"), seed), rounds], ids=["faults", "holdings"])
def test_the_seed_decides_alone(plan: Callable[[int], Iterator[object]]) -> None:
    """So that a play can be repeated: twice the same is the same, and another is another."""
    first, again, other = (list(islice(plan(seed), 100)) for seed in (1, 1, 2))

    assert first == again
    assert first != other


def edits(plan: list[Burst]) -> list[Edit]:
    """All edits of the machine file, in their order."""
    found: list[Edit | None] = []
    for turn in (turn for burst in plan for turn in burst):
        match turn.step:
            case Edit():
                found.append(turn.step)
            case Death(before, _, during):
                found += [before, *during]
    return [each for each in found if each is not None]


def test_every_fault_has_its_turn() -> None:
    """All of the catalogue but what only the agent can find, in a long play."""
    files = [edit.file for edit in edits(list(islice(bursts(profile("a100-mig"), 4), 4000))) if edit.file is not None]
    seen = {code for file in files for code in codes(file)}

    assert {*CATALOGUE, *HAPPENS} - seen - UNTOLD == set()
