"""A pod that ends while kubelet is away, and a kubelet that cannot reach its API server: the whole of both sides."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gpuplane.node.agent.node import Node
from gpuplane.node.kubelet import podresources
from gpuplane.node.kubelet.podresources import follow_allocations
from gpuplane.node.kubelet.registration import register_plugins
from gpuplane.node.model.config import NamingRule, Settings
from gpuplane.node.model.facts import ConfigLoaded, MachineObserved
from gpuplane.node.model.machine import Gpu, Machine
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.sandbox.kubelet import Kubelet, pod
from tests.removal import remove

GPU, FAST = "nvidia.com/gpu", "nvidia.com/fast"


@pytest.fixture
def root() -> Iterator[Path]:
    root = Path(tempfile.mkdtemp(prefix="gp"))
    yield root
    remove(root)


@pytest.fixture
async def node(root: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    """A node with two GPUs, on which a kubelet soon has had the time to hear of its pods."""
    monkeypatch.setattr(podresources, "KUBELET_START_PERIOD", 0.3)
    monkeypatch.setattr(podresources, "SHORT_INTERVAL", 0.05)
    node = Node(Snapshot())
    node.apply(MachineObserved(Machine(gpus=tuple(Gpu(index=i, uuid=f"GPU-{i}", model="T4") for i in range(2)))))
    node.apply(ConfigLoaded(Settings()))
    parts = (follow_allocations(node, root), register_plugins(node, root / "device-plugins"))
    tasks = [asyncio.create_task(part) for part in parts]
    yield node
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_what_kubelet_cannot_have_heard_of_is_withheld_and_what_has_gone_is_freed(node: Node, root: Path) -> None:
    """However long it does not hear. Then its checkpoint still names the pod until a plugin has it written anew."""
    async with Kubelet(root) as kubelet:
        await kubelet.until_capacity(GPU, 2, 2)
        await kubelet.run(pod("train", gpu=1))
        node.apply(ConfigLoaded(Settings(gpus=(NamingRule(pattern="*", name=FAST),))))
        await kubelet.until_capacity(FAST, 2, 1)
        await kubelet.stop()
        kubelet.registration.failures.knows_pods = False
        await kubelet.start()
        assert await node.wait_until(lambda s: s.checkpoint_rewrite >= 2, 60)
        await kubelet.until_capacity(FAST, 2, 1)
        await kubelet.end("default/train")
        kubelet.registration.failures.knows_pods = True
        await kubelet.until_capacity(FAST, 2, 2)
