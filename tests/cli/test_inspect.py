"""`gpuplane inspect`: the picture on a terminal of any width, and for programs that read lines."""

from collections.abc import Callable

import pytest

from gpuplane.cli import inspect
from gpuplane.model.control import Picture
from gpuplane.model.snapshot import Allocation, Condition, Ledger, Release, Snapshot
from gpuplane.model.views import Left, Offer, Offered, Resource, Unit

MIG = "MIG-4cf8db2d-06c0-7d70-1a51-e59b25b2c16"
GPU = "GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16"
NAME = "nvidia.com/mig-1g.10gb.shared"
Drawn = Callable[[Picture, int], str]
MARKED = "see [/x] and [red]this[/red] at https://[fd00::1]:6443"


def picture(trouble: str = MARKED, release: Release | None = None) -> Picture:
    """Two shares whose ids differ at their ends, one of them held and in trouble; a GPU that is not offered."""
    shares = tuple(
        Offered(id=f"{MIG}0::{i}", unit=Unit(id=f"{MIG}0", gpu=f"{GPU}0", index="0:0", model="A"), trouble=why)
        for i, why in enumerate((trouble, ""))
    )
    snapshot = Snapshot(
        allocations=(Allocation(resource=NAME, devices=(f"{MIG}0::0",), pod="ml/train"),),
        conditions={"node object": Condition("failing", MARKED, since=90.0)},
        ledger=Ledger(release=release),
    )
    offer = Offer(resources=(Resource(name=NAME, devices=shares),), left=(Left(f"{GPU}1", MARKED),))
    return Picture(snapshot=snapshot, offer=offer, now=100.0)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Drawn:
    """What a terminal of some width shows."""

    def draw(of: Picture, width: int) -> str:
        monkeypatch.setenv("COLUMNS", str(width))
        inspect.draw(of)
        return capsys.readouterr().out

    return draw


@pytest.mark.parametrize("width", [20, 80, 120, 300])
def test_ids_are_whole_on_every_terminal(width: int, drawn: Drawn) -> None:
    """They differ at their ends."""
    shown = drawn(picture(), width)
    for id in (f"{MIG}0::0", f"{MIG}0::1", f"{GPU}1"):
        assert sum(line.startswith(id) for line in shown.splitlines()) == 1, shown


def test_reasons_are_shown_as_they_are(drawn: Drawn) -> None:
    """What looks like markup in them is none."""
    assert drawn(picture(), 300).count(MARKED) == 3
    assert MARKED in drawn(picture(release=Release(until=350.0, why=MARKED)), 300).splitlines()[0]


def test_away_from_a_terminal_each_thing_is_a_line_of_columns_apart_by_tabs() -> None:
    assert list(inspect.lines(picture("two\nlines\tof it"))) == [
        f"device\t{MIG}0::0\t{NAME}\tunhealthy\ttwo lines of it\tml/train",
        f"device\t{MIG}0::1\t{NAME}\thealthy",
        f"device\t{GPU}1\t-\tnot offered\t{MARKED}",
        f"part\tnode object\tfailing\t10 s\t{MARKED}",
    ]


def test_a_release_is_shown_with_its_end() -> None:
    shown = list(inspect.lines(picture(release=Release(until=350.0, why="reset"))))
    assert shown[0] == "release\tfor another 250 s\treset"


def test_what_is_waited_for_is_shown(drawn: Drawn) -> None:
    waiting = Picture(snapshot=Snapshot(), offer=Offer(waiting=MARKED), now=1.0)
    assert list(inspect.lines(waiting)) == [f"waiting\t{MARKED}"]
    assert MARKED in drawn(waiting, 300)
