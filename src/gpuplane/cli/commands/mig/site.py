"""Where layouts are requested and followed: of the running agent, or of a node of our own without one.

Without an agent the same code does the same work here: the machine becomes facts, `step` decides on one change after
another, and each is on disk before it begins. What we made stays known in the state directory, so that a later command,
or an agent, goes on from there. The request itself ends with the command.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import click

from gpuplane.base.text import join
from gpuplane.cli.commands.mig.seen import OBSERVE_TIMEOUT_SECONDS
from gpuplane.cli.kit.agent import NoAgent, ask, fetch_node_state
from gpuplane.cli.kit.machine import NVML, hardware
from gpuplane.cli.kit.messages import os_error_text, say
from gpuplane.node.agent.node import Node, boottime
from gpuplane.node.core.ledger import is_ledger_stored
from gpuplane.node.hardware import Source
from gpuplane.node.hardware.described.profiles import UnknownMachine
from gpuplane.node.hardware.migpartitions import keep_partitions
from gpuplane.node.host.lock import locked_directory
from gpuplane.node.host.state import boot_id, keep_ledger_stored, load_ledger
from gpuplane.node.kubelet.lock import KubeletLock
from gpuplane.node.kubelet.podresources import read_allocations
from gpuplane.node.model.config import Settings
from gpuplane.node.model.control import RequestLayouts
from gpuplane.node.model.facts import AllocationsListed, ConfigLoaded, LayoutRequested, LedgerLoaded, StatusChanged
from gpuplane.node.model.partitions import LayoutRequest
from gpuplane.node.model.snapshot import Ledger, Snapshot
from gpuplane.node.model.status import DRIVER_PART, STATE_DIRECTORY_PART, TurnStatus

POLL_SECONDS = 0.2
"""Seconds between two looks at an agent."""
MAX_STORE_SECONDS = 5.0
"""Seconds for the state directory to have what we know, at the end."""
LIST_PERIOD_SECONDS = 1.0
"""Seconds between two questions to kubelet."""


class Site(Protocol):
    """Where layouts are requested and followed. `agent_continues`: also after the command has ended."""

    agent_continues: bool

    async def look(self) -> Snapshot:
        """The newest snapshot, soon: once it has changed, or after a moment. Raises ClickException."""

    async def request(self, request: LayoutRequest) -> None:
        """Request layouts in the place of others. Raises ClickException where that is refused."""


class AgentSite:
    """The running agent."""

    agent_continues = True

    def __init__(self, state_dir: Path, first: Snapshot) -> None:
        self._state_dir, self._known = state_dir, [first]

    async def look(self) -> Snapshot:
        if self._known:
            return self._known.pop()
        await asyncio.sleep(POLL_SECONDS)
        return (await asyncio.to_thread(fetch_node_state, self._state_dir)).snapshot

    async def request(self, request: LayoutRequest) -> None:
        await asyncio.to_thread(ask, self._state_dir, RequestLayouts(requested_at=boottime(), request=request))


class LocalSite:
    """A node of our own."""

    agent_continues = False

    def __init__(self, node: Node, tasks: list[asyncio.Task[None]]) -> None:
        self._node, self._tasks = node, tasks
        self._generation = -1

    async def look(self) -> Snapshot:
        await self._node.wait_until(lambda snapshot: snapshot.generation != self._generation, POLL_SECONDS)
        for task in self._tasks:
            if task.done():
                task.result()
        self._generation = self._node.snapshot.generation
        return self._node.snapshot

    async def request(self, request: LayoutRequest) -> None:
        self._node.apply(LayoutRequested(request))


@asynccontextmanager
async def open_site(machine: str | None, state_dir: Path, kubelet_root: Path, *, keeps: bool) -> AsyncIterator[Site]:
    """The running agent where one answers, unless a machine is given; else a node of our own. Raises ClickException.

    `keeps`: what a node of our own made of this machine is kept in the state directory.
    """
    try:
        agent = await asyncio.to_thread(fetch_node_state, state_dir) if machine in (None, NVML) else None
    except NoAgent:
        agent = None
    if agent is None:
        async with _local_site(machine or NVML, state_dir if keeps else None, kubelet_root) as site:
            yield site
    elif machine is not None:
        raise click.ClickException("an agent runs on this node: leave out --machine, so that the agent is asked")
    else:
        yield AgentSite(state_dir, agent.snapshot)


@asynccontextmanager
async def _local_site(machine: str, state_dir: Path | None, kubelet_root: Path) -> AsyncIterator[Site]:
    node = Node(Snapshot(ledger=Ledger(boot_id=boot_id())))
    async with AsyncExitStack() as stack:
        log = logging.getLogger("gpuplane")
        stack.callback(log.setLevel, log.level)
        log.setLevel(logging.CRITICAL)  # what an agent would log, the command says, or need not
        try:
            ledger = await _load_ledger(stack, node, state_dir)
            devices = hardware(machine, deadline=OBSERVE_TIMEOUT_SECONDS / 3)
        except OSError as error:
            raise click.ClickException(os_error_text(error)) from None
        except UnknownMachine as error:
            raise click.ClickException(str(error)) from None
        if machine == NVML:
            _keep_agents_away(stack, node, kubelet_root)
        node.apply(LedgerLoaded(ledger.but(layout_request=None)))
        node.apply(ConfigLoaded(Settings()))
        await _list_allocations(node, machine, kubelet_root)
        work: list[Coroutine[Any, Any, None]] = [
            _watch(node, devices),
            node.run_clock(),
            keep_partitions(node, devices),
            _list_periodically(node, machine, kubelet_root),
        ]
        if state_dir is not None:
            work.append(keep_ledger_stored(node, state_dir))
        tasks = [asyncio.create_task(each) for each in work]
        try:
            await _wait_until_observed(node, tasks)
            yield LocalSite(node, tasks)
        finally:
            node.apply(LayoutRequested(None))
            if state_dir is not None:
                await node.wait_until(is_ledger_stored, MAX_STORE_SECONDS)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await devices.release()


async def _load_ledger(stack: AsyncExitStack, node: Node, state_dir: Path | None) -> Ledger:
    """What the state directory holds, which is ours from now on. Raises OSError, ClickException."""
    boot = node.snapshot.ledger.boot_id
    if state_dir is None:
        node.apply(StatusChanged(STATE_DIRECTORY_PART, TurnStatus("failing", "nothing is kept of a described machine")))
        return Ledger(boot_id=boot)
    async for owner in await stack.enter_async_context(locked_directory(state_dir)):
        raise click.ClickException(f"{owner} uses {state_dir}, and does not answer: try again in a moment")
    ledger, problems = load_ledger(state_dir, boot)
    for problem in problems:
        say(problem, err=True)
    return ledger


def _keep_agents_away(stack: AsyncExitStack, node: Node, kubelet_root: Path) -> None:
    """Hold kubelet's lock, so that no agent serves while we change its devices. Raises ClickException."""
    lock = KubeletLock(node, kubelet_root / "device-plugins")
    if not lock.try_acquire():
        raise click.ClickException(
            "an agent serves this node's kubelet, and does not answer here: name its state directory by --state-dir"
        )
    stack.callback(lock.release)


async def _watch(node: Node, devices: Source) -> None:
    async for fact in devices.facts():
        node.apply(fact)


async def _list_periodically(node: Node, machine: str, kubelet_root: Path) -> None:
    while True:
        await asyncio.sleep(LIST_PERIOD_SECONDS)
        await _list_allocations(node, machine, kubelet_root)


async def _list_allocations(node: Node, machine: str, kubelet_root: Path) -> None:
    """Tell what containers hold. Raises ClickException where kubelet is there, and says nothing.

    A node without kubelet has no pods; what other programs use, the driver does not destroy.
    """
    asked_at = node.now()
    has_kubelet = machine == NVML and (kubelet_root / "device-plugins").exists()
    held = await read_allocations(kubelet_root) if has_kubelet else ()
    if held is None:
        raise click.ClickException(
            f"kubelet does not say what containers hold: {kubelet_root}/pod-resources/kubelet.sock does not answer; "
            "run this command as root"
        )
    node.apply(AllocationsListed(allocations=held, requested_at=asked_at))


async def _wait_until_observed(node: Node, tasks: list[asyncio.Task[None]]) -> None:
    """Wait for the first look. Raises ClickException where there is none."""

    def is_known(snapshot: Snapshot) -> bool:
        driver = snapshot.statuses.of(DRIVER_PART)
        return snapshot.machine is not None or (driver is not None and driver.state == "failing")

    await node.wait_until(
        lambda snapshot: is_known(snapshot) or any(task.done() for task in tasks), OBSERVE_TIMEOUT_SECONDS
    )
    for task in tasks:
        if task.done():
            task.result()
    machine, driver = node.snapshot.machine, node.snapshot.statuses.of(DRIVER_PART)
    if machine is None or machine.gpus is None:
        faults = join("; ", (each.message for each in machine.faults)) if machine is not None else ""
        raise click.ClickException(f"{faults or (driver.text if driver else '') or 'the driver did not answer'}")
