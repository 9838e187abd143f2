"""The code of the driver's process, in this process."""

import os

from gpuplane.node.hardware.nvidia.driver.callpage import CallPage
from gpuplane.node.hardware.nvidia.driver.channel import DriverOptions
from gpuplane.node.hardware.nvidia.driver.driverfiles import DriverFilesSearch
from gpuplane.node.hardware.nvidia.driver.kernelfiles import KernelFiles
from gpuplane.node.hardware.nvidia.driver.library import load_library
from gpuplane.node.hardware.nvidia.driver.nvml import Nvml
from gpuplane.node.hardware.nvidia.driver.observation import Observer
from gpuplane.node.model.machine import Driver, MachineFile
from tests.node.hardware.nvidia.driver.standin import StandIn


class Inside:
    """A driver within this process: its library can be loaded once, so all tests here describe the same stand-in."""

    def __init__(self, standin: StandIn) -> None:
        self.standin, self.files = standin, KernelFiles(str(standin.root))
        memory = os.memfd_create("page")
        os.ftruncate(memory, 4096)
        self.nvml = Nvml(CallPage(memory))
        os.close(memory)
        self.observer: Observer | None = None

    def start(self, machine: MachineFile) -> Observer:
        """A fresh start of the driver with this machine."""
        self.stop()
        self.standin.describe(machine)
        options = DriverOptions(channel=-1, page=-1, library=str(self.standin.library), root=str(self.standin.root))
        self.observer = self._observer(load_library(self.nvml, options, self.files))
        return self.observer

    def restart(self) -> Observer:
        """Another process, of the same machine."""
        return self._observer(Driver())

    def _observer(self, driver: Driver) -> Observer:
        return Observer(self.nvml, self.files, driver, DriverFilesSearch(str(self.standin.installed), self.files))

    def stop(self) -> None:
        """The end of a process."""
        if self.observer is not None:
            self.nvml.call("nvmlShutdown")
            self.observer = None
