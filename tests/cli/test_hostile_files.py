"""People's commands, given what is no file or has no end: an error that names it, at once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuplane.base.document import MAX_BYTES
from tests import hostile
from tests.cli.terminals import run_command
from tests.golden import Golden

COMMANDS = {
    "config check": ("config", "check", "PATH"),
    "config explain": ("config", "explain", "PATH", "--machine", "dgx-a100"),
    "config explain --machine": ("config", "explain", "GOOD", "--machine", "PATH"),
    "choose --machine": ("choose", "--machine", "PATH", "--size", "1"),
    "choose --config": ("choose", "--machine", "dgx-a100", "--config", "PATH", "--size", "1"),
    "cdi validate": ("cdi", "validate", "PATH"),
    "demo": ("demo", "--profile", "PATH"),
    "mig assert": ("mig", "assert", "-f", "PATH", "--valid-config"),
    "mig apply --hooks": ("mig", "apply", "-c", "all-disabled", "--machine", "dgx-a100", "--hooks", "PATH"),
    "mig restore": ("mig", "restore", "-f", "PATH", "--machine", "dgx-a100"),
    "simulate --nodes": ("simulate", "--nodes", "PATH", "--pods", "GOOD"),
}


@pytest.mark.parametrize("kind", ["a FIFO", "a device", "a file without an end"])
@pytest.mark.parametrize("name", COMMANDS)
def test_it_is_named_at_once(tmp_path: Path, name: str, kind: str, golden: Golden) -> None:
    path, good = tmp_path / "hostile", tmp_path / "good"
    hostile.put(path, kind)
    good.write_text("version: v1\n")
    places = {"PATH": str(path), "GOOD": str(good)}
    done = run_command(*(places.get(each, each) for each in COMMANDS[name]))
    assert done.status in (1, 2)
    assert "hostile" in done.err
    golden(done.err)


def test_standard_input_without_an_end_is_not_read_to_it(tmp_path: Path, golden: Golden) -> None:
    path = tmp_path / "endless"
    path.touch()
    os.truncate(path, 1 << 40)
    with path.open("rb") as endless:
        done = subprocess.run(
            [sys.executable, "-m", "gpuplane", "config", "check", "-"],
            stdin=endless,
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode in (1, 2)
    assert f"{MAX_BYTES >> 20} MiB" in done.stderr
    golden(done.stderr)
