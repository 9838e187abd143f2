"""The whole agent and a whole kubelet: killed, restarted, renamed, with pods that go on working."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuplane.sandbox.agent import Agent
from gpuplane.sandbox.kubelet import Container, Kubelet, Pod, PodRejected, pod
from tests.removal import remove

GPU, FAST = "nvidia.com/gpu", "nvidia.com/fast"
MACHINE = "gpus: [{index: 0, uuid: GPU-a, minor: 0, model: T4}, {index: 1, uuid: GPU-b, minor: 1, model: T4}]\n"
RENAMED = f"version: v1\nresources: {{gpus: [{{pattern: '*', name: {FAST}}}]}}\n"


class Site:
    """The files of one node."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "machine.yaml").write_text(MACHINE)
        self.configure("version: v1\n")

    def configure(self, text: str) -> None:
        (self.root / "new.yaml").write_text(text)
        (self.root / "new.yaml").rename(self.root / "config.yaml")

    def agent(self, state: str = "state") -> Agent:
        root = self.root
        return Agent(
            "--machine", root / "machine.yaml", "--config", root / "config.yaml",
            "--kubelet-root", root / "k", "--state-dir", root / state,
        )  # fmt: skip


@pytest.fixture
def site() -> Iterator[Site]:
    root = Path(tempfile.mkdtemp(prefix="gp"))
    yield Site(root)
    remove(root)


def health(kubelet: Kubelet, resource: str = GPU) -> dict[str, str]:
    return kubelet.device_health().get(resource, {})


async def test_an_agent_that_is_killed_comes_back(site: Site) -> None:
    """Its sockets stay behind and refuse; kubelet counts its devices as unhealthy. The next agent takes them over,
    registers once, and the pod that ran all the while keeps its GPU."""
    async with Kubelet(site.root / "k") as kubelet:
        async with site.agent() as first:
            await kubelet.until_capacity(GPU, 2, 2)
            await kubelet.run(pod("train", gpu=1))
            await first.kill()
            await kubelet.until_capacity(GPU, 2, 0)
        assert len(list((site.root / "k/device-plugins").glob("gpuplane-*.sock"))) == 1
        before = len([each for each in kubelet.trace if each.method == "Register"])
        async with site.agent() as second:
            await kubelet.until_capacity(GPU, 2, 2)
            assert len([each for each in kubelet.trace if each.method == "Register"]) == before + 1
            running = await kubelet.run(pod("other", gpu=1))
            assert kubelet.pods["default/train"].response().envs != running.response().envs
            with pytest.raises(PodRejected):
                await kubelet.run(pod("third", gpu=1))
            assert await second.stop() == 0
        assert not list((site.root / "k/device-plugins").glob("gpuplane-*"))


async def test_a_held_gpu_is_withheld_under_its_new_name_across_restarts(site: Site) -> None:
    """Of the configuration, of kubelet and of the agent; until its pod ends."""
    async with Kubelet(site.root / "k") as kubelet:
        async with site.agent() as agent:
            await kubelet.until_capacity(GPU, 2, 2)
            held = (await kubelet.run(pod("train", gpu=1))).response().envs["NVIDIA_VISIBLE_DEVICES"]
            site.configure(RENAMED)
            await kubelet.until_capacity(FAST, 2, 1)
            assert health(kubelet, FAST)[held] == "Unhealthy"
            await agent.until_says("container default/train/", FAST)
            assert kubelet.capacity(GPU) == (0, 0)

            await kubelet.restart()
            await kubelet.until_capacity(FAST, 2, 1)
            await agent.kill()
            await kubelet.until_capacity(FAST, 2, 0)
        async with site.agent() as agent:
            await kubelet.until_capacity(FAST, 2, 1)
            assert health(kubelet, FAST)[held] == "Unhealthy"
            got = (await kubelet.run(pod("next", fast=1))).response().envs["NVIDIA_VISIBLE_DEVICES"]
            assert got != held
            await kubelet.end("default/train")
            await kubelet.until_capacity(FAST, 2, 2)
            await agent.until_says(f"{held}: available again as {FAST}")


async def test_an_init_container_and_its_pod_share_a_gpu(site: Site) -> None:
    """Kubelet asks twice for the same ids; both are answered, and it is one allocation."""
    async with Kubelet(site.root / "k") as kubelet, site.agent():
        await kubelet.until_capacity(GPU, 2, 2)
        one = {GPU: 1}
        running = await kubelet.run(Pod("job", (Container("main", one),), init=(Container("load", one),)))
        assert running.response("load").envs == running.response("main").envs
        await kubelet.run(pod("other", gpu=1))


async def test_a_second_agent_waits_for_the_first(site: Site) -> None:
    """It names the first, registers nothing, and takes over when that stops."""
    async with Kubelet(site.root / "k") as kubelet, site.agent() as first:
        await kubelet.until_capacity(GPU, 2, 2)
        async with site.agent("other-state") as second:
            await second.until_says(f"kubelet lock: waiting: process {first.process.pid} ")
            assert kubelet.capacity(GPU) == (2, 2)
            assert await first.stop() == 0
            await kubelet.until(lambda: len(kubelet.manager.gaps) == 1)
            await kubelet.until_capacity(GPU, 2, 2)
            await kubelet.run(pod("train", gpu=2))
