"""Files and answers of others that have no end, or never come: what they cost an agent that serves."""

import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil

from bench.node import latencies
from bench.rig import EIGHT, GPU
from bench.row import Measure, Row
from gpuplane.node.hardware.described.profiles import find_machine_file
from gpuplane.sandbox.agent import Agent
from gpuplane.sandbox.apiserver.server import ApiServer, InjectedFailure
from gpuplane.sandbox.kubelet import Kubelet
from tests import hostile

SETTLE = 3.0  # seconds in which all of it is looked at, and tried again
CALLS = 1000
NODE = "/api/v1/nodes/n1"


class Place:
    """An agent that serves beside kubelet and an API server, and the files that it reads."""

    def __init__(self, root: Path, server: ApiServer, kubelet: Kubelet, agent: Agent) -> None:
        self.root, self.server, self.kubelet, self.agent = root, server, kubelet, agent
        self.read = [root / name for name in ("machine.yaml", "config.yaml", "kubeconfig", "cdi/other.json")]
        self.ids = sorted(kubelet.device_health()[GPU])

    async def allocate(self) -> float:
        """p50 seconds of an Allocate of two GPUs."""
        _, allocate, _ = await asyncio.to_thread(latencies, self.kubelet, self.ids, self.ids[:2], CALLS)
        return allocate

    def begin(self) -> int:
        """Bytes that the agent has now; the most that it has is counted from here."""
        Path(f"/proc/{self.agent.process.pid}/clear_refs").write_text("5")
        return int(psutil.Process(self.agent.process.pid).memory_info().rss)

    def most(self) -> int:
        """The most bytes that it has had."""
        lines = Path(f"/proc/{self.agent.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


@asynccontextmanager
async def serving() -> AsyncIterator[Place]:
    """Such a place."""
    with tempfile.TemporaryDirectory(prefix="gpuplane-bench-") as directory:
        root = Path(directory)
        shutil.copy(find_machine_file(EIGHT), root / "machine.yaml")
        (root / "config.yaml").write_text("version: v1\n")
        (root / "cdi").mkdir()
        async with ApiServer() as server, Kubelet(root / "k") as kubelet:
            server.put(NODE, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
            (root / "kubeconfig").write_text(server.kubeconfig())
            async with Agent(
                "--machine", root / "machine.yaml", "--config", root / "config.yaml", "--kubelet-root", root / "k",
                "--state-dir", root / "s", "--cdi-dir", root / "cdi", "--node-name", "n1",
                "--kubeconfig", root / "kubeconfig", "--metrics-address", "127.0.0.1:0",
            ) as agent:  # fmt: skip
                await kubelet.until_capacity(GPU, 8, 8, deadline=30)
                await agent.until_says("apiserver: ok")
                await asyncio.sleep(SETTLE)
                yield Place(root, server, kubelet, agent)


async def files() -> list[Row]:
    """hostile files in the place of each that is read"""
    ratio = memory = seconds = 0.0
    for kind in hostile.KINDS:
        async with serving() as place:
            before, had = await place.allocate(), place.begin()
            for path in place.read:
                hostile.put(path, kind)
            await place.server.drop_connections()
            await asyncio.sleep(SETTLE)
            ratio = max(ratio, await place.allocate() / before)
            memory = max(memory, place.most() - had)
            seconds = max(seconds, await _end(place))
    how = f"the worst of {', '.join(hostile.KINDS)}, in the place of all at once"
    return [
        Row("Allocate with hostile files / before", ratio, 1.25, "×", how),
        Row("memory more with hostile files, the most at any time", memory / 1e6, 16, "MB", how),
        Row("SIGTERM to the end with hostile files", seconds, 3, "s", how),
    ]


async def answers() -> list[Row]:
    """an API server that never stops"""
    ratio = memory = seconds = 0.0
    pieces = {
        "spaces": b" " * (1 << 16),
        "lines": b'{"type":"BOOKMARK","object":{"metadata":{}}}\n' * 1000,
        "bytes": b"1",
    }
    for piece in pieces.values():
        async with serving() as place:
            before, had = await place.allocate(), place.begin()
            place.server.failures.append(InjectedFailure("*", times=1 << 30, endless=piece))
            await place.server.drop_connections()
            await asyncio.sleep(SETTLE)
            ratio = max(ratio, await place.allocate() / before)
            memory = max(memory, place.most() - had)
            seconds = max(seconds, await _end(place))
    how = f"the worst of {', '.join(pieces)}, to every request"
    return [
        Row("Allocate with endless answers of the API server / before", ratio, 1.25, "×", how),
        Row("memory more with endless answers, the most at any time", memory / 1e6, 16, "MB", how),
        Row("SIGTERM to the end with endless answers", seconds, 3, "s", how),
    ]


async def _end(place: Place) -> float:
    """Seconds."""
    began = time.perf_counter()
    assert await place.agent.stop(deadline=30) == 0
    return time.perf_counter() - began


MEASURES: tuple[Measure, ...] = (files, answers)
