"""The play of holdings: it holds, and it finds what is given twice."""

import json
from fractions import Fraction
from itertools import islice
from pathlib import Path

import pytest

from gpuplane.hardware.machinefile import read
from gpuplane.hardware.profiles import find
from gpuplane.sandbox.chaos import Broken, Holdings
from gpuplane.sandbox.chaos.damage import DAMAGES, damage, repair
from gpuplane.sandbox.chaos.given import Given, given_twice
from gpuplane.sandbox.chaos.turns import rounds
from tests.golden import Golden
from tests.sandbox.test_chaos import output

WHOLE = Given(pod="a", resource="nvidia.com/gpu", id="GPU-0", gpu="GPU-0", layout="off", part=Fraction(1))


@pytest.mark.timeout(300)
async def test_nothing_is_given_twice() -> None:
    """Whatever is changed, damaged and lost. The summary says what was done and how often all was checked."""
    status, said = await output("--play", "holdings", "--minutes", "0.3", "--seed", "11", "--json")
    assert status == 0, said
    summary = json.loads(said)
    assert (summary["seed"], summary["machine"], summary["broken"]) == (11, "hgx-h100", "")
    assert summary["rounds"] > 0
    assert summary["checks"]["pods admitted"] > 0
    assert summary["checks"]["quiet moments"] > 0
    assert summary["injections"]["the agent is killed"] > 0


@pytest.mark.timeout(300)
async def test_what_is_given_twice_breaks_the_play() -> None:
    """As soon as it is there: the pods that have it are told, and the steps."""
    path = find("hgx-h100")
    play = Holdings("hgx-h100", read(path.read_bytes(), path.name), seed=1, minutes=1.0)
    what = play._what
    play._what = lambda pod, resource, id: what(pod, resource, id).but(id="GPU-0", gpu="GPU-0", layout="off")  # type: ignore[method-assign]
    with pytest.raises(Broken, match=r"GPU-0 .*chaos-1"):
        async for _ in play.play():
            pass
    assert play.summary().steps


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"pod": "b"}, id="by another pod"),
        pytest.param({"id": "MIG-1", "layout": "halves"}, id="in another layout"),
        pytest.param({"id": "GPU-0::1", "part": Fraction(1, 4)}, id="a quarter of it"),
        pytest.param({"id": "GPU-0::1", "part": Fraction(0)}, id="in time slices"),
    ],
)
def test_what_cannot_be_held_at_once(other: dict[str, object], golden: Golden) -> None:
    """Beside a whole GPU."""
    golden(given_twice([WHOLE, WHOLE.but(**other)]))


def test_what_can_be_held_at_once() -> None:
    """Shares that fill a GPU's memory, time slices, and MIG devices of one layout."""
    for part in (Fraction(1, 4), Fraction(0)):
        shares = [WHOLE.but(id=f"GPU-0::{n}", part=part) for n in range(4)]
        assert given_twice(shares) == ""
    assert given_twice([WHOLE.but(id=f"MIG-{n}", layout="halves") for n in range(2)]) == ""


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_file_is_repaired(tmp_path: Path, how: str) -> None:
    """What is left can be written over."""
    (tmp_path / "share-layouts.json").write_text('{"version": 1, "boot_id": "", "value": {"GPU-0": "512 MiB"}}')
    before = (tmp_path / "share-layouts.json").read_bytes()
    damage(tmp_path, ("share-layouts", "mig-parents"), how)
    left = tmp_path / "share-layouts.json"
    assert not left.is_file() or left.is_symlink() or left.read_bytes() != before
    repair(tmp_path)
    assert not left.exists() or (left.is_file() and not left.is_symlink())


def test_the_plan_is_a_function_of_the_seed() -> None:
    """And of nothing else."""
    assert list(islice(rounds(1), 50)) == list(islice(rounds(1), 50)) != list(islice(rounds(2), 50))
