"""A signal that comes while a command is still importing ends it: no word, and nothing is left behind.

Python's own start is not ours: the time is counted from the first import of gpuplane's that is more than an `__init__`.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

BEGIN = """
import os, sys
def told(event, arguments):
    if event == "import" and arguments[0] == "gpuplane.cli" and not begun:
        begun.append(os.write(1, b"x"))
begun = []
sys.addaudithook(told)
"""
STARTS = {
    "the script": f"{BEGIN}from gpuplane.__main__ import main; main()",
    "the module": f"{BEGIN}import runpy; runpy.run_module('gpuplane', run_name='__main__', alter_sys=True)",
}
"""As the installed script and as `python -m gpuplane`, with a byte that says that it has begun."""
COMMANDS = (
    ("the script", "--version"),
    ("the module", "inspect --state-dir PLACE"),
    ("the script", "mig plan --help"),
    ("the module", "demo"),
    ("the script", "agent --machine hgx-h100 --kubelet-root PLACE/k --state-dir PLACE/s"),
)


@pytest.mark.parametrize("delay", [0, 1, 5, 20, 50, 100, 200, 300])
@pytest.mark.parametrize(("start", "command"), COMMANDS)
def test_ctrl_c_while_it_starts(start: str, command: str, delay: int, tmp_path: Path) -> None:
    """Wherever that is. A command that was faster has done what it does; the agent ends in order."""
    words = command.replace("PLACE", str(tmp_path)).split()
    (tmp_path / "t").mkdir()
    below: list[psutil.Process] = []
    with psutil.Popen(
        [sys.executable, "-c", STARTS[start], *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(tmp_path / "t")},
        start_new_session=True,
    ) as process:
        assert process.stdout.read(1) == b"x"
        time.sleep(delay / 1000)
        with suppress(psutil.NoSuchProcess):  # it has ended
            below = process.children(recursive=True)
        os.killpg(process.pid, signal.SIGINT)  # of the terminal's foreground, as Ctrl-C
        _, err = process.communicate(timeout=120)
    assert "Traceback" not in err.decode(), err.decode()
    assert process.returncode in (-signal.SIGINT, 130, 0, 1), err.decode()
    psutil.wait_procs(below, timeout=60)
    assert [each for each in below if each.is_running()] == []
    assert list((tmp_path / "t").iterdir()) == []
