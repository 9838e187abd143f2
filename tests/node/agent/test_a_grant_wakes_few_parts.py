"""A part of the agent sleeps until what it follows has changed: an answer to Allocate wakes almost none of them."""

import asyncio
from pathlib import Path

from gpuplane.node.agent.node import Node
from gpuplane.node.core.advertising import offer
from gpuplane.node.model.facts import AllocateAnswered, DrainRequested
from gpuplane.node.model.health import Drain
from gpuplane.sandbox.kubelet.server import Kubelet
from tests.node.agent.test_unusable_state import DEADLINE, running

GPU = "nvidia.com/gpu"
SETTLED = 0.5
"""Seconds without a change, after which an agent that has just started has come to rest."""


async def woken_by(node: Node, fact: AllocateAnswered | DrainRequested) -> int:
    """How many of the tasks that wait for the node are woken by a fact alone."""
    before = -1
    while before != node.snapshot.generation:
        before = node.snapshot.generation
        await asyncio.sleep(SETTLED)
    asleep = [each for each in node._waiting if not each.is_set()]
    node.apply(fact)
    node._wake()
    return sum(each.is_set() for each in asleep)


async def test_an_answer_to_allocate_wakes_whoever_asks_kubelet_and_nobody_else(tmp_path: Path) -> None:
    """A drain, by contrast, is for kubelet's list and for the disk."""
    async with Kubelet(tmp_path / "k") as kubelet, running(tmp_path) as agent:
        assert await agent.node.wait_until(lambda s: not offer(s).waiting_reason, DEADLINE)
        await kubelet.until_capacity(GPU, 1, 1)
        waiting = len(agent.node._waiting)

        granted = await woken_by(agent.node, AllocateAnswered(GPU, ("GPU-0",)))
        drained = await woken_by(agent.node, DrainRequested("GPU-0", Drain(reason="fan")))

        assert waiting >= 10
        assert granted <= 1
        assert 2 <= drained <= 4
        await kubelet.until_capacity(GPU, 1, 0)
