"""`gpuplane inspect`: the picture on a terminal of any width, and for programs that read lines."""

import json
from collections.abc import Callable

import msgspec
import pytest

from gpuplane.cli import inspect
from gpuplane.core.resources.offer import offer
from gpuplane.core.step import step
from gpuplane.model.config import Settings
from gpuplane.model.control import Picture
from gpuplane.model.facts import Configured, Drained, Fact, Happened, Listed, Looked, ReleaseWished, Stood
from gpuplane.model.health import Diagnosis, Drain
from gpuplane.model.machine import Fault, Gpu, Machine
from gpuplane.model.snapshot import LET_GO, Allocation, Condition, Ledger, Release, Snapshot
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
    assert width < 80 or sum(line.split()[1:3] == [NAME, "healthy"] for line in shown.splitlines()) == 1, shown


def test_shares_that_stand_alike_are_one_row_for_people(drawn: Drawn) -> None:
    """Of one device, one after the other: there may be thousands. For programs each is a line."""
    unit = Unit(id=f"{GPU}7", gpu=f"{GPU}7", index="7", model="L4")
    shares = tuple(Offered(id=f"{GPU}7::{n}", unit=unit) for n in range(9))
    offered = Offer(resources=(Resource(name=NAME, devices=shares),))
    held = (Allocation(NAME, (f"{GPU}7::3", f"{GPU}7::4"), pod="ml/train", container="main"),)
    shown = Picture(snapshot=Snapshot(allocations=held), offer=offered, now=1.0)

    rows = [line.split()[0] for line in drawn(shown, 300).splitlines() if GPU in line]
    assert rows == [f"{GPU}7::0…2", f"{GPU}7::3…4", f"{GPU}7::5…8"]
    assert len([line for line in inspect.lines(shown) if line.startswith("device")]) == 9


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


def test_how_containers_are_given_devices_is_shown_with_the_reason(drawn: Drawn) -> None:
    """Once the machine and its configuration are known."""
    why = "this agent keeps no CDI specifications"
    assert next(inspect.lines(ward())) == f"strategy\tenvvar\t{why}"
    assert drawn(ward(), 300).splitlines()[0] == f"Containers are given devices by envvar: {why}"
    configured = ward(Configured(Settings(device_list_strategy=("volume-mounts", "cdi-cri"))))
    assert next(inspect.lines(configured)) == "strategy\tvolume-mounts,cdi-cri"


def test_a_release_is_shown_with_its_end() -> None:
    shown = list(inspect.lines(picture(release=Release(until=350.0, why="reset"))))
    assert shown[0] == "release\tfor another 4 min 10 s\treset"


def test_what_is_waited_for_is_shown(drawn: Drawn, capsys: pytest.CaptureFixture[str]) -> None:
    waiting = Picture(snapshot=Snapshot(), offer=Offer(waiting=MARKED), now=1.0)
    assert list(inspect.lines(waiting)) == [f"waiting\t{MARKED}"]
    assert MARKED in drawn(waiting, 300)
    assert list(inspect.health_lines(waiting)) == [f"waiting\t{MARKED}"]
    inspect.draw_health(waiting)
    assert MARKED in capsys.readouterr().out


def ward(*facts: Fact) -> Picture:
    """Five GPUs, of which one is well; at 100 s. The facts come one a second, from 12 s on."""
    faults = {2: Fault("fabric-pending", MARKED), 3: Fault("remap-pending", "a row waits")}
    plain = tuple(Gpu(index=i, uuid=f"{GPU}{i}") for i in range(5))
    ill = tuple(gpu.but(faults=(faults[gpu.index],)) if gpu.index in faults else gpu for gpu in plain)
    seen = (Configured(Settings()), Listed((), 0.0), Looked(Machine(gpus=plain)), Looked(Machine(gpus=ill)))
    drained = Drained(f"{GPU}4", Drain(why="fan", since=10.0, until=7300.0, wall=1.0))
    snapshot = Snapshot()
    for number, fact in enumerate(
        (*seen, Happened(code="xid-79", gpu=f"{GPU}1", message=MARKED, at=12.0), drained, *facts)
    ):
        snapshot = step(snapshot, fact, 8.0 + number)
    return Picture(snapshot=snapshot, offer=offer(snapshot), now=100.0)


def test_health_is_a_line_a_device() -> None:
    """Index, UUID, state, since, reason, what ends it and what to do, apart by tabs."""
    reset = "a reset of the GPU, or gpuplane health restore"
    shown = [line.split("\t") for line in inspect.health_lines(ward())]

    assert [line[:6] for line in shown] == [
        ["0", f"{GPU}0", "healthy"],
        ["1", f"{GPU}1", "unhealthy", "1 min 28 s", f"xid-79: {MARKED}", reset],
        ["2", f"{GPU}2", "suspect", "1 min 29 s", f"fabric-pending: {MARKED}", "it is over once it is no longer seen"],
        ["3", f"{GPU}3", "degraded", "1 min 29 s", "remap-pending: a row waits", reset],
        ["4", f"{GPU}4", "drained", "1 min 30 s", "fan", "gpuplane health restore, or its time, in 2 h"],
    ]
    assert all(line[6] for line in shown[1:])


def test_the_node_comes_first_where_something_is_wrong_with_it() -> None:
    """And its GPUs, which it takes with it, say so."""
    shown = [line.split("\t") for line in inspect.health_lines(ward(Looked(MISSING)))]

    assert shown[0][:5] == ["node", "-", "unhealthy", "1 min 26 s", "driver-missing: no libnvidia-ml.so.1"]
    assert shown[1][:5] == ["0", f"{GPU}0", "unhealthy", "1 min 26 s", "as the node: driver-missing"]
    assert shown[2][4].startswith("xid-79")


def test_only_the_node_says_what_ends_a_release() -> None:
    """With the time that is left; its GPUs refer to it."""
    release = ReleaseWished(Release(until=350.0, why="firmware"))
    shown = [
        line.split("\t") for line in inspect.health_lines(ward(release, Stood("driver", Condition("waiting", LET_GO))))
    ]

    assert shown[0][4:] == [
        "not-looked: the driver is let go of: firmware", "gpuplane driver take, or its time, in 4 min 10 s",
    ]  # fmt: skip
    assert shown[1][4:] == ["as the node: not-looked"]


MISSING = Machine(gpus=None, faults=(Fault("driver-missing", "no libnvidia-ml.so.1"),))


def test_health_for_machines_has_every_key() -> None:
    """Of each device, also where there is nothing to say; the same each time, in the same order."""
    document = json.loads(msgspec.json.encode(inspect.health_document(ward())))

    assert document["now"] == 100.0
    assert [each["index"] for each in document["devices"]] == list("01234")
    assert {tuple(each) for each in document["devices"]} == {Diagnosis.__struct_fields__}
    assert document["devices"][1]["counts"] == {"xid-79": 1}
    assert document == json.loads(msgspec.json.encode(inspect.health_document(ward())))


@pytest.mark.parametrize("width", [20, 80, 120, 300])
def test_health_is_whole_on_every_terminal(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ids are not cut, and what looks like markup is none."""
    monkeypatch.setenv("COLUMNS", str(width))
    inspect.draw_health(ward(Looked(MISSING)))
    shown = capsys.readouterr().out

    for index in range(5):
        assert sum(f"{GPU}{index}" in line for line in shown.splitlines()) == 1, shown
    assert (MARKED in shown) == (width == 300)


def test_inspect_says_in_healths_words_what_kubelet_is_told() -> None:
    """A drain not twice; what is served all the same with its reason; probing from when only a probe is missing."""
    settings, gone = Settings(probe_period=5.0), Drained(f"{GPU}1", None)
    shown = [line.split("\t") for line in inspect.lines(ward(Configured(settings), gone)) if line.startswith("device")]

    assert {line[1][-1]: line[3:] for line in shown} == {
        "0": ["healthy"],
        "1": ["probing", f"xid-79: {MARKED}"],
        "2": ["suspect", f"fabric-pending: {MARKED}"],
        "3": ["degraded", "remap-pending: a row waits"],
        "4": ["drained", "fan"],
    }
