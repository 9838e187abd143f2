"""The programs of the control plane, which the sandbox starts by itself here, and one cluster of played nodes."""

import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.cluster.controlplane import PROGRAM
from tests.cluster.sandbox.world import World, running_world
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


@pytest_asyncio.fixture(scope="package", loop_scope="session")  # it ends before tests of other folders begin
async def world(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """Two nodes with agents: eight GPUs and one."""
    async with running_world(tmp_path_factory.mktemp("cluster"), programs, "hgx-h100,t4") as found:
        yield found
