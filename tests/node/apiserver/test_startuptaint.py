"""The startup taint is lifted when the devices are served, never put on, and no other taint is touched."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from gpuplane.kubernetes.client import retry
from gpuplane.node.agent.node import Node
from gpuplane.node.apiserver import keeper
from gpuplane.node.apiserver import node as watching
from gpuplane.node.apiserver.startuptaint import StartupTaint
from gpuplane.node.model.config import NodeSettings, Settings
from gpuplane.node.model.facts import AllocationsListed, ConfigLoaded, Fact, MachineObserved, StatusChanged
from gpuplane.node.model.machine import Gpu, Machine
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import API_SERVER_PART, STARTUP_TAINT_PART, Status, plugin_part
from gpuplane.sandbox.apiserver.objects import parse_path
from gpuplane.sandbox.apiserver.server import ApiServer, InjectedFailure
from tests.texts import as_shown

NODE, KEY = "/api/v1/nodes/n1", "example.com/starting"
OURS = {"key": KEY, "effect": "NoSchedule", "value": "true"}
OTHER = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
LATE = {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}
REGISTERED = StatusChanged(plugin_part("nvidia.com/gpu"), Status("ok"))

Json = dict[str, Any]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "PAUSE_LIMITS", (0.01, 0.05))
    monkeypatch.setattr(retry, "REFUSED_PAUSE", 0.05)
    monkeypatch.setattr(keeper, "WRITE_INTERVAL", 0.01)


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as server:
        server.put(NODE, {"spec": {"podCIDR": "10.0.0.0/24", "taints": [OTHER, OURS, LATE]}})
        yield server


@asynccontextmanager
async def lifting(server: ApiServer, root: Path, key: str = KEY, *more: Fact) -> AsyncIterator[Node]:
    path = root / "kubeconfig"
    path.write_text(server.kubeconfig())
    node = Node(Snapshot())
    task = asyncio.ensure_future(keeper.keep(node, StartupTaint("n1"), path))
    node.apply(ConfigLoaded(Settings(device_list_strategy=("envvar",), node=NodeSettings(startup_taint=key))))
    node.apply(MachineObserved(Machine(gpus=(Gpu(index=0, uuid="GPU-0"),))))
    node.apply(AllocationsListed((), 0.0))
    for fact in more:
        node.apply(fact)
    try:
        yield node
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def taints(server: ApiServer) -> list[Json]:
    found: list[Json] = server.objects.get(parse_path(NODE))["spec"]["taints"]
    return found


async def stands(node: Node, standing: str, reason: str = "") -> None:
    def there(snapshot: Snapshot) -> bool:
        found = snapshot.statuses.of(STARTUP_TAINT_PART)
        return found is not None and found.state == standing and reason in as_shown(found.text)

    assert await node.wait_until(there, 60), node.snapshot.statuses


async def test_it_is_lifted_when_kubelet_reads_the_list(server: ApiServer, tmp_path: Path) -> None:
    """Not before; the others stay as they are."""
    async with lifting(server, tmp_path) as node:
        await asyncio.sleep(0.2)
        assert server.requests == []
        node.apply(REGISTERED)
        await stands(node, "ok")
        assert taints(server) == [OTHER, LATE]
        assert server.objects.get(parse_path(NODE))["spec"]["podCIDR"] == "10.0.0.0/24"

        node.apply(StatusChanged(plugin_part("nvidia.com/gpu"), Status("failing", "refused")))
        await asyncio.sleep(0.2)
        assert taints(server) == [OTHER, LATE]


async def test_each_effect_of_it_goes(server: ApiServer, tmp_path: Path) -> None:
    """A key may be there twice."""
    server.put(NODE, {"spec": {"taints": [OURS, OTHER, {**OURS, "effect": "NoExecute"}]}})
    async with lifting(server, tmp_path, KEY, REGISTERED) as node:
        await stands(node, "ok")
        assert taints(server) == [OTHER]


@pytest.mark.parametrize("key", ["", "example.com/start"])
async def test_what_is_not_named_stays(server: ApiServer, tmp_path: Path, key: str) -> None:
    async with lifting(server, tmp_path, key, REGISTERED) as node:
        if key:
            await stands(node, "ok")
        else:
            await asyncio.sleep(0.2)
            assert server.requests == []
        assert taints(server) == [OTHER, OURS, LATE]
        assert f"PATCH {NODE}" not in server.requests


async def test_taints_that_change_meanwhile(server: ApiServer, tmp_path: Path) -> None:
    """Nothing is done to a list that is not the one that was read; the next try reads it again."""
    server.failures.append(InjectedFailure(f"PATCH {NODE}", delay=0.3))
    async with lifting(server, tmp_path, KEY, REGISTERED) as node:
        await server.until(lambda: f"PATCH {NODE}" in server.requests)
        server.put(NODE, {"spec": {"taints": [LATE, OTHER, OURS]}})
        await stands(node, "failing", " 422 ")
        await stands(node, "ok")
        assert taints(server) == [LATE, OTHER]


async def test_without_the_right(server: ApiServer, tmp_path: Path) -> None:
    """It is said which component has it, and tried again."""
    server.failures.append(InjectedFailure("PATCH *", code=403, message="cannot patch nodes"))
    async with lifting(server, tmp_path, KEY, REGISTERED) as node:
        await stands(node, "failing", "deploy/components/startup-taint has the rights")
        await stands(node, "ok")
        assert taints(server) == [OTHER, LATE]


async def watched(node: Node, state: str) -> None:
    def there(snapshot: Snapshot) -> bool:
        found = snapshot.statuses.of(API_SERVER_PART)
        return found is not None and found.state == state

    assert await node.wait_until(there, 60)


async def test_a_node_that_is_made_again(server: ApiServer, tmp_path: Path) -> None:
    """Kubelet registers it with the taint, and it is lifted again."""
    async with lifting(server, tmp_path, KEY, REGISTERED) as node:
        watch = asyncio.ensure_future(watching.watch_node(node, "n1", tmp_path / "kubeconfig"))
        await server.until(lambda: taints(server) == [OTHER, LATE])
        await watched(node, "ok")
        server.put(NODE, None)
        await watched(node, "waiting")
        server.put(NODE, {"spec": {"taints": [OURS]}})
        await server.until(lambda: taints(server) == [])
        watch.cancel()
        with suppress(asyncio.CancelledError):
            await watch
