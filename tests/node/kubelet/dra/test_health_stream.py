"""The stream of health over a real socket."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from gpuplane.node.agent.node import Node
from gpuplane.node.kubelet.dra.health import HealthServer, add_health
from gpuplane.node.kubelet.protocols import drahealth_pb2 as pb
from gpuplane.node.kubelet.protocols.drahealth_pb2_grpc import DRAResourceHealthStub
from gpuplane.node.kubelet.sockets import serve_at
from gpuplane.node.model.facts import ConfigLoaded, MachineObserved, StatusChanged
from gpuplane.node.model.machine import Fault
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import KUBELET_LOCK_PART, TurnStatus
from tests.node.core.dra.nodes import DRA, GPUS, MACHINE
from tests.node.kubelet.dra.kubelet import connected, kubelet_root

FAULTS = (Fault("gpu-lost", "it is gone"),)
SICK = MACHINE.but(gpus=(GPUS[0].but(faults=FAULTS), *GPUS[1:]))


@pytest.fixture
async def root() -> AsyncIterator[Path]:
    async with kubelet_root() as root:
        yield root


@asynccontextmanager
async def serving(node: Node, root: Path, keep_alive: float = 30.0) -> AsyncIterator[Path]:
    server = HealthServer(node, "n1", keep_alive)
    async with serve_at(root / "dra.sock", partial(add_health, server)):
        yield root / "dra.sock"


@asynccontextmanager
async def stream(socket: Path) -> AsyncIterator[AsyncIterator[pb.NodeWatchResourcesResponse]]:
    """The messages of a stream of its own."""
    async with connected(socket) as channel:
        yield aiter(DRAResourceHealthStub(channel).NodeWatchResources(pb.NodeWatchResourcesRequest()))


def sick(message: pb.NodeWatchResourcesResponse) -> list[str]:
    """The devices that are not healthy."""
    return [each.device.device_name for each in message.devices if each.health != pb.HEALTHY]


def watched() -> Node:
    node = Node(Snapshot())
    node.apply(ConfigLoaded(DRA))
    node.apply(MachineObserved(MACHINE))
    return node


async def test_each_change_is_told_as_a_whole_list(root: Path) -> None:
    node = watched()
    async with serving(node, root) as socket, stream(socket) as messages:
        first = await anext(messages)
        assert [(each.device.pool_name, each.device.device_name) for each in first.devices] == [
            (f"n1/gpu-{n}", f"gpu-{n}") for n in range(4)
        ]
        assert {each.health_check_timeout_seconds for each in first.devices} == {30}
        assert all(abs(each.last_updated_time - time.time()) < 60 for each in first.devices)
        node.apply(MachineObserved(SICK))
        second = await anext(messages)
        assert sick(second) == ["gpu-0"]
        assert len(second.devices) == 4
        assert 0 < len(second.devices[0].message) <= 1024


async def test_the_list_is_sent_again_before_it_is_outdated(root: Path) -> None:
    node = watched()
    async with serving(node, root, keep_alive=0.05) as socket, stream(socket) as messages:
        lists = [await anext(messages) for _ in range(5)]
        assert all(len(each.devices) == 4 for each in lists)


async def test_nothing_is_said_before_the_first_look(root: Path) -> None:
    node = Node(Snapshot())
    async with serving(node, root, keep_alive=0.01) as socket, stream(socket) as messages:
        first = asyncio.ensure_future(anext(messages))
        await asyncio.sleep(0.2)
        assert not first.done()
        node.apply(MachineObserved(MACHINE.but(gpus=())))
        assert not (await first).devices
        node.apply(MachineObserved(MACHINE))
        while not (await anext(messages)).devices:
            pass


async def test_a_stream_that_nobody_reads_delays_no_other(root: Path) -> None:
    """Its messages pile up in its socket until that is full; then it skips."""
    node = watched()
    async with serving(node, root, keep_alive=0.0005) as socket, stream(socket) as unread, stream(socket) as messages:
        await anext(unread)
        await anext(messages)
        for n in range(4):
            gpus = (GPUS[each].but(faults=FAULTS if each <= n else ()) for each in range(4))
            node.apply(MachineObserved(MACHINE.but(gpus=tuple(gpus))))
            async with asyncio.timeout(30):
                while len(sick(await anext(messages))) != n + 1:
                    pass


async def test_streams_end_when_this_agent_serves_no_more(root: Path) -> None:
    node = watched()
    async with serving(node, root) as socket, stream(socket) as messages, stream(socket) as others:
        await anext(messages)
        await anext(others)
        node.apply(StatusChanged(KUBELET_LOCK_PART, TurnStatus("waiting", "it ends", turn="left")))
        for each in (messages, others):
            with pytest.raises(StopAsyncIteration):
                await anext(each)


async def test_a_client_that_hangs_up_ends_its_stream_alone(root: Path) -> None:
    node = watched()
    async with serving(node, root) as socket, stream(socket) as messages:
        await anext(messages)
        for _ in range(5):
            async with stream(socket) as other:
                await anext(other)
        node.apply(MachineObserved(SICK))
        assert sick(await anext(messages)) == ["gpu-0"]
        async with asyncio.timeout(30):
            while sum("NodeWatchResources" in repr(task) for task in asyncio.all_tasks()) > 1:
                await asyncio.sleep(0.01)
