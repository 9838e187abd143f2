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

import msgspec
import psutil
import pytest
from click.testing import CliRunner, Result

from gpuplane.cli.commands.simulate import PLOT_FILE_SUFFIXES, QUEUE_NAMES, command
from gpuplane.cli.commands.simulate.output import _significant, page
from gpuplane.cli.kit import cluster
from gpuplane.cli.kit.presenter import print_page
from gpuplane.cluster.simulation.plot import PLOT_SUFFIXES, plot
from gpuplane.cluster.simulation.report import Report
from gpuplane.cluster.simulation.scenario import Queue
from gpuplane.cluster.simulation.workers import WorkerEnded
from tests.cli.world import NODES, PODS
from tests.cluster.reading.small import node, objects, pod
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
    assert PLOT_FILE_SUFFIXES == PLOT_SUFFIXES
    assert Queue.__args__ == QUEUE_NAMES  # type: ignore[attr-defined]


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
    assert found["pods_placed", "shared"] == run["pods_placed"]["shared"]
    assert found["fragmentation", "100"] == pytest.approx(run["points"][99]["fragmentation"], abs=1e-4)


@pytest.mark.parametrize(
    ("suffix", "begins", "queue"), [(".png", b"\x89PNG", ()), (".svg", b"<?xml", ("--departures", "--queue", "fifo"))]
)
def test_a_plot(trace: tuple[object, ...], tmp_path: Path, suffix: str, begins: bytes, queue: tuple[str, ...]) -> None:
    """The same report gives the same bytes."""
    out = tmp_path / f"plot{suffix}"
    found = document(*trace, "--seeds", "1-2", "--policy", "fgd,binpack", *queue, "--plot", out)
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
    code = "import sys; from gpuplane.cli.commands import simulate; print('numpy' in sys.modules)"
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


@pytest.mark.parametrize(
    ("policies", "says"),
    [
        ("fgd,fgd", "'fgd' is there twice"),
        ("fgd,fgd:1", "'fgd:1' is there twice: 'fgd' is the same"),
        ("fgd,spread,fgd:3", "'fgd:3' is there twice: 'fgd' is the same"),
        ("fgd:1+spread:2,spread:1+fgd:0.5", "'spread:1+fgd:0.5' is there twice: 'fgd:1+spread:2' is the same"),
    ],
)
def test_a_policy_is_there_once(trace: tuple[object, ...], policies: str, says: str) -> None:
    """By any text that means it: weights count beside each other."""
    shown = simulate(*trace, "--policy", policies)

    assert shown.exit_code == 2
    assert says in shown.stderr


def test_seeds_with_which_a_policy_does_worse_are_counted(trace: tuple[object, ...]) -> None:
    """The others have their mean."""
    found = document(*trace, "--policy", "binpack,spread", "--seeds", "1-3", "--fewer")
    first, second = found["policies"]
    allocated = {(each["policy"], each["seed"]): each["allocated"] for each in found["runs"]}
    enough = [seed for seed in (1, 2, 3) if allocated["spread", seed] >= allocated["binpack", seed]]

    assert 0 < len(enough) < 3
    assert second["fewer_found"] == len(enough)
    assert second["gpus_fewer"]["least"] >= 0
    assert (first["gpus_fewer"], first["fewer_found"]) == (None, None)
    lines = simulate(*trace, "--policy", "binpack,spread", "--seeds", "1-3", "--fewer").stdout.splitlines()
    assert f"fewer found\tspread\t{len(enough)}\t3" in lines


def test_a_queue_shows_no_acceptance(trace: tuple[object, ...]) -> None:
    """All get a place in the end."""
    shown = simulate(*trace, "--seeds", "1", "--departures", "--queue", "backfill").stdout

    assert "wait_s\t" in shown
    assert "acceptance" not in shown
    assert "refused" not in shown


def test_a_queue_shows_who_could_never_have_room(trace: tuple[object, ...], tmp_path: Path) -> None:
    path = tmp_path / "pods.csv"
    path.write_text(path.read_text().replace("p4,1000,", "p4,999999,"))  # of class 2, whose others are p11, p18, p25
    lines = simulate(*trace, "--seeds", "1", "--departures", "--queue", "fifo").stdout.splitlines()

    [[kind, share]] = [line.split("\t")[2:] for line in lines if line.startswith("refused\t")]
    assert kind == "2"
    assert 0 < float(share) < 100


def cluster_file(path: Path, *items: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"kind": "List", "items": items}))
    return path


def test_what_no_node_has_room_for_is_left_out(tmp_path: Path) -> None:
    """Of a cluster: with how many, and why."""
    shown = simulate("--file", cluster_file(tmp_path / "c.json", *objects()), "--seeds", 1)

    assert shown.exit_code == 0
    assert "1 pod left out (team/huge): no node has room even when empty" in shown.stderr
    assert "\t8\t" not in shown.stdout


def test_a_cluster_with_mig_alone(tmp_path: Path) -> None:
    """Neither its GPUs nor its pods can be played, and both are said."""
    amounts = {"cpu": "64", "memory": "512Gi", "nvidia.com/mig-1g.10gb": "7"}
    described = node("n0")
    described["metadata"]["labels"] = {
        "nvidia.com/gpu.count": "1",
        "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB",
        "nvidia.com/mig.strategy": "mixed",
        "nvidia.com/mig-1g.10gb.count": "7",
        "nvidia.com/mig-1g.10gb.memory": "9728",
    }
    described["status"] = {"capacity": amounts, "allocatable": amounts}
    asking = pod("mig", 0, "n0")
    asking["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/mig-1g.10gb": "1"}}
    shown = simulate("--file", cluster_file(tmp_path / "c.json", described, asking), "--seeds", 1)

    assert shown.exit_code == 1
    assert "1 GPU with MIG left out: MIG devices are not simulated" in shown.stderr
    assert "1 pod left out (team/mig): MIG devices are not simulated" in shown.stderr
    assert "Error: no node has a GPU that can be given out whole or in parts" in shown.stderr


def test_a_cluster_does_not_say_how_long_pods_stay(tmp_path: Path) -> None:
    """That is said before it is read."""
    shown = simulate("--file", tmp_path / "none.json", "--departures")

    assert shown.exit_code == 2
    assert "a cluster does not say how long its pods stay" in shown.stderr


@pytest.mark.parametrize(("status", "advises"), [(-signal.SIGKILL, True), (-signal.SIGSEGV, False), (1, False)])
def test_memory_is_named_where_the_kernel_kills(
    trace: tuple[object, ...], monkeypatch: pytest.MonkeyPatch, status: int, advises: bool
) -> None:
    """A process that raises has said why."""

    def ended(*_: object) -> None:
        raise WorkerEnded("a process ended", status)

    monkeypatch.setattr("gpuplane.cli.commands.simulate.play", ended)
    shown = simulate(*trace)

    assert shown.exit_code == 1
    assert ("memory" in shown.stderr) == advises


@pytest.mark.parametrize(
    ("figure", "shown"),
    [(0.0, "0"), (0.24, "0.24"), (0.0412, "0.0412"), (12.34, "12.3"), (99.99, "100"), (12345.6, "12346")],
)
def test_small_figures_have_digits(figure: float, shown: str) -> None:
    assert _significant(figure) == shown


@pytest.mark.parametrize("width", [40, 120])
@pytest.mark.parametrize("queue", [(), ("--departures", "--queue", "fifo")])
def test_tables_fit_a_terminal(
    trace: tuple[object, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    width: int,
    queue: tuple[str, ...],
) -> None:
    """What has no room beside each other is below each other; no word is broken."""
    policies = ("binpack", "spread", "waste-price:1+spread:0.1")
    found = document(*trace, "--seeds", "1-3", "--policy", ",".join(policies), "--fewer", *queue)
    monkeypatch.setenv("COLUMNS", f"{width}")
    print_page(page(msgspec.convert(found, Report)))
    shown = capsys.readouterr().out

    assert max(map(len, shown.splitlines())) <= width
    tables = [line.split() for line in shown.splitlines() if line.startswith("GPUs ")]
    assert tables == ([["GPUs", each] for each in policies] if width == 40 else [["GPUs", *policies]])
