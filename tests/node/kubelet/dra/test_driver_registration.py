"""Being registered as a DRA driver through everything that can be lost, on real sockets."""

import asyncio
import os
import shutil
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from gpuplane.node.agent.node import Node
from gpuplane.node.kubelet.dra import registration
from gpuplane.node.kubelet.dra.health import HealthServer, add_health
from gpuplane.node.kubelet.dra.registration import PluginSockets, register_driver
from gpuplane.node.kubelet.protocols import drahealth_pb2
from gpuplane.node.kubelet.protocols.drahealth_pb2_grpc import DRAResourceHealthStub
from gpuplane.node.model.facts import ConfigLoaded, MachineObserved, StatusChanged
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import DRA_PLUGIN_PART, KUBELET_LOCK_PART, TurnStatus
from tests.node.core.dra.nodes import DRA, MACHINE
from tests.node.kubelet.dra.kubelet import DEADLINE, DRIVER, Watcher, connected, kubelet_root, until

OLD_POD, NEW_POD = "8a4b2c11-0d5e-4f6a-9b7c-1d2e3f405162", "f0e1d2c3-b4a5-4697-8879-6a5b4c3d2e1f"
RESTS = (0.02, 0.1)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sockets are looked at more often than on a node."""
    monkeypatch.setattr(registration, "INTERVAL", 0.05)


@pytest.fixture
async def root() -> AsyncIterator[Path]:
    async with kubelet_root() as root:
        yield root


@pytest.fixture
def node() -> Node:
    return a_node()


def a_node() -> Node:
    node = Node(Snapshot())
    node.apply(MachineObserved(MACHINE))
    node.apply(ConfigLoaded(DRA))
    return node


@asynccontextmanager
async def serving(node: Node, sockets: PluginSockets, **how: Any) -> AsyncIterator[None]:
    """The driver, until the block ends. Its service is that of health."""

    def add(server: grpc.aio.Server) -> None:
        add_health(HealthServer(node, "n1"), server)

    task = asyncio.create_task(register_driver(node, sockets, add, RESTS, **how))
    try:
        yield
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def stands(node: Node, state: str) -> None:
    """Until the status of the DRA plugin is so."""

    def ready(snapshot: Snapshot) -> bool:
        status = snapshot.statuses.of(DRA_PLUGIN_PART)
        return status is not None and status.state == state

    assert await node.wait_until(ready, DEADLINE), node.snapshot.statuses.of(DRA_PLUGIN_PART)


async def answers(path: Path | str) -> bool:
    """Whether the service at a path answers."""
    async with connected(path) as channel:
        stream = DRAResourceHealthStub(channel).NodeWatchResources(drahealth_pb2.NodeWatchResourcesRequest())
        return bool((await anext(aiter(stream))).devices)


def left_over(root: Path) -> list[str]:
    """All files."""
    return sorted(each.name for each in root.rglob("*") if not each.is_dir())


async def test_what_is_told_at_registration(node: Node, root: Path) -> None:
    """Names, order of the services and modes are those that kubelet and its helper have."""
    sockets = PluginSockets(root, DRIVER)
    async with serving(node, sockets), Watcher(root) as kubelet:
        await until(lambda: bool(kubelet.registered))
        await stands(node, "ok")
        [info] = kubelet.registered.values()
        assert (info.type, info.name) == ("DRAPlugin", "gpu.nvidia.com")
        assert info.endpoint == f"{root}/plugins/gpu.nvidia.com/dra.sock"
        assert info.supported_versions == ["v1.DRAPlugin", "v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth"]
        assert await answers(info.endpoint)
        assert left_over(root) == ["dra.sock", "gpu.nvidia.com-reg.sock"]
        for path in (sockets.service, sockets.registration):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(sockets.service.parent.stat().st_mode) & 0o007 == 0
    assert left_over(root) == []
    assert DRA_PLUGIN_PART not in node.snapshot.statuses


async def test_two_pods_have_sockets_of_their_own(node: Node, root: Path) -> None:
    sockets = PluginSockets(root, DRIVER, NEW_POD)
    async with serving(node, sockets), Watcher(root):
        await stands(node, "ok")
        assert left_over(root) == [f"dra-{NEW_POD}.sock", f"gpu.nvidia.com-{NEW_POD}-reg.sock"]


async def test_a_registration_socket_that_is_removed_is_made_again(node: Node, root: Path) -> None:
    """The service goes on: a stream of it that is open does not end."""
    sockets = PluginSockets(root, DRIVER)
    async with serving(node, sockets), Watcher(root) as kubelet, connected(sockets.service) as channel:
        await stands(node, "ok")
        stream = aiter(DRAResourceHealthStub(channel).NodeWatchResources(drahealth_pb2.NodeWatchResourcesRequest()))
        await anext(stream)
        for times in (2, 3):
            sockets.registration.unlink()
            await until(lambda times=times: len(kubelet.asked) == times and bool(kubelet.registered))  # type: ignore[misc]
            await stands(node, "ok")
        node.apply(MachineObserved(MACHINE.but(gpus=MACHINE.gpus[:1] if MACHINE.gpus else ())))
        assert (await anext(stream)).devices


async def test_the_directory_may_come_late_and_be_made_anew(node: Node, root: Path) -> None:
    registry = root / "plugins_registry"
    registry.rmdir()
    async with serving(node, PluginSockets(root, DRIVER)), Watcher(root) as kubelet:
        await stands(node, "waiting")
        await asyncio.sleep(0.2)
        assert not registry.exists()  # it is kubelet's
        registry.mkdir()
        await stands(node, "ok")
        shutil.rmtree(registry)
        await stands(node, "waiting")
        registry.mkdir()
        await stands(node, "ok")
        assert len(kubelet.asked) == 2


async def test_without_a_kubelet_nothing_is_made(node: Node, root: Path) -> None:
    missing = root / "elsewhere"
    async with serving(node, PluginSockets(missing, DRIVER)):
        await stands(node, "failing")
        assert not missing.exists()
        (missing / "plugins_registry").mkdir(parents=True)
        async with Watcher(missing):
            await stands(node, "ok")


async def test_a_service_socket_that_is_removed_is_made_again(node: Node, root: Path) -> None:
    sockets = PluginSockets(root, DRIVER)
    async with serving(node, sockets), Watcher(root) as kubelet:
        await stands(node, "ok")
        shutil.rmtree(sockets.service.parent)
        await until(lambda: len(kubelet.asked) == 2)
        await stands(node, "ok")
        assert await answers(sockets.service)


async def test_a_refusal_is_shown_and_kubelet_may_think_better_of_it(node: Node, root: Path) -> None:
    async with serving(node, PluginSockets(root, DRIVER)), Watcher(root) as kubelet:
        await stands(node, "ok")
        kubelet.refusal = "none of services supported by the plugin are supported by the kubelet \x1b[31m" + 5000 * "x"
        PluginSockets(root, DRIVER).registration.unlink()
        await stands(node, "failing")
        status = node.snapshot.statuses[DRA_PLUGIN_PART]
        assert len(status.text) < 500
        assert status.text.isprintable()
        kubelet.refusal = ""
        await stands(node, "ok")


async def test_dead_sockets_are_replaced_and_removed(node: Node, root: Path) -> None:
    """Those of agents that were killed: kubelet would dial them for ever. Files of others stay."""
    sockets, registry = PluginSockets(root, DRIVER), root / "plugins_registry"
    sockets.service.parent.mkdir(parents=True)
    dead = [sockets.service, sockets.registration, PluginSockets(root, DRIVER, OLD_POD).service]
    dead += [PluginSockets(root, DRIVER, OLD_POD).registration, registry / ".gp-0a1b"]
    others = [registry / "gpu.nvidia.com-next-reg.sock", registry / "net.example.com-reg.sock"]
    for path in (*dead, *others):
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(path))
    (sockets.service.parent / "notes").write_text("a person's")
    async with serving(node, sockets), Watcher(root):
        await stands(node, "ok")
        assert left_over(root) == sorted(["dra.sock", "gpu.nvidia.com-reg.sock", "notes", *(p.name for p in others)])


async def test_what_is_no_socket_is_left_alone(node: Node, root: Path) -> None:
    sockets = PluginSockets(root, DRIVER)
    sockets.registration.write_text("not ours")
    async with serving(node, sockets), Watcher(root):
        await stands(node, "waiting")
        await asyncio.sleep(0.2)
        assert sockets.registration.read_text() == "not ours"
        sockets.registration.unlink()
        await stands(node, "ok")


async def test_a_path_that_is_too_long_is_named(node: Node, root: Path) -> None:
    deep = root / ("d" * 90)
    (deep / "plugins_registry").mkdir(parents=True)
    async with serving(node, PluginSockets(deep, DRIVER)):
        await stands(node, "waiting")
        assert os.fspath(deep) in f"{node.snapshot.statuses[DRA_PLUGIN_PART].text}"
        assert left_over(root) == []


@pytest.mark.parametrize("name", ["gpu.nvidia.com-reg.sock", f"gpu.nvidia.com-{OLD_POD}-reg.sock"])
async def test_another_driver_of_this_name_is_left_alone(node: Node, root: Path, name: str) -> None:
    """It may come first, or while we serve: kubelet has taken it then. We serve when it has gone."""
    path = root / "plugins_registry" / name
    for comes_first in (True, False):
        async with Watcher(root):
            if comes_first:
                other = socket.socket(socket.AF_UNIX)
                other.bind(str(path))
                other.listen()
            async with serving(node, PluginSockets(root, DRIVER)):
                if not comes_first:
                    await stands(node, "ok")
                    path.unlink(missing_ok=True)
                    other = socket.socket(socket.AF_UNIX)
                    other.bind(str(path))
                    other.listen()
                await stands(node, "waiting")
                await asyncio.sleep(0.2)
                assert path.exists()
                other.close()
                path.unlink()
                await stands(node, "ok")


async def test_the_old_agent_does_not_remove_the_sockets_of_the_new_one(root: Path) -> None:
    """Both have the same names, as without the pod's UID; the new one begins before the old one has ended."""
    sockets = PluginSockets(root, DRIVER)
    old, new = a_node(), a_node()
    async with Watcher(root) as kubelet:
        async with serving(old, sockets):
            await stands(old, "ok")
            with socket.socket(socket.AF_UNIX) as theirs, socket.socket(socket.AF_UNIX) as others:
                for each, path in ((theirs, sockets.registration), (others, sockets.service)):
                    path.unlink()
                    each.bind(str(path))
                    each.listen()
                await stands(old, "waiting")
                assert sockets.registration.exists()
                assert sockets.service.exists()
        assert left_over(root) == ["dra.sock", "gpu.nvidia.com-reg.sock"]
        async with serving(new, sockets):
            await stands(new, "ok")
            await until(lambda: len(kubelet.registered) == 1)


@pytest.mark.parametrize("pods", [(OLD_POD, NEW_POD), ("", "")])
async def test_an_agent_that_stands_by_takes_over(root: Path, pods: tuple[str, str]) -> None:
    """It makes no socket before that; then kubelet has its plugin within a moment."""
    old, new, held = a_node(), a_node(), [True]
    async with Watcher(root) as kubelet:
        running = serving(old, PluginSockets(root, DRIVER, pods[0]))
        await running.__aenter__()
        await stands(old, "ok")
        mine = PluginSockets(root, DRIVER, pods[1])
        async with serving(new, mine, may_serve=lambda: not held[0]):
            await stands(new, "waiting")
            assert len(left_over(root)) == 2
            await running.__aexit__(None, None, None)
            held[0] = False
            await stands(new, "ok")
            await until(lambda: list(kubelet.registered) == [mine.registration])
            assert await answers(mine.service)


async def test_an_agent_that_was_told_to_end_does_not_register(node: Node, root: Path) -> None:
    async with serving(node, PluginSockets(root, DRIVER)), Watcher(root):
        await stands(node, "ok")
        node.apply(StatusChanged(KUBELET_LOCK_PART, TurnStatus("waiting", "it ends", turn="leaving")))
        await until(lambda: left_over(root) == [])
