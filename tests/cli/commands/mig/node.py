"""GPUs that can be partitioned, by the rules of their cards, and an agent for them: what `gpuplane mig` changes."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner, Result

from gpuplane.cli import root_command
from gpuplane.kubernetes.podref import PodRef
from gpuplane.node.agent.control import control
from gpuplane.node.agent.node import Node
from gpuplane.node.core.partitions.names import profile_name
from gpuplane.node.hardware import HARDWARE_PART
from gpuplane.node.hardware.migpartitions import keep_partitions
from gpuplane.node.host.state import keep_ledger_stored
from gpuplane.node.model.config import Settings
from gpuplane.node.model.facts import (
    Action,
    AllocationsListed,
    ChangePartition,
    ConfigLoaded,
    Fact,
    MachineObserved,
    PartitionChangeFinished,
    StatusChanged,
)
from gpuplane.node.model.machine import Gpu, Machine, Mig, MigDevice
from gpuplane.node.model.partitions import ChangeProblem, ResetGpu, SetMigMode
from gpuplane.node.model.snapshot import Allocation, Snapshot
from gpuplane.node.model.status import DRIVER_PART, DriverStatus
from gpuplane.node.model.telemetry import Sample, SamplingRequest
from tests.node.core.partitions.tables import FOUR, SEVEN, Card, Placement, Profiles, by_id


class CardGpu:
    """One GPU. It outlives the commands that change it, as a real one does."""

    def __init__(
        self, index: int, profiles: Profiles, layout: Sequence[Placement] = (), *, enabled: bool = False
    ) -> None:
        self.index, self.uuid, self.profiles = index, f"GPU-{index}", profiles
        self.card, self.enabled, self.pending = Card(profiles, layout), enabled, enabled
        self.needs_reset = profiles is FOUR

    def look(self) -> Gpu:
        """What the driver tells."""
        names = by_id(self.profiles)
        devices = [
            MigDevice(
                uuid=f"MIG-{self.index}-{each.profile}-{each.start}-{part.id}",
                profile=profile_name(names[each.profile], part.slices),
                gpu_instance=each.id,
                compute_instance=part.id,
                memory_mib=1000,
            )
            for each in self.card.instances
            for part in each.compute_instances
        ]
        mig = Mig(
            enabled=self.enabled,
            devices=tuple(device.but(mig_index=i) for i, device in enumerate(devices)),
            pending=self.pending if self.pending != self.enabled else None,
            needs_reset=self.needs_reset,
            profiles=self.profiles,
            instances=self.card.instances if self.enabled else (),
        )
        pci_id = "0x20B710DE" if self.profiles is FOUR else "0x20B210DE"
        return Gpu(index=self.index, uuid=self.uuid, model="NVIDIA X", memory_mib=80_000, pci_id=pci_id, mig=mig)

    def make(self, action: ChangePartition) -> None:
        """A change, by the rules of the card."""
        match action.change:
            case SetMigMode(enabled):
                assert not self.card.there or enabled == self.enabled
                self.pending = enabled
                self.enabled = self.enabled if self.needs_reset else enabled
            case ResetGpu():
                self.enabled = self.pending
            case change:
                assert self.enabled
                self.card.make(change)


class Driver:
    """The driver of these GPUs. `problems`: what the next changes come to; `changes`: those that were made."""

    def __init__(self, *gpus: CardGpu) -> None:
        self.gpus = gpus or (CardGpu(0, SEVEN), CardGpu(1, FOUR))
        self.problems: list[ChangeProblem] = []
        self.changes: list[ChangePartition] = []

    def hardware(self, *_: object, **__: object) -> "CardHardware":
        """A new connection to it, as `cli.machine.hardware` makes one."""
        return CardHardware(self)

    @property
    def layouts(self) -> dict[int, dict[str, int]]:
        """GPU in MIG mode → profile → how many MIG devices."""
        found: dict[int, dict[str, int]] = {}
        for gpu in self.gpus:
            for device in gpu.look().mig_devices if gpu.enabled else ():
                found.setdefault(gpu.index, {}).setdefault(device.profile, 0)
                found[gpu.index][device.profile] += 1
            if gpu.enabled:
                found.setdefault(gpu.index, {})
        return found


class CardHardware:
    """A source of these GPUs."""

    part = HARDWARE_PART

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._told: asyncio.Queue[Fact] = asyncio.Queue()

    def _look(self) -> MachineObserved:
        return MachineObserved(Machine(gpus=tuple(gpu.look() for gpu in self._driver.gpus)))

    async def facts(self) -> AsyncGenerator[Fact, None]:
        yield StatusChanged(DRIVER_PART, DriverStatus("ok"))
        yield self._look()
        while True:
            yield await self._told.get()

    async def samples(self) -> AsyncGenerator[Sample, None]:
        await asyncio.Event().wait()
        yield Sample(0.0)

    async def set_sampling(self, request: SamplingRequest) -> None:
        """Nothing is sampled."""

    async def do(self, action: Action) -> None:
        """A look that shows the change comes before the word that it was made."""
        if not isinstance(action, ChangePartition):
            return
        gpu = next(each for each in self._driver.gpus if each.uuid == action.gpu)
        problem = self._driver.problems.pop(0) if self._driver.problems else ""
        if not problem:
            gpu.make(action)
            self._driver.changes.append(action)
            self._told.put_nowait(self._look())
        failure = f"the driver says {problem}" if problem else ""
        self._told.put_nowait(PartitionChangeFinished(action.gpu, action.change, action.requested_at, problem, failure))

    async def release(self) -> None:
        """Nothing is held."""


class Agent:
    """An agent with a control socket in `directory`, and with that much of kubelet: what its pods hold."""

    def __init__(self, driver: Driver, directory: Path) -> None:
        self.node = Node(Snapshot())
        self.driver, self.directory = driver, directory
        self.pods: dict[str, tuple[str, str]] = {}  # name → (resource, id)

    def hold(self, **pods: tuple[str, str]) -> None:
        """These pods hold (resource, id), and no other does."""
        self.pods = pods
        held = tuple(
            Allocation(resource=resource, devices=(id,), holder=PodRef(namespace="n", name=name, container="c"))
            for name, (resource, id) in pods.items()
        )
        self.node.apply(AllocationsListed(held, self.node.now()))

    async def mig(self, *words: object, **more: Any) -> Result:
        """A command, which asks this agent."""
        return await asyncio.to_thread(mig, *words, "--state-dir", self.directory, **more)


@asynccontextmanager
async def an_agent(driver: Driver, directory: Path) -> AsyncIterator[Agent]:
    """It runs."""
    agent, hardware = Agent(driver, directory), driver.hardware()

    async def watch() -> None:
        async for fact in hardware.facts():
            agent.node.apply(fact)

    agent.node.apply(ConfigLoaded(Settings(mig_strategy="mixed")))
    agent.hold()
    socket = directory / "control.sock"
    work = (
        control(agent.node, socket),
        keep_ledger_stored(agent.node, directory),
        keep_partitions(agent.node, hardware),
        agent.node.run_clock(),
        watch(),
    )
    tasks = [asyncio.create_task(each) for each in work]
    try:
        async with asyncio.timeout(60):
            while not socket.exists() or agent.node.snapshot.machine is None:
                await asyncio.sleep(0.01)
        yield agent
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def mig(*words: object, **more: Any) -> Result:
    """`gpuplane mig …` in this process."""
    group = root_command()
    assert isinstance(group, click.Group)
    return CliRunner().invoke(group, ["mig", *map(str, words)], **more)


def layouts_file(directory: Path, **configs: str) -> Path:
    """A file with these configurations: name → its entries, as flow mappings of YAML with `;` between them."""
    path = directory / "layouts.yaml"
    text = "version: v1\nmig-configs:\n"
    for name, entries in configs.items():
        text += f"  {name}:\n" + "".join(f"  - {{{each.strip()}}}\n" for each in entries.split(";"))
    path.write_text(text)
    return path
