"""A driver as an agent sees it: facts go into a real node, and what is waited for is a snapshot."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import fields
from typing import Any

from gpuplane.node.agent.node import Node
from gpuplane.node.hardware.nvidia.settings import DriverLocation, Timing
from gpuplane.node.hardware.nvidia.source import Nvidia
from gpuplane.node.model.facts import Fact, FaultOccurred, ProbeFinished, ProbeGpu, StatusChanged
from gpuplane.node.model.machine import Gpu
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import DRIVER_PART
from tests.node.hardware.nvidia.driver.standin import StandIn
from tests.texts import as_shown

DEADLINE = 60.0


class Watched:
    """A node that hears nothing but one driver. `facts` are all that it was told."""

    def __init__(self, hardware: Nvidia) -> None:
        self.hardware, self.node, self.facts = hardware, Node(Snapshot()), list[Fact]()
        self._heard = asyncio.Event()

    async def watch(self) -> None:
        """Take facts, for ever."""
        async for fact in self.hardware.facts():
            self.facts.append(fact)
            self.node.apply(fact)
            self._heard.set()

    async def until(self, ready: Callable[["Watched"], bool]) -> None:
        """Wait for it; fails with what stands instead."""
        assert await self.node.wait_until(lambda _: ready(self), DEADLINE), (self.driver(), self.codes(), self.gpus())

    async def hear(self, ready: Callable[["Watched"], bool]) -> None:
        """Wait for facts, whatever becomes of them."""
        async with asyncio.timeout(DEADLINE):
            while not ready(self):
                self._heard.clear()
                await self._heard.wait()

    def patient(self) -> None:
        """From now on no call is too slow, however busy the machine is that tests run on."""
        self.hardware._processes.deadline = DEADLINE

    async def probe(self, gpu: str, asked: float) -> ProbeFinished:
        """What comes of a probe."""
        await self.hardware.do(ProbeGpu(gpu=gpu, requested_at=asked))
        await self.hear(lambda watch: any(each.requested_at == asked for each in watch.probed()))
        return next(each for each in self.probed() if each.requested_at == asked)

    def probed(self) -> list[ProbeFinished]:
        """What probes have found."""
        return [fact for fact in self.facts if isinstance(fact, ProbeFinished)]

    def happened(self) -> list[FaultOccurred]:
        """What has happened."""
        return [fact for fact in self.facts if isinstance(fact, FaultOccurred)]

    def gpus(self) -> tuple[Gpu, ...] | None:
        """The GPUs of the newest snapshot."""
        return self.node.snapshot.machine.gpus if self.node.snapshot.machine else None

    def codes(self) -> list[list[str]]:
        """The codes of each GPU's faults."""
        return [[fault.code for fault in gpu.faults] for gpu in self.gpus() or ()]

    def devices(self) -> list[list[str]]:
        """The codes of each MIG device's faults."""
        devices = [device for gpu in self.gpus() or () for device in gpu.mig_devices]
        return [[fault.code for fault in device.faults] for device in devices]

    def driver(self) -> tuple[str, str]:
        """How the driver stands: (standing, reason)."""
        condition = self.node.snapshot.statuses.of(DRIVER_PART)
        return (condition.state, as_shown(condition.text)) if condition else ("", "")

    def starts(self) -> int:
        """How many processes were started, as far as they said how the driver stands."""
        return sum(isinstance(fact, StatusChanged) for fact in self.facts)


@asynccontextmanager
async def watched(standin: StandIn, **settings: Any) -> AsyncIterator[Watched]:
    """The stand-in's machine as an agent sees it, with deadlines for tests."""
    quick: dict[str, Any] = {
        "library": standin.library,
        "driver_root": standin.installed,
        "poll": 0.05,
        "deadline": 0.8,
        "rest": (0.05, 0.4),
    }
    settings = quick | settings
    timing = Timing(**{each.name: settings.pop(each.name) for each in fields(Timing) if each.name in settings})
    first = settings.pop("first", None)
    watch = Watched(Nvidia(DriverLocation(root=standin.root, **settings), timing, first))
    task = asyncio.create_task(watch.watch())
    try:
        yield watch
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await watch.hardware.release()
