"""The label nvidia.com/mig.config.state of our Node, and the condition, through what others do to the Node."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from gpuplane.kubernetes.client import retry
from gpuplane.node.agent.node import Node
from gpuplane.node.apiserver import keeper, report
from gpuplane.node.apiserver import node as watching
from gpuplane.node.apiserver.nodemetadata import MigStateLabelWriter, NodeMetadataWriter
from gpuplane.node.model.config import NodeSettings, PartitionSettings, Settings
from gpuplane.node.model.facts import AllocationsListed, ConfigLoaded, Fact, MachineObserved, StatusChanged
from gpuplane.node.model.machine import Machine
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import DRIVER_PART, MIG_STATE_PART, NODE_CONDITION_PART, DriverStatus
from gpuplane.sandbox.apiserver.objects import parse_path
from gpuplane.sandbox.apiserver.server import ApiServer, InjectedFailure
from tests.node.core.partitions.gpus import an_a100
from tests.texts import as_shown

NODE = "/api/v1/nodes/n1"
REQUEST, STATE, MANAGER = "nvidia.com/mig.config", "nvidia.com/mig.config.state", "nvidia.com/gpu.deploy.mig-manager"
CONDITION = "gpuplane.io/MIGReady"
APPLY = f"PATCH {NODE}"
HALVES = MachineObserved(Machine(gpus=(an_a100(0, ("3g.40gb", 0, (3,)), ("3g.40gb", 4, (3,))),)))
SEVENTHS = MachineObserved(Machine(gpus=(an_a100(0, *(("1g.10gb", i, (1,)) for i in range(7))),)))

Json = dict[str, Any]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "PAUSE_LIMITS", (0.01, 0.05))
    monkeypatch.setattr(retry, "REFUSED_PAUSE", 0.05)
    monkeypatch.setattr(report, "WRITE_INTERVAL", 0.01)
    monkeypatch.setattr(keeper, "WRITE_INTERVAL", 0.01)


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as server:
        server.put(NODE, {"metadata": {"labels": {"kubernetes.io/hostname": "n1"}}})
        yield server


def settings(*, label: bool = True, labels: bool = False) -> Fact:
    node = NodeSettings(labels="node" if labels else "none")
    return ConfigLoaded(Settings(partitions=PartitionSettings(follow_label=label), node=node))


@asynccontextmanager
async def writing(kubeconfig: Path, *facts: Fact) -> AsyncIterator[Node]:
    """A node that follows the label, with a GPU in two halves; nobody carries out its changes."""
    node = Node(Snapshot())
    for fact in (*facts, HALVES, AllocationsListed((), 0.0), StatusChanged(DRIVER_PART, DriverStatus("ok"))):
        node.apply(fact)
    described = NodeMetadataWriter("n1", lambda snapshot: {"nvidia.com/gpu.count": str(len(snapshot.gpus))})
    tasks = [
        asyncio.ensure_future(each)
        for each in (
            watching.watch_node(node, "n1", kubeconfig),
            keeper.keep(node, MigStateLabelWriter("n1"), kubeconfig),
            keeper.keep(node, described, kubeconfig),
            report.report_conditions(node, "n1", kubeconfig),
        )
    ]
    try:
        yield node
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def metadata(server: ApiServer) -> Json:
    found: Json = server.objects.get(parse_path(NODE))["metadata"]
    return found


def state(server: ApiServer) -> str | None:
    found: str | None = (metadata(server).get("labels") or {}).get(STATE)
    return found


def condition(server: ApiServer) -> tuple[str, str]:
    """(status, reason) of the condition."""
    status = server.objects.get(parse_path(NODE)).get("status") or {}
    found = {each["type"]: each for each in status.get("conditions") or ()}
    return (found[CONDITION]["status"], found[CONDITION]["reason"]) if CONDITION in found else ("", "")


def request(server: ApiServer, name: str | None, **more: str) -> None:
    """Somebody else sets the label, or takes it away. What we wrote stays, as it does for `kubectl label`."""
    labels = {key: value for key, value in (metadata(server).get("labels") or {}).items() if key != REQUEST}
    server.put(NODE, {"metadata": {"labels": labels | ({REQUEST: name} if name is not None else {}) | more}})


async def test_the_label_follows_the_request(server: ApiServer, kubeconfig: Path) -> None:
    """Nothing is written without a request; then what it stands like; and with the request it goes."""
    async with writing(kubeconfig, settings()) as node:
        await server.until(lambda: condition(server) == ("True", "NotRequested"))
        assert APPLY not in server.requests
        request(server, "all-3g.40gb")
        await server.until(lambda: state(server) == "success")
        await server.until(lambda: condition(server) == ("True", "Applied"))
        request(server, "all-1g.10gb")
        await server.until(lambda: state(server) == "pending")
        await server.until(lambda: condition(server) == ("False", "Changing"))
        node.apply(SEVENTHS)
        await server.until(lambda: state(server) == "success")
        request(server, "all-9g")
        await server.until(lambda: (state(server), condition(server)) == ("failed", ("False", "ConfigUnknown")))
        request(server, None)
        await server.until(lambda: (state(server), condition(server)) == (None, ("True", "NotRequested")))
        assert metadata(server)["labels"] == {"kubernetes.io/hostname": "n1"}


async def test_other_labels_of_ours_stay(server: ApiServer, kubeconfig: Path) -> None:
    """They have another field manager: neither apply takes the other's labels away."""
    async with writing(kubeconfig, settings(labels=True)) as node:
        await server.until(lambda: metadata(server)["labels"].get("nvidia.com/gpu.count") == "1")
        request(server, "all-3g.40gb")
        await server.until(lambda: state(server) == "success")
        node.apply(MachineObserved(Machine(gpus=())))
        await server.until(lambda: metadata(server)["labels"].get("nvidia.com/gpu.count") == "0")
        assert state(server) is not None
        request(server, None)
        await server.until(lambda: state(server) is None)
        assert metadata(server)["labels"]["nvidia.com/gpu.count"] == "0"


async def test_it_is_written_at_once_but_not_without_end(
    server: ApiServer, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not wait for the interval of the others; then there are at most two writes a second."""
    monkeypatch.setattr(keeper, "WRITE_INTERVAL", 3600.0)
    async with writing(kubeconfig, settings()) as node:
        await server.until(lambda: condition(server)[0] == "True")
        await asyncio.sleep(keeper.URGENT_INTERVAL + 0.1)  # since it looked what an agent before it has written
        request(server, "all-3g.40gb")
        await server.until(lambda: state(server) == "success")
        writes, before = server.requests.count(APPLY), node.now()
        for _ in range(10):
            node.apply(SEVENTHS)
            await asyncio.sleep(0.05)
            node.apply(HALVES)
            await asyncio.sleep(0.05)
        assert server.requests.count(APPLY) - writes <= 1 + (node.now() - before) / keeper.URGENT_INTERVAL


async def test_not_followed_not_written(server: ApiServer, kubeconfig: Path) -> None:
    """Without the option there is neither label nor condition; a label from when it was on is taken away."""
    async with writing(kubeconfig, settings()):
        request(server, "all-3g.40gb")
        await server.until(lambda: state(server) == "success")
    async with writing(kubeconfig, settings(label=False)) as node:
        await server.until(lambda: state(server) is None)
        await node.wait_until(lambda now: NODE_CONDITION_PART in now.statuses, 30)
        node.apply(settings())
        await server.until(lambda: state(server) == "success")
        node.apply(settings(label=False))
        await server.until(lambda: state(server) is None)


async def test_nvidias_mig_manager_has_the_label(server: ApiServer, kubeconfig: Path) -> None:
    """While it acts here it says how the request stands; what it has written is not touched. Then it is ours again."""
    async with writing(kubeconfig, settings()):
        request(server, "all-3g.40gb")
        await server.until(lambda: state(server) == "success")
        request(server, "all-3g.40gb", **{MANAGER: "true", STATE: "rebooting"})
        await server.until(lambda: condition(server) == ("False", "MigManager"))
        await asyncio.sleep(0.3)
        assert state(server) == "rebooting"
        request(server, "all-3g.40gb", **{MANAGER: "false"})
        await server.until(lambda: state(server) == "success")


async def test_without_rights_it_is_said(server: ApiServer, kubeconfig: Path) -> None:
    """The part names the component that has them; it is written when they are there."""
    async with writing(kubeconfig, settings()) as node:
        await server.until(lambda: condition(server)[0] == "True")
        server.failures.append(InjectedFailure(APPLY, times=1000, code=403, message='nodes "n1" is forbidden'))
        request(server, "all-3g.40gb")

        def is_said(snapshot: Snapshot) -> bool:
            found = snapshot.statuses.of(MIG_STATE_PART)
            return found is not None and "deploy/components/mig-config" in as_shown(found.text)

        assert await node.wait_until(is_said, 30), node.snapshot.statuses
        server.failures.clear()
        await server.until(lambda: state(server) == "success")
