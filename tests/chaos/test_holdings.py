"""The play of holdings: it holds, and it finds what is given twice."""

from fractions import Fraction
from pathlib import Path

import pytest

from tests.chaos.damage import DAMAGES, damage, repair
from tests.chaos.given import Given, given_twice
from tests.chaos.holdings import Holdings
from tests.chaos.setups import profile
from tests.chaos.site import Broken
from tests.lengths import length, soaking

WHOLE = Given(pod="a", resource="nvidia.com/gpu", id="GPU-0", gpu="GPU-0", layout="off", part=Fraction(1))


@pytest.mark.timeout(length(300, 3000))
async def test_nothing_is_given_twice(seed: int) -> None:
    """Whatever is changed, damaged and lost. `make test` plays one history alone, which has a bit of everything."""
    play = Holdings(profile("hgx-h100"), seed if soaking() else 11, length(18, 600))
    async for _ in play.play():
        pass
    print(dict(play.injections), dict(play.checks))
    assert play.rounds > 0
    assert play.checks["pods admitted"] > 0
    assert play.checks["quiet moments"] > 0
    assert play.injections["the agent is killed"] > 0


async def test_what_is_given_twice_breaks_the_play() -> None:
    """As soon as it is there: the pods that have it are told, and the steps."""
    play = Holdings(profile("hgx-h100"), seed=1, seconds=60)
    what = play._what
    play._what = lambda pod, resource, id: what(pod, resource, id).but(id="GPU-0", gpu="GPU-0", layout="off")  # type: ignore[method-assign]
    with pytest.raises(Broken, match=r"GPU-0 .*chaos-1") as broken:
        async for _ in play.play():
            pass
    assert play.steps[-1] in str(broken.value)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"pod": "b"}, id="by another pod"),
        pytest.param({"id": "MIG-1", "layout": "halves"}, id="in another layout"),
        pytest.param({"id": "GPU-0::1", "part": Fraction(1, 4)}, id="a quarter of it"),
        pytest.param({"id": "GPU-0::1", "part": Fraction(0)}, id="in time slices"),
    ],
)
def test_what_cannot_be_held_at_once(other: dict[str, object]) -> None:
    """Beside a whole GPU."""
    assert given_twice([WHOLE]) == ""
    assert given_twice([WHOLE, WHOLE.but(**other)]).startswith("GPU-0 is given out ")


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
