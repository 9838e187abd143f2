"""What another user puts where the driver's files are looked for never gets into a container: with a real agent."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuplane.node.core.containers.cdi.registry import parse_spec_file
from gpuplane.node.hardware.described.machinefile import read_machine
from gpuplane.node.hardware.described.profiles import find_machine_file, layouts
from gpuplane.node.model.cdi import Spec
from gpuplane.node.model.machine import Driver
from gpuplane.sandbox.agent import Agent
from gpuplane.sandbox.kubelet import Kubelet
from tests.node.agent.test_cdi import until
from tests.node.hardware.nvidia.driver.standin import StandIn
from tests.node.host.cdi.world import CDI, GPU

GPUS = "nvidia.com/gpu"
VERSION = "580.95.05"
DRIVER = Driver(version=VERSION, cuda="13.0", files=layouts.layout_files("debian", VERSION))
MACHINE = read_machine(find_machine_file("l40s").read_bytes(), "l40s.yaml").but(driver=DRIVER)
COUNT = len(MACHINE.gpus or ())
NOBODY = 65534

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user for a moment")


class Node:
    """A node with a driver root, a kubelet and a CDI directory."""

    def __init__(self, root: Path, compiled: Path) -> None:
        self.root, self.cdi = root, root / "cdi"
        self.driver = StandIn(root / "d", compiled)
        self.driver.describe(MACHINE)
        self.installed = self.driver.installed
        (self.installed / "usr/lib64").symlink_to(self.driver.folder)  # libnvidia-ml
        (self.installed / "tmp").mkdir(exist_ok=True)
        (self.installed / "tmp").chmod(0o1777)
        self.mps = self.installed / "tmp/nvidia-mps"
        (root / "config.yaml").write_text(CDI)

    def agent(self) -> Agent:
        """An agent here."""
        return Agent(
            "--machine", "nvml", "--driver-root-ctr-path", self.installed, "--host-root", self.driver.root,
            "--config", self.root / "config.yaml", "--kubelet-root", self.root / "k", "--state-dir", self.root / "s",
            "--cdi-dir", self.cdi, "--hook-path", self.root / "hook",
        )  # fmt: skip

    def spec(self) -> Spec | None:
        """What runtimes read now."""
        for path in self.cdi.glob("*.json"):
            loaded = parse_spec_file(str(path), path.read_bytes())
            if loaded.spec is not None and loaded.spec.kind == GPU:
                return loaded.spec
        return None

    def mounts(self) -> dict[str, str]:
        """Path on the host → path in a container."""
        spec = self.spec()
        return {} if spec is None else {each.host_path: each.container_path for each in spec.container_edits.mounts}


@pytest.fixture
def node(tmp_path: Path, compiled: Path) -> Node:
    return Node(tmp_path, compiled)


def link(mps: Path) -> None:
    """A link to all of the host, by another user."""
    mps.symlink_to("/")
    os.lchown(mps, NOBODY, NOBODY)


def directory(mps: Path) -> None:
    """A directory of another user's."""
    mps.mkdir()
    os.chown(mps, NOBODY, NOBODY)


@pytest.mark.parametrize(("make", "why"), [(link, "link"), (directory, str(NOBODY))])
async def test_what_another_user_makes_of_the_directory_of_mps_is_never_mounted(
    node: Node, make: Callable[[Path], None], why: str
) -> None:
    """Before the agent starts, and while it runs; every GPU is offered all the same, and the log says it once."""
    make(node.mps)
    said = ("cdi: ok", str(node.mps), why)
    async with Kubelet(node.root / "k", cdi_dirs=node.cdi) as kubelet, node.agent() as agent:
        await kubelet.until_capacity(GPUS, COUNT, COUNT)
        assert node.mounts()
        assert not any("nvidia-mps" in path for path in (*node.mounts(), *node.mounts().values()))
        assert "/" not in node.mounts()
        await agent.until_says(*said)

        if node.mps.is_symlink():
            node.mps.unlink()
        else:
            node.mps.rmdir()
        node.mps.mkdir(mode=0o755)
        await until(lambda: "/tmp/nvidia-mps" in node.mounts())
        node.mps.rmdir()
        make(node.mps)
        await until(lambda: "/tmp/nvidia-mps" not in node.mounts())
        assert "/" not in node.mounts()
        await until(lambda: sum(all(word in line for word in said) for line in agent.log) == 2)
        assert kubelet.capacity(GPUS) == (COUNT, COUNT)


async def test_a_libcuda_that_another_user_can_change_is_given_to_nobody(node: Node) -> None:
    """No device is offered, and the reason names the path and who; when it is mended all is well again."""
    [cuda] = (node.installed / "usr/lib").rglob("libcuda.so.5*")
    os.chown(cuda, NOBODY, NOBODY)
    async with Kubelet(node.root / "k", cdi_dirs=node.cdi) as kubelet, node.agent() as agent:
        await agent.until_says("cdi: ", f"{cuda} ", str(NOBODY))
        await kubelet.until_capacity(GPUS, COUNT, 0)
        assert node.spec() is None
        os.chown(cuda, 0, 0)
        await kubelet.until_capacity(GPUS, COUNT, COUNT)
        assert any("libcuda" in path for path in node.mounts())
