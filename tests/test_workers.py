"""What the suite asks of pytest-xdist: tests of one group run in one worker."""

import subprocess
import sys
from pathlib import Path

MODULE = """
import os, pathlib, time
import pytest

@pytest.mark.parametrize("number", range(6))
@pytest.mark.xdist_group("together")
def test_worker(number):
    time.sleep(0.05)
    pathlib.Path(f"{number}.worker").write_text(os.environ["PYTEST_XDIST_WORKER"])
"""


def test_tests_of_one_group_run_in_one_worker(tmp_path: Path) -> None:
    (tmp_path / "test_together.py").write_text(MODULE)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    xdist_group: of pytest-xdist\n")
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=120)
    workers = [each.read_text() for each in tmp_path.glob("*.worker")]
    assert len(workers) == 6
    assert len(set(workers)) == 1
