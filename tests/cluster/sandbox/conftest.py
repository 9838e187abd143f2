"""The programs of the control plane, which the sandbox starts by itself here."""

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.controlplane import PROGRAM
from tests.removal import remove


@pytest.fixture(scope="session")
def programs() -> Path:
    """The directory of the unpacked programs."""
    if not PROGRAM.is_file():
        pytest.skip("there is no control plane beside this checkout, and GPUPLANE_CONTROL_PLANE names none")
    done = subprocess.run([PROGRAM, "programs"], stdout=subprocess.PIPE, text=True, check=True, timeout=240)
    return Path(done.stdout.strip())


@pytest.fixture(scope="module")
def state() -> Iterator[Path]:
    """A state directory."""
    root = Path(tempfile.mkdtemp(prefix="gp"))
    yield root
    remove(root)
