"""A driver with a Hopper and an Ampere, and an nvidia-smi that can reset them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpuplane.hardware.machinefile import read
from gpuplane.model.machine import MachineFile
from tests.hardware.driver.standin import StandIn
from tests.hardware.driver.watched import Watched, watched
from tests.hardware.partitions.realgpus import MACHINE, RESET
from tests.hardware.timeslices.standin import SmiStandIn


@pytest.fixture
def machine() -> MachineFile:
    return read(MACHINE.encode(), "machine.yaml")


@pytest.fixture
def standin(tmp_path: Path, compiled: Path, machine: MachineFile) -> StandIn:
    """A driver with a Hopper and an Ampere, and an nvidia-smi that can reset them."""
    found = StandIn(tmp_path / "d", compiled)
    found.describe(machine)
    SmiStandIn(tmp_path / "d")
    reset = tmp_path / "d/usr/bin/reset"
    reset.write_text(RESET)
    reset.chmod(0o755)
    return found


@pytest.fixture
async def watch(standin: StandIn) -> AsyncIterator[Watched]:
    async with watched(standin, driver_root=standin.folder.parent, poll=0.05) as watch:
        await watch.until(lambda each: each.driver()[0] == "ok" and bool(each.gpus()))
        yield watch
