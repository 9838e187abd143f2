"""What kubelet could give out, asked of a kubelet by script: only while it is wanted, and never waited for in vain."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from gpuplane.node.agent.node import Node
from gpuplane.node.kubelet import allocatable
from gpuplane.node.kubelet.allocatable import follow_allocatable
from gpuplane.node.kubelet.protocols import podresources_pb2 as pb
from gpuplane.node.model.facts import LedgerLoaded
from gpuplane.node.model.snapshot import Allocatable, Ledger, Snapshot
from gpuplane.node.model.status import ALLOCATABLE_PART
from tests.texts import as_shown

GPU, HALF = "nvidia.com/gpu", "nvidia.com/mig-3g.40gb"
DEADLINE = 60.0
WANTED = "wanted"
METHOD = "GetAllocatableResources"


class Kubelet:
    """Answers GetAllocatableResources by `answer`: bytes, so that it can also be garbage."""

    def __init__(self) -> None:
        self.asked = 0
        self.devices: dict[str, tuple[str, ...]] = {GPU: ("GPU-0", "GPU-1"), HALF: ("MIG-0",)}
        self.answer: Callable[[Any], Awaitable[bytes]] = self.list

    async def list(self, context: Any) -> bytes:
        """One entry for each device, as kubelet writes them."""
        devices = [
            pb.ContainerDevices(resource_name=name, device_ids=[id]) for name, ids in self.devices.items() for id in ids
        ]
        return pb.AllocatableResourcesResponse(devices=devices).SerializeToString()

    def refusal(self, code: grpc.StatusCode) -> Callable[[Any], Awaitable[bytes]]:
        """An answer that is an error."""

        async def refuse(context: Any) -> bytes:
            await context.abort(code, "not today")
            return b""

        return refuse

    async def hang(self, context: Any) -> bytes:
        await asyncio.Event().wait()
        return b""

    async def handle(self, request: bytes, context: Any) -> bytes:
        self.asked += 1
        return await self.answer(context)

    @asynccontextmanager
    async def serving(self, root: Path) -> AsyncIterator[None]:
        """Listen where kubelet does."""
        server, path = grpc.aio.server(), root / "pod-resources"
        path.mkdir(exist_ok=True)
        handlers: Any = {METHOD: grpc.unary_unary_rpc_method_handler(self.handle)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1.PodResourcesLister", handlers),))
        server.add_insecure_port(f"unix:{path}/kubelet.sock")
        await server.start()
        try:
            yield
        finally:
            await server.stop(None)


def is_wanted(snapshot: Snapshot) -> bool:
    return snapshot.ledger.config_name == WANTED


def want(node: Node, *, wanted: bool = True) -> None:
    """A change waits for kubelet's answer, or none does."""
    node.apply(LedgerLoaded(Ledger(config_name=WANTED if wanted else "")))


@pytest.fixture
def root() -> Iterator[Path]:
    """A short path: a socket's has 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="gp") as path:
        yield Path(path)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocatable, "INTERVAL", 0.01)
    monkeypatch.setattr(allocatable, "LONGEST_INTERVAL", 0.05)
    monkeypatch.setattr(allocatable, "LISTING_DELAY", 0.3)
    monkeypatch.setattr(allocatable, "ANSWER_TIMEOUT", 0.2)


@asynccontextmanager
async def following(root: Path) -> AsyncIterator[Node]:
    node = Node(Snapshot())
    task = asyncio.create_task(follow_allocatable(node, root, is_wanted))
    yield node
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def comes_to(node: Node, ready: Callable[[Snapshot], bool]) -> None:
    assert await node.wait_until(ready, DEADLINE), (node.snapshot.allocatable, node.snapshot.statuses)


def found(snapshot: Snapshot) -> Allocatable:
    assert snapshot.allocatable is not None
    return snapshot.allocatable


def is_failing(snapshot: Snapshot) -> bool:
    status = snapshot.statuses.of(ALLOCATABLE_PART)
    return status is not None and status.state == "failing"


async def test_kubelet_is_asked_only_while_it_is_wanted(root: Path) -> None:
    """And then again and again; an answer is as old as its question."""
    kubelet = Kubelet()
    async with kubelet.serving(root), following(root) as node:
        await asyncio.sleep(0.1)
        assert kubelet.asked == 0
        before = node.now()
        want(node)
        await comes_to(node, lambda snapshot: snapshot.allocatable is not None)
        assert found(node.snapshot).ids == {GPU: {"GPU-0", "GPU-1"}, HALF: {"MIG-0"}}
        assert before <= found(node.snapshot).requested_at <= node.now()

        del kubelet.devices[HALF]
        changed = node.now()
        await comes_to(node, lambda snapshot: HALF not in found(snapshot).ids)
        assert found(node.snapshot).requested_at >= changed
        want(node, wanted=False)
        await asyncio.sleep(0.1)
        asked = kubelet.asked
        await asyncio.sleep(0.2)
        assert kubelet.asked == asked
        assert node.snapshot.statuses.of(ALLOCATABLE_PART) is None


@pytest.mark.parametrize("how", ["hangs", "unavailable", "disabled"])
async def test_a_kubelet_that_does_not_answer_is_asked_again(root: Path, how: str) -> None:
    """It is said, nothing counts as gone meanwhile, and that it answers ends it."""
    kubelet = Kubelet()
    kubelet.answer = {
        "hangs": kubelet.hang,
        "unavailable": kubelet.refusal(grpc.StatusCode.UNAVAILABLE),
        "disabled": kubelet.refusal(grpc.StatusCode.UNKNOWN),  # "Pod Resources API GetAllocatableResources disabled"
    }[how]
    async with kubelet.serving(root), following(root) as node:
        want(node)
        await comes_to(node, is_failing)
        assert str(root) in as_shown(node.snapshot.statuses[ALLOCATABLE_PART].text)
        assert node.snapshot.allocatable is None
        kubelet.answer = kubelet.list
        await comes_to(node, lambda snapshot: snapshot.allocatable is not None and not is_failing(snapshot))


async def test_what_nobody_wants_any_more_is_no_failure(root: Path) -> None:
    """The request was withdrawn while kubelet was away."""
    async with following(root) as node:
        want(node)
        await comes_to(node, is_failing)
        want(node, wanted=False)
        await comes_to(node, lambda snapshot: snapshot.statuses.of(ALLOCATABLE_PART) is None)


async def test_a_kubelet_that_is_not_there_yet(root: Path) -> None:
    """Its socket may come at any time."""
    kubelet = Kubelet()
    async with following(root) as node:
        want(node)
        await comes_to(node, is_failing)
        async with kubelet.serving(root):
            await comes_to(node, lambda snapshot: snapshot.allocatable is not None)


async def test_a_kubelet_without_this_call_gets_the_time_to_list_what_it_has_granted(root: Path) -> None:
    """Then nothing is taken as allocatable, from the moment of the question: its list of pods has it by then."""
    kubelet = Kubelet()
    kubelet.answer = kubelet.refusal(grpc.StatusCode.UNIMPLEMENTED)
    async with kubelet.serving(root), following(root) as node:
        asked = node.now()
        want(node)
        await comes_to(node, lambda snapshot: snapshot.allocatable is not None)
        assert found(node.snapshot).ids == {}
        assert asked <= found(node.snapshot).requested_at <= node.now() - allocatable.LISTING_DELAY


async def test_garbage_is_no_answer(root: Path) -> None:
    """It is not taken for an empty one, by which devices would be gone."""
    kubelet = Kubelet()

    async def garbage(context: Any) -> bytes:
        return b"\xff\xff\xff"

    kubelet.answer = garbage
    async with kubelet.serving(root), following(root) as node:
        want(node)
        while kubelet.asked < 3:
            await asyncio.sleep(0.02)
        assert node.snapshot.allocatable is None
        kubelet.answer = kubelet.list
        await comes_to(node, lambda snapshot: snapshot.allocatable is not None)
