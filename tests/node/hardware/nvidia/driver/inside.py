"""The code of the driver's process, in this process."""

import os

from gpuplane.node.hardware.nvidia.driver.callpage import Page
from gpuplane.node.hardware.nvidia.driver.channel import Options
from gpuplane.node.hardware.nvidia.driver.driverfiles import Installed
from gpuplane.node.hardware.nvidia.driver.kernelfiles import Files
from gpuplane.node.hardware.nvidia.driver.library import start
from gpuplane.node.hardware.nvidia.driver.nvml import Nvml
from gpuplane.node.hardware.nvidia.driver.observation import Looker
from gpuplane.node.model.machine import Driver, MachineFile
from tests.node.hardware.nvidia.driver.standin import StandIn


class Inside:
    """A driver within this process: its library can be loaded once, so all tests here describe the same stand-in."""

    def __init__(self, standin: StandIn) -> None:
        self.standin, self.files = standin, Files(str(standin.root))
        memory = os.memfd_create("page")
        os.ftruncate(memory, 4096)
        self.nvml = Nvml(Page(memory))
        os.close(memory)
        self.looker: Looker | None = None

    def start(self, machine: MachineFile) -> Looker:
        """A fresh start of the driver with this machine."""
        self.stop()
        self.standin.describe(machine)
        options = Options(channel=-1, page=-1, library=str(self.standin.library), root=str(self.standin.root))
        self.looker = self._looker(start(self.nvml, options, self.files))
        return self.looker

    def restart(self) -> Looker:
        """Another process, of the same machine."""
        return self._looker(Driver())

    def _looker(self, driver: Driver) -> Looker:
        return Looker(self.nvml, self.files, driver, Installed(str(self.standin.installed), self.files))

    def stop(self) -> None:
        """The end of a process."""
        if self.looker is not None:
            self.nvml.call("nvmlShutdown")
            self.looker = None
