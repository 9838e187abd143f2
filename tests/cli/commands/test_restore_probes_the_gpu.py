"""`gpuplane health restore` on the driver's library (the stand-in): the probe is a process of its own."""

from pathlib import Path

import pytest

from gpuplane.node.hardware.described.machinefile import read_machine
from gpuplane.node.hardware.described.profiles import find_machine_file
from gpuplane.node.model.machine import GpuProcess
from gpuplane.sandbox.agent import Agent
from gpuplane.sandbox.kubelet import Kubelet
from tests.node.agent.test_process import gpuplane
from tests.node.hardware.nvidia.driver.standin import StandIn

GPU = "nvidia.com/gpu"
MACHINE = read_machine(find_machine_file("l40s").read_bytes(), "l40s.yaml")
GPUS = MACHINE.gpus or ()


@pytest.fixture
def driver(tmp_path: Path, compiled: Path) -> StandIn:
    """A driver that has eight GPUs, where a driver root has its library."""
    driver = StandIn(tmp_path / "d", compiled)
    driver.describe(MACHINE)
    (tmp_path / "usr").mkdir()
    (tmp_path / "usr/lib64").symlink_to(driver.folder)
    (tmp_path / "config.yaml").write_text("version: v1\nhealth: {probePeriod: 200ms}\n")
    return driver


def agent(root: Path, driver: StandIn, log: object = "") -> Agent:
    """An agent on that driver, and perhaps on a kernel log."""
    return Agent(
        "--machine", "nvml", "--driver-root-ctr-path", root, "--host-root", driver.root, "--kernel-log", log,
        "--config", root / "config.yaml", "--kubelet-root", root / "k", "--state-dir", root / "s",
    )  # fmt: skip


async def restored(root: Path) -> tuple[int, str]:
    """(exit status, output) of `gpuplane health restore 3`."""
    return await gpuplane("health", "restore", "3", "--state-dir", root / "s")


async def test_restore_has_the_gpu_probed(tmp_path: Path, driver: StandIn) -> None:
    """After an XID that only a reset ends."""
    async with Kubelet(tmp_path / "k") as kubelet, agent(tmp_path, driver):
        await kubelet.until_capacity(GPU, 8, 8)
        driver.happen(3, 79)
        await kubelet.until_capacity(GPU, 8, 7)
        assert [id for id, health in kubelet.device_health()[GPU].items() if health == "Unhealthy"] == [GPUS[3].uuid]
        assert (await restored(tmp_path))[0] == 0
        await kubelet.until_capacity(GPU, 8, 8)


async def test_restore_says_that_the_process_which_a_fault_befell_still_runs(tmp_path: Path, driver: StandIn) -> None:
    """The kernel log names it, the probe finds it on the GPU; when it has ended, the GPU comes back by itself."""
    driver.describe(MACHINE.but(processes=(GpuProcess(gpu=3, pid=4711),)))
    log, xid = (
        tmp_path / "kmsg",
        f"NVRM: Xid (PCI:{GPUS[3].pci.removesuffix('.0')}): 94, pid=4711, name=python3, Contained",
    )
    log.write_text(f"4,1,1000,-;{xid}\n")
    async with Kubelet(tmp_path / "k") as kubelet, agent(tmp_path, driver, log):
        await kubelet.until_capacity(GPU, 8, 7)
        status, said = await restored(tmp_path)
        assert (status, "4711" in said) == (1, True), said
        driver.describe(MACHINE)
        await kubelet.until_capacity(GPU, 8, 8)
