"""A driver that has the rich machine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuplane.node.hardware.described.machinefile import read_machine
from gpuplane.node.model.machine import MachineFile
from tests.node.hardware.nvidia.driver.inside import Inside
from tests.node.hardware.nvidia.driver.standin import StandIn

RICH = Path(__file__).parent / "rich.yaml"


@pytest.fixture
def rich() -> MachineFile:
    """A machine that has everything that NVML tells."""
    return read_machine(RICH.read_bytes(), RICH.name)


@pytest.fixture
def standin(tmp_path: Path, compiled: Path, rich: MachineFile) -> StandIn:
    """A driver that has the rich machine."""
    standin = StandIn(tmp_path, compiled)
    standin.describe(rich)
    return standin


@pytest.fixture(scope="session")
def inside(tmp_path_factory: pytest.TempPathFactory, compiled: Path) -> Iterator[Inside]:
    """The one driver in this process."""
    inside = Inside(StandIn(tmp_path_factory.mktemp("inside"), compiled))
    yield inside
    inside.stop()
