"""`gpuplane simulate`: what is printed and written of a small trace."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner, Result

from gpuplane.cli.placement import cluster
from gpuplane.cli.simulate import QUEUES, SUFFIXES, command
from gpuplane.placement.configuration import POLICY_NAMES
from gpuplane.placement.policies import POLICIES
from gpuplane.placement.simulation.plot import FORMATS, plot
from gpuplane.placement.simulation.report import Report
from gpuplane.placement.simulation.scenario import Queue
from tests.cli.world import NODES, PODS
from tests.golden import Golden


@pytest.fixture
def trace(tmp_path: Path) -> tuple[object, ...]:
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "pods.csv").write_text(PODS)
    return "--nodes", tmp_path / "nodes.csv", "--pods", tmp_path / "pods.csv"


def simulate(*arguments: object) -> Result:
    return CliRunner().invoke(command, list(map(str, arguments)))


def document(*arguments: object) -> Any:
    shown = simulate(*arguments, "--json")
    assert shown.exit_code == 0, shown.output
    return json.loads(shown.stdout)


def test_the_names_are_those_of_the_engine() -> None:
    """They are written twice so that `--help` needs no NumPy."""
    assert tuple(POLICIES) == POLICY_NAMES
    assert SUFFIXES == FORMATS
    assert Queue.__args__ == QUEUES  # type: ignore[attr-defined]


def test_lines(trace: tuple[object, ...], golden: Golden) -> None:
    """Of two policies; what is compared, too."""
    golden(simulate(*trace, "--policy", "spread,binpack", "--seeds", "1-3", "--fewer").output)


def test_lines_of_a_queue(trace: tuple[object, ...], golden: Golden) -> None:
    """How long pods wait, and what is lost meanwhile."""
    golden(simulate(*trace, "--policy", "binpack", "--seeds", "1", "--departures", "--queue", "fifo").output)


def test_json_has_each_run(trace: tuple[object, ...]) -> None:
    """And the figures over them."""
    found = document(*trace, "--policy", "spread,fgd", "--seeds", "5,1-2")

    assert (found["seeds"], found["gpus"], found["nodes"], found["pods"]) == ([5, 1, 2], 12, 3, 28)
    assert [(each["policy"], each["seed"]) for each in found["runs"]] == [
        (policy, seed) for policy in ("spread", "fgd") for seed in (5, 1, 2)
    ]
    first, second = found["policies"]
    allocated = {
        policy: [each["allocated"] for each in found["runs"] if each["policy"] == policy]
        for policy in ("spread", "fgd")
    }
    assert first["difference"] is None
    assert second["difference"]["mean"] == pytest.approx(sum(allocated["fgd"]) / 3 - sum(allocated["spread"]) / 3)
    assert second["difference"]["least"] == min(b - a for a, b in zip(*allocated.values(), strict=True))
    assert second["gpus_fewer"] is None


def test_processes_change_nothing(trace: tuple[object, ...]) -> None:
    """Nor does who asks."""
    assert document(*trace, "--seeds", "1-2", "--processes", 1) == document(*trace, "--seeds", "1-2", "--processes", 2)


def test_csv_has_the_figures_of_the_runs(trace: tuple[object, ...], tmp_path: Path) -> None:
    """Each on a line; an old file is replaced."""
    out = tmp_path / "out.csv"
    out.write_text("old")
    [run] = document(*trace, "--seeds", "1", "--csv", out)["runs"]
    with out.open() as file:
        rows = [*csv.DictReader(file)]

    assert {(row["policy"], row["seed"]) for row in rows} == {("waste-price", "1")}
    found = {(row["measure"], row["at"]): float(row["value"]) for row in rows}
    assert found["allocated", "end"] == pytest.approx(run["allocated"], abs=1e-4)
    assert found["placed", "shared"] == run["placed"]["shared"]
    assert found["fragmentation", "100"] == pytest.approx(run["points"][99]["fragmentation"], abs=1e-4)


@pytest.mark.parametrize(("suffix", "begins"), [(".png", b"\x89PNG"), (".svg", b"<?xml")])
def test_a_plot(trace: tuple[object, ...], tmp_path: Path, suffix: str, begins: bytes) -> None:
    """The same report gives the same bytes."""
    out = tmp_path / f"plot{suffix}"
    found = document(*trace, "--seeds", "1-2", "--policy", "fgd,binpack", "--plot", out)
    import msgspec

    again = plot(msgspec.convert(found, Report), suffix)
    assert out.read_bytes().startswith(begins)
    assert out.read_bytes() == again


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("pods.csv", "p3,", "p2,"), "pods.csv:5: 'p2' is already in line 4"),
        (("pods.csv", "1,810", "1,-810"), "pods.csv:2: gpu_milli is '-810'"),
        (("pods.csv", "4,1000,0", "5,1000,0"), "no node has more than 4 GPUs"),
        (("nodes.csv", "n1,64000", "n1,many"), "nodes.csv:3: cpu_milli is 'many'"),
        (("nodes.csv", ",4,T4", ",0,"), "no node has more than 0 GPUs"),
    ],
)
def test_a_file_that_is_wrong(
    trace: tuple[object, ...], tmp_path: Path, change: tuple[str, str, str], said: str
) -> None:
    """Exit status 1, with the line."""
    name, old, new = change
    path = tmp_path / name
    path.write_text(path.read_text().replace(old, new))
    shown = simulate(*trace)

    assert shown.exit_code == 1
    assert said in shown.stderr
    assert not shown.stdout


def test_a_file_that_is_too_large(trace: tuple[object, ...], tmp_path: Path) -> None:
    """It is not read."""
    os.truncate(tmp_path / "pods.csv", 1 << 40)
    shown = simulate(*trace)

    assert shown.exit_code == 1
    assert "pods.csv: it is larger than the limit" in shown.stderr


def test_times_are_needed_for_departures(trace: tuple[object, ...], tmp_path: Path) -> None:
    """Of each pod."""
    path = tmp_path / "pods.csv"
    path.write_text(path.read_text().replace(",0,10\n", ",,\n"))

    assert "pod p0 has no creation_time" in simulate(*trace, "--departures").stderr


@pytest.mark.parametrize("package", ["numpy", "matplotlib"])
def test_what_is_not_installed_is_named(
    trace: tuple[object, ...], monkeypatch: pytest.MonkeyPatch, package: str, tmp_path: Path
) -> None:
    """With how to get it; a plot alone needs matplotlib."""
    monkeypatch.setattr(cluster, "find_spec", lambda name: None if name == package else object())
    shown = simulate(*trace, "--seeds", "1", "--plot", tmp_path / "plot.svg")

    assert shown.exit_code == 1
    assert "pip install 'gpuplane[simulation]'" in shown.stderr
    assert simulate(*trace, "--seeds", "1").exit_code == (package == "numpy")


def test_help_needs_no_numpy() -> None:
    """Nor does a wrong command line."""
    code = "import sys; from gpuplane.cli import simulate; print('numpy' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)

    assert shown.stdout == "False\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_its_processes(tmp_path: Path, number: signal.Signals) -> None:
    """In the middle of its runs."""
    (tmp_path / "nodes.csv").write_text(NODES.replace(",4,T4", ",250,T4").replace("64000", "99999999"))
    (tmp_path / "pods.csv").write_text(PODS)
    words = ["--nodes", tmp_path / "nodes.csv", "--pods", tmp_path / "pods.csv", "--seeds", "1-999", "--processes", "2"]
    with subprocess.Popen(
        [sys.executable, "-m", "gpuplane", "simulate", *map(str, words)], stderr=subprocess.PIPE, text=True
    ) as process:
        us, until = psutil.Process(process.pid), time.monotonic() + 60
        while len(theirs := us.children()) < 2:
            assert time.monotonic() < until
            time.sleep(0.05)
        time.sleep(0.5)
        process.send_signal(number)
        assert process.stderr is not None
        said = process.stderr.read()
        assert process.wait(60) == -number, said
    assert said == ""
    assert not [each for each in theirs if each.is_running()]
