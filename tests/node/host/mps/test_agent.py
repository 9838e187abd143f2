"""The agent beside the supervisor, with a kubelet: what is served is given out, and the agent's life is its own."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from gpuplane.node.host.mps import processes
from gpuplane.node.host.mps.files import FILES_FOLDER
from gpuplane.sandbox.agent import Agent
from gpuplane.sandbox.kubelet import Kubelet, pod
from tests.node.host.mps.world import World

GPU = "nvidia.com/gpu"
MACHINE = "gpus:\n" + "".join(
    f"- {{index: {i}, uuid: GPU-{i}, model: NVIDIA A100, memory_mib: 40960, compute_capability: '8.0'}}\n"
    for i in range(2)
)
SHARED = "version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n"


@pytest.fixture
def place(tmp_path: Path, world: World) -> "Place":
    """A node whose GPUs are shared by MPS."""
    return Place(tmp_path, world)


class Place:
    """The agent's files."""

    def __init__(self, root: Path, world: World) -> None:
        self.root, self.world, self.config = root, world, root / "config.yaml"
        (root / "machine.yaml").write_text(MACHINE)
        self.configure(SHARED)

    def configure(self, text: str) -> None:
        """Replace the configuration."""
        aside = self.config.with_suffix(".new")
        aside.write_text(text)
        aside.replace(self.config)

    def agent(self, *more: object) -> Agent:
        """An agent here."""
        return Agent(
            "--machine", self.root / "machine.yaml", "--config", self.config, "--kubelet-root", self.root / "k",
            "--state-dir", self.root / "s", *(more or ("--mps-root", self.world.root)),
        )  # fmt: skip


async def test_shares_are_given_out_once_their_daemon_serves_them(place: Place) -> None:
    """Before, they are unhealthy with the reason; the container is a client of the daemon that runs."""
    world = place.world
    async with Kubelet(place.root / "k") as kubelet, place.agent() as agent:
        await agent.until_says("no MPS supervisor serves the directory")
        await kubelet.until_capacity(GPU, 8, 0)
        await world.supervise()
        await kubelet.until_capacity(GPU, 8, 8)
        container = (await kubelet.run(pod("train", gpu=1))).response()
        assert container.envs["CUDA_MPS_PIPE_DIRECTORY"] == "/mps/nvidia.com/gpu/pipe"
        assert {mount.container_path: mount.host_path for mount in container.mounts} == {
            "/mps/nvidia.com/gpu/pipe": str(world.pipe(GPU)),
            "/dev/shm": str(world.root / GPU / "shm"),
        }
        assert (await world.compute(GPU))[1] == {"GPU-0": "10240M", "GPU-1": "10240M"}


async def test_the_agents_life_is_not_the_daemons(place: Place) -> None:
    """Killed, started anew, told another configuration, and without one that is good: the same process."""
    world = place.world
    await world.supervise()
    async with Kubelet(place.root / "k") as kubelet:
        async with place.agent() as agent:
            await kubelet.until_capacity(GPU, 8, 8)
            running = await world.until_ok(GPU)
            client, _ = await world.compute(GPU)
            await agent.kill()
        await kubelet.until_capacity(GPU, 8, 0)  # it has noticed, and what it shows next is the next agent's
        async with place.agent() as agent:
            await kubelet.until_capacity(GPU, 8, 8)
            place.configure(SHARED + "flags: {plugin: {deviceIDStrategy: index}}\n")
            async with asyncio.timeout(60):
                while (await kubelet.run(pod("probe", gpu=1))).response().envs["NVIDIA_VISIBLE_DEVICES"] not in "01":
                    await kubelet.end("default/probe")
            place.configure("sharing: {mps: {nonsense: 1}}\n")
            await agent.until_says("nonsense")
            assert kubelet.capacity(GPU) == (8, 8)
            await agent.stop()
    assert world.daemon(GPU) == running
    assert client.returncode is None


async def test_a_daemon_that_dies_is_seen_by_kubelet_and_comes_back(place: Place) -> None:
    """Unhealthy, then healthy, without anybody's doing."""
    world = place.world
    await world.supervise()
    async with Kubelet(place.root / "k") as kubelet, place.agent() as agent:
        await kubelet.until_capacity(GPU, 8, 8)
        running = await world.until_ok(GPU)
        world.spoil("nvidia-cuda-mps-control", "no memory")
        os.kill(running.pid, signal.SIGKILL)
        await kubelet.until_capacity(GPU, 8, 0)
        await agent.until_says("no memory")
        world.spoil("nvidia-cuda-mps-control", None)
        await kubelet.until_capacity(GPU, 8, 8)


async def test_when_mps_is_unset_everything_is_as_before(place: Place) -> None:
    """The daemon waits for the pod that holds a share, though it does not compute, and all its GPUs with it; then modes
    are restored, and the GPUs are given out."""
    world = place.world
    await world.supervise()
    async with Kubelet(place.root / "k") as kubelet, place.agent() as agent:
        await kubelet.until_capacity(GPU, 8, 8)
        running = await world.until_ok(GPU)
        await kubelet.run(pod("train", gpu=1))
        place.configure("version: v1\n")
        await kubelet.until_capacity(GPU, 2, 0)
        await agent.until_says("the compute mode of its GPU is not restored yet")
        await world.until_says(GPU, "stays until no container holds it")
        await kubelet.end("default/train")
        await kubelet.until_capacity(GPU, 2, 2)
        await world.until(lambda: world.modes() == {"GPU-0": "DEFAULT", "GPU-1": "DEFAULT"})
        assert not processes.is_alive(running)


async def test_a_node_without_mps_has_no_directory_for_it(place: Place) -> None:
    """Nothing is written where nothing was ever wanted."""
    place.configure("version: v1\n")
    async with Kubelet(place.root / "k") as kubelet, place.agent():
        await kubelet.until_capacity(GPU, 2, 2)
        assert not (place.world.root / FILES_FOLDER).exists()


async def test_a_root_that_cannot_be_written_costs_only_what_is_shared_by_mps(place: Place) -> None:
    """It is said what that means, and it is tried again."""
    place.configure(
        "version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, rename: some, replicas: 4, devices: 1}]}}\n"
    )
    place.world.root.write_text("no directory")
    async with Kubelet(place.root / "k") as kubelet, place.agent() as agent:
        await agent.until_says("the agent cannot send the supervisor the list of needed daemons")
        await kubelet.until_capacity("nvidia.com/some", 4, 0)
        await kubelet.until_capacity(GPU, 1, 1)
        place.world.root.unlink()
        await place.world.supervise()
        await kubelet.until_capacity("nvidia.com/some", 4, 4)


@pytest.mark.parametrize("where", ["", FILES_FOLDER])
async def test_what_anybody_could_write_is_not_believed(place: Place, where: str) -> None:
    """Neither the supervisor's word nor a directory that goes into containers; nothing is given out by it."""
    world = place.world
    await world.supervise()
    async with Kubelet(place.root / "k") as kubelet, place.agent() as agent:
        await kubelet.until_capacity(GPU, 8, 8)
        path = world.root / where
        path.chmod(0o777)
        await agent.until_says(f"the agent does not trust the supervisor's status file: {path} is writable by others")
        await kubelet.until_capacity(GPU, 8, 0)
        path.chmod(0o711)
        await kubelet.until_capacity(GPU, 8, 8)


async def test_another_root_is_another_supervisors(place: Place) -> None:
    """Where daemons were wanted before, none are any more."""
    world, other = place.world, place.root / "other"
    place.configure(f"{SHARED}flags: {{mpsRoot: {world.root}}}\n")
    await world.supervise()
    async with Kubelet(place.root / "k") as kubelet, place.agent("--node-name", "") as agent:
        await kubelet.until_capacity(GPU, 8, 8)
        place.configure(f"{SHARED}flags: {{mpsRoot: {other}}}\n")
        await agent.until_says(f"no MPS supervisor serves the directory {other}")
        await kubelet.until_capacity(GPU, 8, 0)
        await world.until(lambda: not world.pipe(GPU).exists())
