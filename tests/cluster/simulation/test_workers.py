"""Processes play as we would; none is left; how many GPUs fewer suffice is found."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from gpuplane.cluster.simulation.fewer import gpus_fewer
from gpuplane.cluster.simulation.replay import replay
from gpuplane.cluster.simulation.scenario import Scenario
from gpuplane.cluster.simulation.workers import Ask, Trace, WorkerEnded, answer, workers
from tests.cluster.simulation.small import node, pod, some_nodes, some_pods

TRACE = Trace(tuple(some_nodes(7)), tuple(some_pods(7)))
ASKS = [Ask(policy, seed, Scenario()) for seed in range(3) for policy in ("fgd", "binpack")]


def children() -> set[int]:
    return {each.pid for each in psutil.Process().children(recursive=True)}


@pytest.mark.parametrize("count", [1, 3])
def test_the_number_of_processes_changes_no_figure(count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers come in the order of what is asked, whatever is in the working directory."""
    (tmp_path / "msgspec.py").write_text("raise SystemExit('somebody else wrote this')")
    monkeypatch.chdir(tmp_path)
    before, done = children(), list[int]()
    with workers(TRACE, count) as them:
        found = them.answers(ASKS, lambda: done.append(1))

    assert found == [answer(TRACE, each) for each in ASKS]
    assert len(done) == len(ASKS)
    assert children() <= before


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_process_that_is_killed_is_said(number: signal.Signals) -> None:
    """Nothing waits for it."""
    before = children()
    said = f"ended by {number.name} before it was done"
    with pytest.raises(WorkerEnded, match=said) as ended, workers(TRACE, 2) as them:
        for each in children() - before:
            os.kill(each, number)
        them.answers(ASKS)

    assert ended.value.status == -number
    assert children() <= before


def test_a_process_that_raises_is_said_and_seen(capfd: pytest.CaptureFixture[str]) -> None:
    """Its traceback is on standard error, and nobody waits for the others."""
    before = children()
    said = "that played none, seed 1, ended with exit status 1"
    with pytest.raises(WorkerEnded, match=said) as ended, workers(TRACE, 2) as them:
        them.answers([Ask("none", 1, Scenario()), *ASKS])

    assert ended.value.status == 1
    assert "UnknownPolicy: 'none' is no policy" in capfd.readouterr().err
    assert children() <= before


def test_the_run_that_ended_a_process_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where another one, which was to be played by that process, sees first that it has ended."""
    waits = list[float]()

    class Slow(subprocess.Popen[bytes]):
        def wait(self, timeout: float | None = None) -> int:
            waits.append(timeout or 0)
            if len(waits) == 1:
                time.sleep(0.5)
            return super().wait(timeout)

    monkeypatch.setattr(subprocess, "Popen", Slow)
    with pytest.raises(WorkerEnded, match="that played none, seed 1, ended"), workers(TRACE, 2) as them:
        them.answers([Ask("none", 1, Scenario()), *ASKS * 9])
    assert len(waits) > 1


def test_half_an_answer_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends in the middle of its line."""
    code = "import sys; sys.stdin.readline(); sys.stdin.readline(); print('{', end='', flush=True)"

    class Half(subprocess.Popen[bytes]):
        def __init__(self, _: list[str], **more: Any) -> None:
            super().__init__([sys.executable, "-c", code], **more)

    monkeypatch.setattr(subprocess, "Popen", Half)
    with pytest.raises(WorkerEnded, match="ended with exit status 0"), workers(TRACE, 2) as them:
        them.answers(ASKS)


def test_processes_end_when_we_are_killed() -> None:
    """Their standard input ends."""
    code = """
import sys, time
from gpuplane.cluster.simulation.workers import *
with workers(Trace((), ()), 2) as them:
    print(flush=True)
    time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        theirs = psutil.Process(process.pid).children()
        process.kill()
    assert len(theirs) == 2
    until = time.monotonic() + 30
    while any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in theirs):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_how_many_gpus_fewer() -> None:
    """Of ten nodes with one GPU each six suffice for six shares that fill them; for more than all there is no rest."""
    nodes, pods = [node(f"n{each}", 1) for each in range(10)], [pod(f"p{each}", 1000) for each in range(6)]
    scenario = Scenario(demand=60)

    assert replay(nodes, pods, "fgd", 1, scenario).allocated == 60
    assert gpus_fewer(nodes, pods, "fgd", 1, scenario, 6000) == 4
    assert gpus_fewer(nodes, pods, "fgd", 1, scenario, 5000) == 5
    assert gpus_fewer(nodes, pods, "fgd", 1, scenario, 7000) is None
