"""What the parts of the bench share: an agent with its kubelet, and the driver's stand-in to run it on."""

import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from gpuplane.node.hardware.described.machinefile import read_machine
from gpuplane.node.hardware.described.profiles import find_machine_file
from gpuplane.node.model.machine import MachineFile
from gpuplane.sandbox.agent import Agent
from gpuplane.sandbox.kubelet import Kubelet
from tests.node.hardware.nvidia.driver.standin import StandIn, build

GPU = "nvidia.com/gpu"
EIGHT, SIXTEEN = "dgx-a100", "big-16"


@asynccontextmanager
async def running(
    profile: str, count: int, *more: object, config: str = "version: v1\n", resource: str = GPU
) -> AsyncIterator[tuple[Kubelet, Agent, float]]:
    """A kubelet, an agent on it that has registered so many devices, and the seconds from its start to that."""
    with tempfile.TemporaryDirectory(prefix="gpuplane-bench-") as directory:
        root = Path(directory)
        (root / "config.yaml").write_text(config)
        async with Kubelet(root / "k") as kubelet:
            began = time.perf_counter()
            async with Agent(
                "--machine", profile, "--config", root / "config.yaml", "--kubelet-root", root / "k",
                "--state-dir", root / "s", *more,
            ) as agent:  # fmt: skip
                await kubelet.until_capacity(resource, count, count, deadline=30)
                yield kubelet, agent, time.perf_counter() - began


class Driven:
    """The stand-in of the driver's library as machine `described`, and the agent's flags that make it use it."""

    def __init__(self, folder: Path, profile: str = EIGHT) -> None:
        self.folder, self.described = folder, described(profile)
        self.driver = StandIn(folder, build(folder))
        self.driver.describe(self.described)
        (folder / "usr").mkdir()
        (folder / "usr/lib64").symlink_to(self.driver.folder)
        self.flags = ("--driver-root-ctr-path", folder, "--host-root", self.driver.root)


@contextmanager
def driven(profile: str = EIGHT) -> Iterator[Driven]:
    """A stand-in in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="gpuplane-bench-") as directory:
        yield Driven(Path(directory), profile)


def described(profile: str) -> MachineFile:
    """A profile's machine."""
    return read_machine(find_machine_file(profile).read_bytes(), profile)
