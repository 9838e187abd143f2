"""The NodeFeature object of node-feature-discovery: what it says, and when it goes."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from gpuplane.kubernetes.client import retry
from gpuplane.node.agent.node import Node
from gpuplane.node.apiserver import keeper
from gpuplane.node.apiserver.nodefeature import NodeFeature
from gpuplane.node.model.config import LabelTarget, NodeSettings, Settings
from gpuplane.node.model.facts import ConfigLoaded, Fact, MachineObserved
from gpuplane.node.model.machine import Gpu, Machine
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import NODE_FEATURE_PART
from gpuplane.sandbox.apiserver.objects import parse_path
from gpuplane.sandbox.apiserver.server import ApiServer, InjectedFailure
from tests.texts import as_shown

NODE = "/api/v1/nodes/n1"
FEATURE = "/apis/nfd.k8s-sigs.io/v1alpha1/namespaces/gpus/nodefeatures/nvidia-features-for-n1"

Json = dict[str, Any]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "PAUSE_LIMITS", (0.01, 0.05))
    monkeypatch.setattr(retry, "REFUSED_PAUSE", 0.05)
    monkeypatch.setattr(keeper, "WRITE_INTERVAL", 0.01)


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as server:
        server.put(NODE, {})
        yield server


def count_labels(snapshot: Snapshot) -> Mapping[str, str] | None:
    return None if snapshot.machine is None else {"nvidia.com/gpu.count": str(len(snapshot.gpus)), "odd": "1"}


def wanted(labels: LabelTarget = "node-feature") -> Fact:
    return ConfigLoaded(Settings(node=NodeSettings(labels=labels)))


def machine(gpus: int) -> Fact:
    return MachineObserved(Machine(gpus=tuple(Gpu(index=i, uuid=f"GPU-{i}") for i in range(gpus))))


@asynccontextmanager
async def writing(server: ApiServer, root: Path, *facts: Fact) -> AsyncIterator[Node]:
    path = root / "kubeconfig"
    config = yaml.safe_load(server.kubeconfig())
    config["contexts"][0]["context"]["namespace"] = "gpus"
    path.write_bytes(msgspec.json.encode(config))
    node = Node(Snapshot())
    task = asyncio.ensure_future(keeper.keep(node, NodeFeature("n1", count_labels, path), path))
    for fact in facts:
        node.apply(fact)
    try:
        yield node
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def feature(server: ApiServer) -> Json | None:
    return server.objects.get(parse_path(FEATURE)) if server.objects.has(parse_path(FEATURE)) else None


def labels_of(server: ApiServer) -> Json | None:
    found = feature(server)
    return None if found is None else found["spec"].get("labels", {})


async def stands(node: Node, standing: str, reason: str = "") -> None:
    def there(snapshot: Snapshot) -> bool:
        found = snapshot.statuses.of(NODE_FEATURE_PART)
        return found is not None and found.state == standing and reason in as_shown(found.text)

    assert await node.wait_until(there, 60), node.snapshot.statuses


async def test_it_is_the_object_of_gpu_feature_discovery(server: ApiServer, tmp_path: Path) -> None:
    """By name, label and fields, in our own namespace; it goes with the Node."""
    async with writing(server, tmp_path, wanted(), machine(8)) as node:
        await stands(node, "ok", "left out because Kubernetes would refuse them: odd")
        found = feature(server)
        assert found is not None
        assert found["spec"] == {
            "features": {"flags": {}, "attributes": {}, "instances": {}},
            "labels": {"nvidia.com/gpu.count": "8"},
        }
        metadata = found["metadata"]
        assert metadata["labels"] == {
            "nfd.node.kubernetes.io/node-name": "n1",
            "app.kubernetes.io/managed-by": "gpuplane",
        }
        uid = server.objects.get(parse_path(NODE))["metadata"]["uid"]
        assert metadata["ownerReferences"] == [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": uid}]

        node.apply(machine(4))
        await server.until(lambda: labels_of(server) == {"nvidia.com/gpu.count": "4"})
        assert f"PATCH {NODE}" not in server.requests


async def test_it_goes_when_it_is_switched_off(server: ApiServer, tmp_path: Path) -> None:
    async with writing(server, tmp_path, wanted(), machine(8)) as node:
        await server.until(lambda: feature(server) is not None)
        node.apply(wanted("none"))
        await server.until(lambda: feature(server) is None)
        node.apply(wanted())
        await server.until(lambda: feature(server) is not None)


async def test_without_wishes_nothing_is_asked(server: ApiServer, tmp_path: Path) -> None:
    async with writing(server, tmp_path, wanted("none"), machine(8)):
        await asyncio.sleep(0.2)
    assert server.requests == []


async def test_that_of_somebody_else(server: ApiServer, tmp_path: Path) -> None:
    """GPU Feature Discovery's is taken over; what it says beside ours stays."""
    theirs = {"spec": {"labels": {"nvidia.com/gpu.count": "1", "nvidia.com/gpu.family": "hopper"}, "features": {}}}
    server.put(FEATURE, theirs, "gpu-feature-discovery")
    async with writing(server, tmp_path, wanted(), machine(8)):
        both = {"nvidia.com/gpu.count": "8", "nvidia.com/gpu.family": "hopper"}
        await server.until(lambda: labels_of(server) == both)


async def test_without_node_feature_discovery_or_the_right(server: ApiServer, tmp_path: Path) -> None:
    """It is said, and tried again."""
    server.failures += [
        InjectedFailure("PATCH *", code=404, message="the server could not find the requested resource"),
        InjectedFailure("PATCH *", code=403, message="cannot patch nodefeatures"),
    ]
    async with writing(server, tmp_path, wanted(), machine(8)) as node:
        await stands(node, "failing", "could not find the requested resource")
        await stands(node, "failing", "deploy/components/node-feature has the rights")
        await stands(node, "ok")
