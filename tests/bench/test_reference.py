"""A time of computation is compared with a reference of the same run; the row has the ratio, and the time beside it."""

import asyncio
import subprocess
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from bench import node, reference
from bench.reference import bare_start, in_loops, loop, loop_time, nothing
from bench.row import Row
from tests.node.host.hook.build import missing

LoopTakes = Callable[[float], list[float]]


@pytest.fixture
def loop_takes(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopTakes]:
    """Begins a run on a machine where the loop takes so many milliseconds. Gives the times that were measured."""

    def takes(milliseconds: float) -> list[float]:
        measured = list[float]()

        def once() -> float:
            measured.append(milliseconds / 1e3)
            return measured[-1]

        monkeypatch.setattr(reference, "loop", once)
        loop_time.cache_clear()
        return measured

    yield takes
    loop_time.cache_clear()


def test_the_loop_is_measured_once_a_run(loop_takes: LoopTakes) -> None:
    """All rows have the same reference."""
    measured = loop_takes(10)
    rows = [in_loops(Row("one", 1, 2, "ms")) for _ in range(3)]

    assert rows[0] == rows[1] == rows[2]
    assert len(measured) == reference.LOOPS


@pytest.mark.parametrize("slower", [1, 2])
def test_a_budget_in_loops_is_as_strict_on_a_slower_machine(loop_takes: LoopTakes, slower: int) -> None:
    """There a figure and the loop both take longer; the time itself is reported beside the ratio."""
    loop_takes(10 * slower)

    row = in_loops(Row("one", 4 * slower, 5, "ms", "of 3"))

    assert (row.what, row.unit, row.how) == ("one", "loops", f"{4 * slower} ms, of 3")
    assert (row.figure, row.budget) == pytest.approx((0.4, 0.5))
    assert row.kept
    assert not in_loops(Row("one", 6 * slower, 5, "ms")).kept


@pytest.mark.parametrize(("unit", "one", "loops"), [("s", 1000, "loops"), ("% of a core", 10, "loops/s")])
def test_a_time_in_another_unit(loop_takes: LoopTakes, unit: str, one: float, loops: str) -> None:
    """A percent of a core is 10 ms in each second."""
    loop_takes(20)
    row = in_loops(Row("one", 3, 4, unit))

    assert (row.unit, row.how) == (loops, f"3 {unit}")
    assert (row.figure, row.budget) == pytest.approx((3 * one / 20, 4 * one / 10))


def test_the_loop_is_as_long_as_its_turns() -> None:
    """So it is work that nothing skips."""
    assert 0 < loop(1_000) < loop(100_000)


def test_a_bare_server_registers() -> None:
    """At the same kubelet as an agent, which has its list then; no process of it is left."""
    before = set(psutil.Process().children(recursive=True))

    assert asyncio.run(bare_start(8)) > 0
    assert set(psutil.Process().children(recursive=True)) <= before


@pytest.mark.skipif(bool(missing()), reason="needs a compiler")
def test_the_program_that_does_nothing(tmp_path: Path) -> None:
    """It ends well, whatever it is asked."""
    ended = subprocess.run([nothing(tmp_path), "create-container"], input=b"{}", capture_output=True, timeout=60)

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")


def test_the_start_is_compared_with_a_bare_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """In turns, so that both meet the same machine."""
    starts = list[str]()

    async def agent(*arguments: object, **_: object) -> float:
        starts.append("agent")
        return 0.3

    async def bare(count: int) -> float:
        starts.append("bare")
        return 0.1

    monkeypatch.setattr(node, "STARTS", 2)
    monkeypatch.setattr(node, "_start", agent)
    monkeypatch.setattr(node, "bare_start", bare)
    monkeypatch.setattr(node, "driven", lambda: nullcontext(SimpleNamespace(flags=())))
    few, many, library = asyncio.run(node.start())

    assert starts[:8] == ["agent", "bare"] * 4
    assert few.unit == many.unit == "×"
    assert (few.figure, many.figure, library.figure) == pytest.approx((3, 3, 1))
    assert few.how.startswith("0.300 s over 0.100 s")
