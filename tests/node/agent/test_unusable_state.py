"""An agent whose state directory cannot be used: it believes nothing of it, and gives nothing out twice for that."""

import asyncio
import fcntl
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpuplane.node.agent.control import control
from gpuplane.node.agent.main import Agent
from gpuplane.node.agent.node import Node
from gpuplane.node.agent.options import Options
from gpuplane.node.core.advertising import UNSAVED_LAYOUT_TEXT, missing_information_reason, offer
from gpuplane.node.core.ledger import encode_part
from gpuplane.node.core.serving import standby_reason
from gpuplane.node.hardware import HARDWARE_PART
from gpuplane.node.host.state import boot_id
from gpuplane.node.host.storedledger import read_stored_ledger
from gpuplane.node.model.config import MemorySharedResource, Settings, Sharing
from gpuplane.node.model.facts import Action, ConfigLoaded, Fact, MachineObserved
from gpuplane.node.model.health import DeviceRecord, Drain, HealthRecords
from gpuplane.node.model.machine import Gpu, Machine
from gpuplane.node.model.snapshot import Ledger, Snapshot
from gpuplane.node.model.status import KUBELET_LOCK_PART
from gpuplane.sandbox.kubelet import Kubelet

DEADLINE = 60.0
MACHINE = Machine(gpus=(Gpu(index=0, uuid="GPU-0", minor=0, model="A100", memory_mib=8192),))
DRAINED = HealthRecords(devices={"GPU-0": DeviceRecord(drain=Drain(reason="fan"))})


class Still:
    """A source whose GPU never changes."""

    part = HARDWARE_PART

    async def facts(self) -> AsyncGenerator[Fact, None]:
        yield MachineObserved(MACHINE)
        await asyncio.Event().wait()

    async def do(self, action: Action) -> None:
        pass

    async def release(self) -> None:
        pass


@asynccontextmanager
async def running(root: Path) -> AsyncIterator[Agent]:
    """An agent in this process."""
    agent = Agent(Options(kubelet_root=root / "k", state_dir=root / "s"), [Still()])
    working = asyncio.create_task(agent.run())
    try:
        yield agent
    finally:
        agent._stop.set()
        await working


def ours(snapshot: Snapshot) -> bool:
    """Whether it serves."""
    return KUBELET_LOCK_PART in snapshot.statuses and not standby_reason(snapshot)


async def test_who_holds_what_is_asked_again_at_a_take_over(tmp_path: Path) -> None:
    """What the agent before it granted last is in no answer that this one had, whatever its state directory is."""
    (tmp_path / "s").write_text("no directory")
    async with Kubelet(tmp_path / "k"):
        other = os.open(tmp_path / "k/device-plugins", os.O_RDONLY)
        fcntl.flock(other, fcntl.LOCK_EX)
        async with running(tmp_path) as agent:
            assert await agent.node.wait_until(
                lambda s: bool(standby_reason(s)) and missing_information_reason(s) is None, DEADLINE
            )
            taken = asyncio.create_task(first(agent.node))
            await asyncio.sleep(0)
            os.close(other)
            async with asyncio.timeout(DEADLINE):
                assert (await taken).allocations is None
            assert await agent.node.wait_until(lambda s: not offer(s).waiting_reason, DEADLINE)


async def first(node: Node) -> Snapshot:
    """The first snapshot of an agent that serves."""
    async for snapshot in node.changes():
        if ours(snapshot):
            return snapshot
    raise AssertionError


async def test_shares_that_the_directory_says_otherwise_wait(tmp_path: Path) -> None:
    """Once it can be used again it would be believed: what is given out has to mean the same then."""
    state = tmp_path / "s"
    state.mkdir(mode=0o700)
    (state / "share-layouts.json").write_bytes(encode_part({"GPU-0": "1024 MiB"}, boot_id()))
    state.chmod(0o777)
    async with Kubelet(tmp_path / "k"), running(tmp_path) as agent:
        assert await agent.node.wait_until(lambda s: not offer(s).waiting_reason, DEADLINE)
        agent.node.apply(ConfigLoaded(shares(2048), None))
        assert {each.unavailable_reason for each in offer(agent.node.snapshot).resources[0].devices} == {
            UNSAVED_LAYOUT_TEXT
        }
        agent.node.apply(ConfigLoaded(shares(1024), None))
        assert {each.unavailable_reason for each in offer(agent.node.snapshot).resources[0].devices} == {""}


def shares(mib: int) -> Settings:
    """A configuration of shares of so much memory."""
    return Settings(
        sharing=Sharing(
            memory_resources=(
                MemorySharedResource(name="nvidia.com/gpu", rename="nvidia.com/gpu-memory", share_mib=mib),
            )
        )
    )


async def test_whoever_stands_by_believes_no_directory_that_others_can_change(tmp_path: Path) -> None:
    """It may come to serve with that."""
    state = tmp_path / "s"
    state.mkdir(mode=0o700)
    (state / "health.json").write_bytes(encode_part(DRAINED, "boot"))
    assert read_stored_ledger(state, "boot") == Ledger(boot_id="boot", health=DRAINED)
    state.chmod(0o777)
    assert read_stored_ledger(state, "boot") == Ledger(boot_id="boot")
    assert read_stored_ledger(tmp_path / "nowhere", "boot") == Ledger(boot_id="boot")


async def test_there_is_no_control_socket_where_others_could_put_another_thing(tmp_path: Path) -> None:
    """A link in its place would have another file's mode changed."""
    tmp_path.chmod(0o777)
    with pytest.raises(PermissionError):
        await asyncio.wait_for(control(Node(Snapshot()), tmp_path / "control.sock"), DEADLINE)
    assert list(tmp_path.iterdir()) == []
