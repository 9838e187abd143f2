"""The rows of placement: what they count, and that they are missed where traces are not there."""

import asyncio
import shutil
from pathlib import Path

import pytest

from bench import __main__ as bench
from bench import placement, traces
from gpuplane.cluster.simulation.results import Run
from tests.cli.world import NODES, PODS


def run(policy: str, seed: int, allocated: float, placed: dict[str, int]) -> Run:
    return Run(policy, seed, allocated, 5.0, (), {"1": 100, "8": 10}, placed, {}, None, None)


@pytest.fixture
def openb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Small traces in the place of openb's; multigpu30 has no times, and a clone."""
    monkeypatch.setenv("GPUPLANE_OPENB", str(tmp_path))
    monkeypatch.setattr(traces, "SEEDS", range(2))
    traces.read.cache_clear()
    (tmp_path / traces.NODES).write_text(NODES)
    for each in (traces.DEFAULT, *traces.OTHERS):
        (tmp_path / f"openb_pod_list_{each}.csv").write_text(PODS)
    bare = "\n".join(",".join(line.split(",")[:5]) for line in PODS.splitlines())
    (tmp_path / "openb_pod_list_multigpu30.csv").write_text(f"{bare}\nclone,1000,1000,4,1000\n")
    return tmp_path


def test_without_the_traces_it_is_missed(
    openb: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says which, and where they should be."""
    shutil.move(openb / traces.NODES, openb / "elsewhere")
    monkeypatch.setattr(placement, "MEASURES", (placement.default_trace,))

    assert bench.main(["--only", "placement", "--json"]) == 1
    said = capsys.readouterr().out
    assert str(openb) in said
    assert traces.NODES in said
    assert "GPUPLANE_OPENB" in said


def test_each_trace_has_rows(openb: Path) -> None:
    """What is allocated, its classes, and with departures; an openb of another shape misses what it does not reach."""
    measures = (placement.default_trace, placement.other_traces, placement.with_departures)
    rows = [row for measure in measures for row in asyncio.run(measure())]

    assert not rows[0].kept  # no openb: FGD does not have the published figure
    for trace in traces.OTHERS:
        assert sum(row.what.startswith(trace) for row in rows) == 3
    assert len(rows) == 4 + 2 * len(traces.OTHERS) + 1 + len(traces.OTHERS)


def test_a_trace_without_times_has_those_of_the_default(openb: Path) -> None:
    """Of the pod of the same name; a clone that of its class."""
    known = {each.name: each.lifetime for each in traces.read(traces.DEFAULT).pods}
    *same, clone = traces.read("multigpu30").pods

    assert {each.name: each.lifetime for each in same} == known
    assert clone.lifetime in {each.lifetime for each in traces.read(traces.DEFAULT).pods if each.demand_milli == 4000}


def test_figures_are_what_is_lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Budgets are the most that a figure may be."""
    fgd = [run("fgd", 1, 95.4, {"1": 70, "8": 8}), run("fgd", 2, 95.1, {"1": 70, "8": 8})]
    ours = [run("waste-price", 1, 96.3, {"1": 71, "8": 8}), run("waste-price", 2, 96.3, {"1": 72, "8": 7})]
    monkeypatch.setattr(placement, "missing", list)
    monkeypatch.setattr(placement, "play", lambda trace, scenario: (fgd, ours))
    published, lacking, ahead, classes = asyncio.run(placement.default_trace())

    rows = (published, lacking, ahead, classes)
    assert [row.figure for row in rows] == pytest.approx([0.15, 3.7, -0.9, 5.0])  # class 8: from 80 % to 75 %
    assert [row.kept for row in rows] == [True, True, True, False]
    behind = asyncio.run(placement.with_departures())
    assert [row.figure for row in behind] == pytest.approx([-1.05] * 5)
    assert all(row.kept for row in behind)
