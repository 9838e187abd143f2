"""The agent by its command line on the driver's library (the stand-in): the whole way, from NVML to kubelet."""

from pathlib import Path

import psutil
import pytest

from gpuplane.node.hardware.described.machinefile import read_machine
from gpuplane.node.hardware.described.profiles import find_machine_file
from gpuplane.node.model.machine import InjectedFailure
from gpuplane.sandbox.agent import Agent
from gpuplane.sandbox.kubelet import Kubelet, pod
from tests.node.agent.test_process import answers, gpuplane
from tests.node.hardware.nvidia.driver.standin import StandIn

GPU = "nvidia.com/gpu"
MACHINE = read_machine(find_machine_file("l40s").read_bytes(), "l40s.yaml")
COUNT = len(MACHINE.gpus or ())


@pytest.fixture
def driver(tmp_path: Path, compiled: Path) -> StandIn:
    """A driver that has eight GPUs, where a driver root has its library."""
    driver = StandIn(tmp_path / "d", compiled)
    driver.describe(MACHINE)
    (tmp_path / "usr").mkdir()
    (tmp_path / "usr/lib64").symlink_to(driver.folder)
    return driver


def agent(root: Path, driver: StandIn) -> Agent:
    """An agent on that driver."""
    return Agent(
        "--machine", "nvml", "--driver-root-ctr-path", root, "--host-root", driver.root,
        "--kubelet-root", root / "k", "--state-dir", root / "s",
    )  # fmt: skip


def drivers(of: Agent) -> int:
    """How many processes of an agent have the driver's library."""
    return len(psutil.Process(of.process.pid).children(recursive=True))


async def test_from_nvml_to_kubelet_and_back(tmp_path: Path, driver: StandIn) -> None:
    """GPUs are offered, a pod gets two; a GPU whose calls crash the library is the only one that is lost, and heals."""
    async with Kubelet(tmp_path / "k") as kubelet, agent(tmp_path, driver) as running:
        await kubelet.until_capacity(GPU, COUNT, COUNT)
        got = (await kubelet.run(pod("train", gpu=2))).response().envs["NVIDIA_VISIBLE_DEVICES"]
        assert set(got.split(",")) <= {gpu.uuid for gpu in MACHINE.gpus or ()}
        assert drivers(running) == 1

        driver.describe(
            MACHINE.but(failures=(InjectedFailure(effect="crash", gpu=5, nvml_function="nvmlDeviceGetMemoryInfo*"),))
        )
        await kubelet.until_capacity(GPU, COUNT, COUNT - 1)
        assert [id for id, health in kubelet.device_health()[GPU].items() if health == "Unhealthy"] == [
            (MACHINE.gpus or ())[5].uuid
        ]


async def test_a_driver_that_is_released_stays_so_over_a_restart(tmp_path: Path, driver: StandIn) -> None:
    """No process has the library while it is released, nor at the next agent's start; then all is back."""
    driver_command = ("driver", "release", "--for", "5m", "--why", "GPU reset", "--state-dir", tmp_path / "s")
    async with Kubelet(tmp_path / "k") as kubelet:
        async with agent(tmp_path, driver) as first:
            await kubelet.until_capacity(GPU, COUNT, COUNT)
            status, said = await gpuplane(*driver_command)
            assert status == 0, said
            assert drivers(first) == 0
            await kubelet.until_capacity(GPU, COUNT, 0)
            await first.kill()
        async with agent(tmp_path, driver) as second:
            await second.until_says("GPU reset")
            await answers(tmp_path / "s")
            assert drivers(second) == 0
            assert (await gpuplane("driver", "resume", "--state-dir", tmp_path / "s"))[0] == 0
            await kubelet.until_capacity(GPU, COUNT, COUNT)
            assert drivers(second) == 1
