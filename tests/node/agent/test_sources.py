"""An agent has a list of sources. Each is a part of its own, so what fails costs its own kinds alone."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from gpuplane.node.agent.main import Agent
from gpuplane.node.agent.options import Options
from gpuplane.node.hardware import Actor, Sampler, Source
from gpuplane.node.hardware.plain.source import PlainDevices
from gpuplane.node.model.facts import DevicesObserved, Fact
from gpuplane.node.model.machine import Device, DeviceList
from gpuplane.node.model.status import Part, Status
from gpuplane.sandbox.kubelet import Kubelet
from tests.node.agent.test_unusable_state import Still

DEADLINE = 60.0
KVM = DeviceList(devices=(Device(kind="device-node", id="kvm", device_nodes=("/dev/kvm",)),))


class Nodes:
    """A source of device nodes, which can be broken."""

    part: Part[Status] = Part("other", "nodes")

    def __init__(self, *, is_broken: bool = False) -> None:
        self.is_broken = is_broken

    async def facts(self) -> AsyncGenerator[Fact, None]:
        if self.is_broken:
            raise OSError(5, "Input/output error", "/sys/nodes")
        yield DevicesObserved("device-node", KVM)
        await asyncio.Event().wait()


@asynccontextmanager
async def running(root: Path, *sources: Source) -> AsyncIterator[Agent]:
    """An agent in this process."""
    agent = Agent(Options(kubelet_root=root / "k", state_dir=root / "s"), sources)
    working = asyncio.create_task(agent.run())
    try:
        yield agent
    finally:
        agent._stop.set()
        await working


async def test_a_source_that_fails_costs_its_own_kinds_alone(tmp_path: Path) -> None:
    """It says so by its own status, and is started again alone."""
    nodes = Nodes(is_broken=True)
    async with Kubelet(tmp_path / "k") as kubelet, running(tmp_path, nodes, Still()) as agent:
        await kubelet.until_capacity("nvidia.com/gpu", 1, 1)
        status = agent.node.snapshot.statuses.of(nodes.part)
        assert status is not None
        assert (status.state, status.text) == ("failing", "/sys/nodes: Input/output error")

        nodes.is_broken = False
        await kubelet.until_capacity("gpuplane.io/kvm", 1, 1)
        assert agent.node.snapshot.statuses.of(Still.part) is None
        assert await agent.node.wait_until(lambda s: s.statuses.of(nodes.part) is None, DEADLINE)


async def test_a_source_may_be_one_of_plain_devices_alone(tmp_path: Path) -> None:
    """Without a driver there is nothing to act on, and nothing to release."""
    async with Kubelet(tmp_path / "k") as kubelet, running(tmp_path, Nodes()):
        await kubelet.until_capacity("gpuplane.io/kvm", 1, 1)


def test_plain_devices_are_a_source_and_no_more() -> None:
    """Who has neither counters nor a driver says nothing of them."""

    async def versions() -> AsyncIterator[bytes]:
        yield b"devices: []"

    source: Source = PlainDevices(versions(), "m.yaml")
    assert not isinstance(source, Sampler | Actor)
