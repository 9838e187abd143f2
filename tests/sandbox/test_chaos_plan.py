"""The plan of chaos: a function of its seed, and about machines that there can be."""

from itertools import islice

import msgspec
import pytest

from gpuplane.core.kinds.nvidia.faults import CATALOGUE
from gpuplane.hardware.machinefile import read
from gpuplane.hardware.profiles import find
from gpuplane.model.machine import MachineFile
from gpuplane.sandbox.chaos.plan import HAPPENS, UNTOLD, bursts, codes
from gpuplane.sandbox.chaos.steps import Burst, Death, Edit
from tests.lengths import length


def machine(profile: str) -> MachineFile:
    """A profile as a value."""
    path = find(profile)
    return read(path.read_bytes(), path.name)


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


def test_the_seed_decides_alone() -> None:
    """Twice the same is the same, and another is another."""
    first, again, other = (list(islice(bursts(machine("hgx-h100"), seed), 100)) for seed in (1, 1, 2))

    assert first == again
    assert first != other


@pytest.mark.parametrize("profile", ["hgx-h100", "a100-mig", "dgx1-v100", "t4"])
def test_each_edit_is_a_machine(profile: str, seed: int) -> None:
    """The agent would take it, and no step is about what is not there."""
    for edit in edits(list(islice(bursts(machine(profile), seed), length(100, 1000)))):
        if edit.file is not None:
            assert read(msgspec.json.encode(edit.file), edit.what) is not None


def test_every_fault_has_its_turn() -> None:
    """All of the catalogue but what only the agent can find, in a long play."""
    files = [edit.file for edit in edits(list(islice(bursts(machine("a100-mig"), 4), 4000))) if edit.file is not None]
    seen = {code for file in files for code in codes(file)}

    assert {*CATALOGUE, *HAPPENS} - seen - UNTOLD == set()
