"""What `gpuplane agent` and `gpuplane` answer before anything runs."""

import subprocess
import sys
from pathlib import Path

import pytest

from gpuplane import __version__
from gpuplane.cli.commands.agent import main as agent
from tests.golden import Golden


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--mig-strategy", "mixd"], "'mixed'"),
        (["--metrics-address", "9410"], "--metrics-address "),
        (["--machine", "dgx-a10"], "dgx-a100"),
        (["--node-label", "nvidia.com/gpu config"], "--node-label"),
        (["--kubelet-socket", "/run/kubelet.sock"], "--kubelet-socket"),
        (["--kubelet-socket", "/a/device-plugins/kubelet.sock", "--kubelet-root", "/b"], "--kubelet-root"),
        (["--machin", "x"], "'--machine'"),
        (["--machin=x"], "'--machine'"),
        (["now"], "'now'"),
        (["--log-format", "jsn"], "'json'"),
        (["--state-dir"], "--state-dir"),
        (["--stand-ins"], "--machine PROFILE"),
        (["--stand-ins", "--machine", "nvml"], "--machine PROFILE"),
        (["--stand-ins", "--machine", "t4", "--devices", "devices.yaml"], "without --devices"),
    ],
)
def test_a_wrong_argument_is_said_without_all_the_others(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    """The message, and where to read about all flags, as click has it. Exit status 2."""
    with pytest.raises(SystemExit) as ended:
        agent.main(arguments)
    said = capsys.readouterr()

    assert ended.value.code == 2
    assert named in said.err.splitlines()[-1]
    golden(said.err, " ".join(arguments))
    assert said.out == ""


def test_the_environment_cannot_take_a_real_gpu_from_containers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """STAND_INS=true without a described machine ends the agent before it registers anything."""
    monkeypatch.setenv("STAND_INS", "true")
    with pytest.raises(SystemExit) as ended:
        agent.main(["--machine=nvml"])

    assert ended.value.code == 2
    assert "STAND_INS" in capsys.readouterr().err


def test_a_machine_file_that_is_not_there_is_no_wrong_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may be there at the next start."""
    with pytest.raises(SystemExit) as ended:
        agent.main(["--machine", f"{tmp_path}/none.yaml"])

    assert ended.value.code == 1
    assert capsys.readouterr().err == f"Error: {tmp_path}/none.yaml: No such file or directory\n"


@pytest.mark.parametrize("words", [("--version",), ("-V",), ("agent", "--version"), ("agent", "-V")])
def test_the_version_is_told(words: tuple[str, ...]) -> None:
    """One version, of all."""
    done = subprocess.run(
        [sys.executable, "-m", "gpuplane", *words], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == f"gpuplane {__version__}\n"
