"""A driver with a Hopper and an Ampere, and an nvidia-smi that can reset them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpuplane.node.hardware.described.machinefile import read_machine
from gpuplane.node.model.machine import MachineFile
from tests.node.hardware.nvidia.driver.standin import StandIn
from tests.node.hardware.nvidia.driver.watched import Watched, watched
from tests.node.hardware.nvidia.migchanges.realgpus import MACHINE, RESET
from tests.node.hardware.nvidia.nvidiasmi.standin import SmiStandIn


@pytest.fixture
def machine() -> MachineFile:
    return read_machine(MACHINE.encode(), "machine.yaml")


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
