"""`gpuplane sandbox up` as a process: how it ends, what it keeps, and two of it at once."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cluster.controlplane import DEADLINE

pytestmark = [pytest.mark.xdist_group("played cluster"), pytest.mark.timeout(600)]
Json = dict[str, Any]
SECONDS = 2 * DEADLINE


def gpuplane(*words: object, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """A command of ours, to its end."""
    command = [sys.executable, "-m", "gpuplane", *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS, env={**os.environ, **(environment or {})}
    )


@contextmanager
def up(programs: Path, *words: object) -> Iterator[tuple[psutil.Process, Json]]:
    """A cluster that runs until the block ends: its process, and what it says of itself."""
    command = [sys.executable, "-m", "gpuplane", "sandbox", "up", "--json", "--control-plane", programs, *words]
    with subprocess.Popen([str(each) for each in command], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            text = ""
            while not text.rstrip().endswith("}"):
                line = process.stdout.readline()
                assert line, f"it ended with {process.wait()}"
                text += line
            yield psutil.Process(process.pid), json.loads(text)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(SECONDS)


def until(found: Callable[[], Any]) -> Any:
    end = time.monotonic() + SECONDS
    while not (there := found()):
        assert time.monotonic() < end, "it did not become so"
        time.sleep(0.1)
    return there


def of_cluster(directory: Path) -> list[psutil.Process]:
    """The processes that have something of a cluster in their command lines, or are in its directory."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(directory) in " ".join(process.cmdline()) or process.cwd().startswith(str(directory)):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied):
            continue
    return [each for each in found if each.pid != os.getpid()]


def test_nothing_is_left_when_it_is_killed_and_it_starts_again_there(programs: Path, state: Path) -> None:
    """With what was stored: a ConfigMap, and a machine file that somebody has edited."""
    directory = state / "cluster"
    with up(programs, "--nodes", "t4", "--state-dir", directory) as (process, record):
        assert record["nodes"] == ["t4-0"]
        machine = directory / "nodes/t4-0/machine.yaml"
        machine.write_text(machine.read_text() + "# mine\n")
        assert len(of_cluster(directory)) >= 4
        shown = gpuplane("sandbox", "status", "--state-dir", directory, "--json")
        assert json.loads(shown.stdout) == record
        again = gpuplane("sandbox", "up", "--control-plane", programs, "--state-dir", directory)
        assert (again.returncode, "already" in again.stderr) == (1, True)
        process.kill()
        until(lambda: not of_cluster(directory))
    assert gpuplane("sandbox", "status", "--state-dir", directory).returncode == 1
    with up(programs, "--nodes", "t4", "--state-dir", directory) as (_, record):
        assert (directory / "nodes/t4-0/machine.yaml").read_text().endswith("# mine\n")
        assert gpuplane("sandbox", "down", "--state-dir", directory).returncode == 0
    until(lambda: not of_cluster(directory))


def test_two_at_once_have_nothing_in_common(programs: Path, state: Path) -> None:
    one, other = state / "one", state / "other"
    kubeconfig = state / "config"
    kubeconfig.write_text("apiVersion: v1\nkind: Config\nclusters: []\ncontexts: []\nusers: []\n")
    with (
        up(programs, "--no-agents", "--nodes", "t4", "--state-dir", one) as (_, first),
        up(programs, "--no-agents", "--nodes", "t4", "--state-dir", other, "--kubeconfig", state / "k") as (_, second),
    ):
        assert first["url"] != second["url"]
        assert second["url"] in (state / "k").read_text()
        assert (state / "k").stat().st_mode & 0o777 == 0o600
    until(lambda: not of_cluster(state))


def test_it_runs_detached_until_it_is_told_to_end(programs: Path, state: Path) -> None:
    directory = state / "detached"
    words = ("--control-plane", programs, "--state-dir", directory, "--nodes", "t4", "--no-agents", "--detach")
    environment = {"KUBECONFIG": str(state / "merged")}
    made = gpuplane("sandbox", "up", *words, "--merge", environment=environment)
    assert made.returncode == 0, made.stderr
    try:
        assert "gpuplane-sandbox" in (state / "merged").read_text()
    finally:
        ended = gpuplane("sandbox", "down", "--state-dir", directory)
    assert (ended.returncode, "has ended" in ended.stdout) == (0, True)
    assert "gpuplane-sandbox" not in (state / "merged").read_text()
    until(lambda: not of_cluster(directory))
