"""One agent after another on a kubelet, as a DaemonSet replaces them: the new one beside the old, which then ends."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import msgspec

from gpuplane.node.core.reports.news import READY_TO_TAKE_OVER_TEXT
from gpuplane.sandbox.agent import Agent
from gpuplane.sandbox.kubelet import Container, Kubelet, Pod, PodRejected
from gpuplane.sandbox.kubelet.manager import PluginGap

STREAM_END_SECONDS = 0.1
"""Seconds before a gap in which a call to an agent that was killed may fail: the end of its stream is seen later."""


async def replace_agent(
    kubelet: Kubelet, old: Agent, new: Agent, *, kill: bool = False, deadline: float = 30.0
) -> list[PluginGap]:
    """Start an agent beside one that serves, and end that: ask it to end, or kill it. Gives the times in which kubelet
    had no plugin for a resource. Raises TimeoutError where the new one does not come to serve each that the old did.
    """
    before, served = len(kubelet.manager.gaps), set(kubelet.device_health())
    await new.start()
    await new.until_says(READY_TO_TAKE_OVER_TEXT, deadline=deadline)
    await (old.kill() if kill else old.stop())

    def served_again() -> bool:
        return {gap.resource for gap in kubelet.manager.gaps[before:]} >= served

    await kubelet.until(served_again, deadline)
    return kubelet.manager.gaps[before:]


class RejectedPod(msgspec.Struct, frozen=True):
    """A pod that was rejected: from when to when kubelet was at it, and why."""

    began: float
    ended: float
    why: str


@asynccontextmanager
async def run_pods_in_turn(kubelet: Kubelet, resource: str, count: int = 2) -> AsyncIterator[list[RejectedPod]]:
    """Pods that ask for so many devices, one after the other until the block ends. Gives those that are rejected."""
    rejected_pods: list[RejectedPod] = []

    async def play() -> None:
        for number in itertools.count():
            began, pod = time.monotonic(), Pod(f"come-{number}", (Container("main", {resource: count}),))
            try:
                await kubelet.run(pod)
            except PodRejected as rejected:
                rejected_pods.append(RejectedPod(began, time.monotonic(), str(rejected)))
                kubelet.workers.rejected_pods.pop(pod.key, None)
            else:
                await kubelet.end(pod.key)
            await asyncio.sleep(0.005)

    playing = asyncio.create_task(play())
    try:
        yield rejected_pods
    finally:
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)


def is_during_gap(pod: RejectedPod, gaps: Iterable[PluginGap]) -> bool:
    """Whether a pod came while there was no plugin."""
    return any(pod.began <= gap.ended_at and pod.ended >= gap.started_at - STREAM_END_SECONDS for gap in gaps)
