"""What a real agent writes about its node for others, over real HTTP: the annotation, the labels, the startup taint."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpuplane.kubernetes.contracts.nodeannotation import ANNOTATION, decode_node_gpus
from gpuplane.kubernetes.contracts.nodegpus import NodeGpus
from gpuplane.sandbox.agent import Agent
from gpuplane.sandbox.apiserver.objects import parse_path
from gpuplane.sandbox.apiserver.server import ApiServer
from gpuplane.sandbox.kubelet import Kubelet, pod

GPU, NODE, TAINT = "nvidia.com/gpu", "/api/v1/nodes/n1", "example.com/starting"
WRITES = f"PATCH {NODE}"

Json = dict[str, Any]


class Place:
    """A node of two GPUs with its Node object, and what an agent needs."""

    def __init__(self, root: Path, server: ApiServer) -> None:
        self.root, self.server = root, server
        (root / "kubeconfig").write_text(server.kubeconfig())
        rows = (f"- {{index: {i}, uuid: GPU-{i}, model: NVIDIA H100, memory_mib: 81559}}\n" for i in range(2))
        (root / "machine.yaml").write_text("gpus:\n" + "".join(rows))
        server.put(NODE, {"spec": {"taints": [{"key": TAINT}, {"key": "other"}]}, "status": {}})

    def agent(self, config: str) -> Agent:
        (self.root / "config.yaml").write_text(f"version: v1\n{config}\n")
        return Agent(
            "--machine", self.root / "machine.yaml", "--config", self.root / "config.yaml", "--kubelet-root", self.root,
            "--state-dir", self.root / "state", "--node-name", "n1", "--kubeconfig", self.root / "kubeconfig",
        )  # fmt: skip

    @property
    def node(self) -> Json:
        return self.server.objects.get(parse_path(NODE))

    @property
    def annotation(self) -> str:
        found: str = self.node["metadata"].get("annotations", {}).get(ANNOTATION, "")
        return found

    @property
    def labels(self) -> Json:
        found: Json = self.node["metadata"].get("labels", {})
        return found

    @property
    def gpus(self) -> NodeGpus:
        return decode_node_gpus(self.annotation)

    @property
    def taints(self) -> list[str]:
        return [each["key"] for each in self.node["spec"].get("taints", ())]


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with ApiServer() as server:
        yield Place(tmp_path, server)


async def test_the_annotation_and_the_taint(place: Place) -> None:
    """A pod's GPU is there with its name; the taint goes when kubelet has the list; what is switched off goes."""
    async with Kubelet(place.root) as kubelet:
        async with place.agent(f"node: {{annotation: true, startupTaint: {TAINT}}}") as agent:
            await place.server.until(lambda: place.taints == ["other"])
            await kubelet.until_capacity(GPU, 2, 2)
            await place.server.until(lambda: bool(place.annotation))
            assert [(each.index, each.ids, each.state) for each in place.gpus.gpus] == [
                ("0", 1, "healthy"),
                ("1", 1, "healthy"),
            ]
            await kubelet.run(pod("train", gpu=1))
            await place.server.until(
                lambda: [str(each.holder) for each in place.gpus.holdings] == ["default/train/main"]
            )
            await agent.until_says("node metadata: ok")
            await agent.kill()
        before = place.annotation
        async with place.agent(f"node: {{annotation: true, startupTaint: {TAINT}}}") as agent:
            await agent.until_says("node metadata: ok")
            assert place.annotation == before
            await agent.kill()
        async with place.agent("node: {}"):
            await place.server.until(lambda: not place.annotation)
            assert place.taints == ["other"]


async def test_labels(place: Place) -> None:
    """They follow a change of the configuration while the agent runs."""
    async with Kubelet(place.root), place.agent("node: {labels: node}"):
        await place.server.until(lambda: place.labels.get("nvidia.com/gpu.count") == "2")
        (place.root / "config.yaml").write_text("version: v1\nnode: {labels: none}\n")
        await place.server.until(lambda: place.labels == {})


async def test_by_default_nothing_is_written(place: Place) -> None:
    """But the conditions, as ever."""
    async with Kubelet(place.root) as kubelet, place.agent("node: {}"):
        await kubelet.until_capacity(GPU, 2, 2)
        await place.server.until(lambda: len(place.node["status"].get("conditions", ())) == 2)
        assert WRITES not in place.server.requests
        assert place.taints == [TAINT, "other"]


async def test_labels_in_a_file(place: Place) -> None:
    """The same labels, for node-feature-discovery."""
    path = place.root / "features" / "gfd"
    path.parent.mkdir()
    file = f"flags: {{gfd: {{outputFile: {path}}}}}"
    async with Kubelet(place.root), place.agent(f"{file}\nnode: {{labels: file}}") as agent:
        await agent.until_says("features file: ok")
        assert "nvidia.com/gpu.count=2" in path.read_text().splitlines()
        (place.root / "config.yaml").write_text(f"version: v1\n{file}\n")
        async with asyncio.timeout(60):
            while path.exists():
                await asyncio.sleep(0.05)


async def test_without_the_name_of_the_node(tmp_path: Path) -> None:
    """What is wanted cannot be, and that is said."""
    async with ApiServer() as server, Kubelet(tmp_path):
        place = Place(tmp_path, server)
        (tmp_path / "config.yaml").write_text("version: v1\nnode: {annotation: true}\n")
        arguments = ("--machine", tmp_path / "machine.yaml", "--config", tmp_path / "config.yaml")
        async with Agent(*arguments, "--kubelet-root", tmp_path, "--state-dir", tmp_path / "state") as agent:
            assert "need --node-name" in await agent.until_says("node metadata: failing")
        assert not place.annotation
