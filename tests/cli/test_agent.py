"""What `gpuplane agent` and `gpuplane` answer before anything runs."""

import subprocess
import sys
from pathlib import Path

import pytest

from gpuplane import __version__
from gpuplane.cli import agent


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mig-strategy", "mixd"], "did you mean 'mixed'?"),
        (["--metrics-address", "9410"], "--metrics-address must be HOST:PORT"),
        (["--machine", "dgx-a10"], "did you mean dgx-a100"),
        (["--node-label", "nvidia.com/gpu config"], "--node-label: must be the name of a label"),
        (["--kubelet-socket", "/run/kubelet.sock"], "--kubelet-socket: must end with /device-plugins/kubelet.sock"),
        (
            ["--kubelet-socket", "/a/device-plugins/kubelet.sock", "--kubelet-root", "/b"],
            "--kubelet-root /b and --kubelet-socket /a/device-plugins/kubelet.sock are two directories",
        ),
        (["--machin", "x"], "No such option '--machin'. Did you mean '--machine'?"),
        (["--machin=x"], "No such option '--machin'. Did you mean '--machine'?"),
        (["now"], "No such argument 'now'."),
        (["--log-format", "jsn"], "'jsn' is not one of text, json. Did you mean 'json'?"),
        (["--state-dir"], "argument --state-dir: expected one argument"),
    ],
)
def test_a_wrong_argument_is_said_without_all_the_others(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message, and where to read about all flags, as click has it. Exit status 2."""
    with pytest.raises(SystemExit) as ended:
        agent.main(arguments)
    said = capsys.readouterr()

    usage, hint, empty, error = said.err.splitlines()
    assert ended.value.code == 2
    assert (usage, hint, empty) == ("Usage: gpuplane agent [OPTIONS]", "Try 'gpuplane agent --help' for help.", "")
    assert error.startswith("Error: ")
    assert message in error
    assert said.out == ""


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
