"""The stand-in for the driver's library, compiled once, and quick starts for the processes that load it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuplane.hardware.machinefile import read
from gpuplane.model.machine import MachineFile
from tests.driver.standin import StandIn, build

RICH = Path(__file__).parent / "rich.yaml"


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The library. The processes that load it keep their bytecode in a place of their own, to start fast."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler, cc, for the stand-in of the driver's library")
    folder = tmp_path_factory.mktemp("standin")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        patch.setenv("PYTHONPYCACHEPREFIX", str(folder / "bytecode"))
        yield build(folder)


@pytest.fixture
def rich() -> MachineFile:
    """A machine that has everything that NVML tells."""
    return read(RICH.read_bytes(), RICH.name)


@pytest.fixture
def standin(tmp_path: Path, compiled: Path, rich: MachineFile) -> StandIn:
    """A driver that has the rich machine."""
    standin = StandIn(tmp_path, compiled)
    standin.describe(rich)
    return standin
