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
        (["--machine", "DIR/none.yaml"], "there is no machine file DIR/none.yaml"),
        (["--machin", "x"], "unrecognized arguments: --machin x"),
        (["--state-dir"], "argument --state-dir: expected one argument"),
    ],
)
def test_a_wrong_argument_is_said_without_all_the_others(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message, and where to read about all flags. Exit status 2."""
    with pytest.raises(SystemExit) as ended:
        agent.main([each.replace("DIR", str(tmp_path)) for each in arguments])
    said = capsys.readouterr()

    assert ended.value.code == 2
    assert message.replace("DIR", str(tmp_path)) in said.err.splitlines()[0]
    assert said.err.splitlines()[1:] == ["gpuplane agent --help lists all flags"]
    assert said.out == ""


def test_the_version_is_told() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gpuplane", "--version"], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == f"gpuplane {__version__}\n"
