"""The DRA driver as a part of the agent: processes, a configuration that changes, and an agent that stands by."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpuplane.node.core.reports.news import READY_TO_TAKE_OVER_TEXT
from gpuplane.node.kubelet.dra.registration import PluginSockets
from gpuplane.node.kubelet.protocols import dra_v1_pb2 as pb
from gpuplane.node.kubelet.protocols.dra_v1_pb2_grpc import DRAPluginStub
from gpuplane.sandbox.agent import Agent
from gpuplane.sandbox.kubelet import Kubelet
from tests.node.kubelet.dra.kubelet import DRIVER, Watcher, connected, kubelet_root, until

MACHINE = "gpus:\n- {index: 0, uuid: GPU-a, minor: 0, model: NVIDIA A100}\n"
OLD_POD, NEW_POD = "8a4b2c11-0d5e-4f6a-9b7c-1d2e3f405162", "f0e1d2c3-b4a5-4697-8879-6a5b4c3d2e1f"
CLAIM = pb.Claim(namespace="default", name="a", uid="b0e1d2c3-b4a5-4697-8879-6a5b4c3d2e1f")


@pytest.fixture
async def root() -> AsyncIterator[Path]:
    async with kubelet_root() as root:
        (root / "device-plugins").mkdir()
        (root / "machine.yaml").write_text(MACHINE)
        configure(root, enabled=True)
        yield root


def configure(root: Path, *, enabled: bool, driver: str = DRIVER) -> None:
    """Write the configuration."""
    settings = {"version": "v1", "dra": {"enabled": enabled, "driverName": driver}}
    (root / "config.yaml").write_text(json.dumps(settings))


def agent(root: Path, state: str, *more: str) -> Agent:
    return Agent(
        "--machine", root / "machine.yaml", "--config", root / "config.yaml", "--kubelet-root", root,
        "--state-dir", root / state, *more,
    )  # fmt: skip


def sockets(root: Path) -> list[str]:
    """The sockets of DRA drivers."""
    found = [*(root / "plugins").rglob("*.sock"), *(root / "plugins_registry").iterdir()]
    return sorted(each.name for each in found)


async def until_registered(kubelet: Watcher, path: Path) -> None:
    """Until kubelet has this socket alone."""
    await until(lambda: list(kubelet.registered) == [path])


async def test_it_follows_the_configuration(root: Path) -> None:
    """Enabled, disabled, enabled under another name: without a restart, and beside the device plugin."""
    async with Kubelet(root) as kubelet, Watcher(root) as watcher, agent(root, "state") as running:
        await until_registered(watcher, PluginSockets(root, DRIVER).registration)
        await kubelet.until_capacity("nvidia.com/gpu", 1, 1)
        configure(root, enabled=False)
        await until(lambda: sockets(root) == [])
        configure(root, enabled=True, driver="gpu.example.com")
        await until_registered(watcher, PluginSockets(root, "gpu.example.com").registration)
        assert sockets(root) == ["dra.sock", "gpu.example.com-reg.sock"]
        assert kubelet.manager.gaps == []
        assert await running.stop() == 0
        assert sockets(root) == []


async def test_claims_are_answered_without_an_api_server(root: Path) -> None:
    """By an error, as nothing can be fetched; what is unknown is unprepared."""
    async with Watcher(root) as watcher, agent(root, "state"):
        await until(lambda: bool(watcher.registered))
        [info] = watcher.registered.values()
        async with connected(info.endpoint) as channel:
            stub = DRAPluginStub(channel)
            prepared = await stub.NodePrepareResources(pb.NodePrepareResourcesRequest(claims=[CLAIM]), timeout=45)
            assert prepared.claims[CLAIM.uid].error.startswith("claim-not-fetched:")
            ended = await stub.NodeUnprepareResources(pb.NodeUnprepareResourcesRequest(claims=[CLAIM]), timeout=45)
            assert {uid: each.error for uid, each in ended.claims.items()} == {CLAIM.uid: ""}


@pytest.mark.parametrize("pods", [(OLD_POD, NEW_POD), ("", "")])
@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_an_agent_that_stands_by_takes_over(root: Path, pods: tuple[str, str], end: str) -> None:
    """Also from one that was killed, whose sockets are left: kubelet has one plugin then."""
    old, new = (PluginSockets(root, DRIVER, pod) for pod in pods)
    async with Kubelet(root), Watcher(root) as watcher, agent(root, "state", f"--pod-uid={pods[0]}") as first:
        await until_registered(watcher, old.registration)
        async with agent(root, "state", f"--pod-uid={pods[1]}") as second:
            await second.until_says(READY_TO_TAKE_OVER_TEXT)
            assert len(sockets(root)) == 2
            await (first.stop() if end == "stop" else first.kill())
            await until(lambda: len(watcher.asked) >= 2 and list(watcher.registered) == [new.registration])
            assert sockets(root) == sorted([new.service.name, new.registration.name])
            assert await second.stop() == 0
        assert sockets(root) == []


async def test_inspect_shows_the_part(root: Path) -> None:
    async with Watcher(root) as watcher, agent(root, "state"):
        await until(lambda: bool(watcher.registered))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gpuplane", "inspect", "--state-dir", root / "state", "--json", stdout=PIPE
        )
        out, _ = await process.communicate()
        told = json.loads(out)
        assert [each["state"] for each in told["parts"] if each["name"] == "dra plugin"] == ["ok"]
