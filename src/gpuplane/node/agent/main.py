"""The agent: how it takes its turn on a node, stands by for another, and ends.

One agent serves a kubelet; whoever else is started there stands by: it watches, so that it has all that it needs, and
takes over within milliseconds of the other's end (`kubelet/lock.py`). So an upgrade is: start the new one, tell the old
one to end.

The order stays put. Kubelet's lock comes first, then the state directory's, then what that directory remembers: the
agent before us wrote until its end. On the way out: register no more; keep what we know; end the streams, without which
kubelet would take their end for that of our successor; and give the locks back last.
"""

import asyncio
import logging
import signal
import sys
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack

from gpuplane import __version__
from gpuplane.base.tasks import run_until
from gpuplane.node.agent.control import control_standby
from gpuplane.node.agent.node import Node
from gpuplane.node.agent.options import Options
from gpuplane.node.agent.parts import ASKED_AGAIN, PLUGINS, RunningParts, serving, status_page, watching
from gpuplane.node.core.commands import unusual_state_dir
from gpuplane.node.core.ledger import is_ledger_stored
from gpuplane.node.core.requests import driver_release_reason
from gpuplane.node.hardware import Actor, Sampler, Source
from gpuplane.node.host.lock import locked_directory
from gpuplane.node.host.state import NOTHING_STORED_TEXT, boot_id, load_ledger
from gpuplane.node.host.storedledger import follow_stored_ledger, read_stored_ledger
from gpuplane.node.kubelet.lock import KubeletLock
from gpuplane.node.model.control import AgentInfo
from gpuplane.node.model.facts import LedgerLoaded, LedgerStored, ObserveMachine, StatusChanged
from gpuplane.node.model.snapshot import Ledger, Snapshot, StoredLedger
from gpuplane.node.model.status import STATE_DIRECTORY_PART, Part, Status, TurnStatus
from gpuplane.service.serving import stop_at_signal

__all__ = ["Options", "run"]

log = logging.getLogger("gpuplane")

LAST_WORD = 2.0
"""Seconds that an agent which is asked to stop waits until the disk holds what it knows."""

STATE_FREE = 0.05
"""Seconds between two looks whether the state directory is free, once kubelet's lock is ours."""

AGAIN = 1.0
"""Seconds until what should not happen is tried again."""

SWITCH_INTERVAL = 0.0002
"""Seconds after which a thread that computes lets the event loop run. Threads make pages and tables; Python's own 5 ms
are as long as fifteen Allocates."""

PEEK: Part[Status] = Part("what another agent remembers")
CONTROL: Part[Status] = Part("control while standing by")


async def run(options: Options, sources: Sequence[Source]) -> None:
    """Run the agent until a signal asks it to stop. `sources`: those of all devices of this node."""
    await Agent(options, sources).run()


class Agent:
    """One agent, from its start to its end."""

    def __init__(self, options: Options, sources: Sequence[Source]) -> None:
        self.options, self.sources = options, sources
        self.sampler = next((each for each in sources if isinstance(each, Sampler)), None)
        self.actor = next((each for each in sources if isinstance(each, Actor)), None)
        state_dir = unusual_state_dir(str(options.state_dir))
        self.node = Node(Snapshot(ledger=Ledger(boot_id=boot_id()), state_dir=state_dir))
        self.running = RunningParts(self.node)
        self.kubelet_lock = KubeletLock(self.node, options.plugins)
        self.about = AgentInfo(version=__version__, node=options.node_name, started_at=self.node.now())
        self._stop, self._hangup = stop_at_signal(), asyncio.Event()

    async def run(self) -> None:
        """Stand by and serve, until a signal asks it to stop."""
        sys.setswitchinterval(SWITCH_INTERVAL)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._hangup.set)
        self.running.start(status_page(self.node, self.options, self.sampler))
        reloading = asyncio.create_task(self._reload())
        while not self._stop.is_set():
            try:
                await self._take_turn()
            except Exception:
                log.exception("serving failed")
                await self._unless_stopped(asyncio.sleep(AGAIN))
        reloading.cancel()
        await asyncio.gather(reloading, return_exceptions=True)
        await self.running.end()
        if self.actor is not None:
            await self.actor.release()

    async def _take_turn(self) -> None:
        """Stand by until it is our turn, and serve until another has it, or we are asked to stop."""
        try:
            if not self.kubelet_lock.try_acquire():
                await self.kubelet_lock.report_standby()
                await self._stand_by()
                if not await self._unless_stopped(self.kubelet_lock.acquire()):
                    return
            async with AsyncExitStack() as stack:
                ledger = await self._remember(stack)
                if not self._stop.is_set():
                    await self._serve(ledger)
        finally:
            self.kubelet_lock.release()

    async def _remember(self, stack: AsyncExitStack) -> Ledger | None:
        """Take the state directory, waiting for whoever has it, and what it holds; None where it cannot be used.

        That costs the memory, not the node's GPUs.
        """
        directory = self.options.state_dir
        try:
            async for owner in await stack.enter_async_context(locked_directory(directory, every=STATE_FREE)):
                if self._stop.is_set():
                    return None
                reason = f"another agent, {owner}, uses {directory}: waiting until it ends"
                self.node.apply(StatusChanged(STATE_DIRECTORY_PART, TurnStatus("waiting", reason, turn="standby")))
                await self._stand_by()
            ledger, problems = load_ledger(directory, self.node.snapshot.ledger.boot_id)
        except OSError as error:
            reason = f"{error.filename or directory}: {error.strerror}: {NOTHING_STORED_TEXT}"
            self.node.apply(StatusChanged(STATE_DIRECTORY_PART, TurnStatus("failing", reason)))
            return None
        for problem in problems:
            log.error("%s", problem)
        return ledger

    async def _stand_by(self) -> None:
        """Watch, and know what the agent that serves remembers, so far as it can be read without its lock."""
        if self.running.is_running(PEEK):
            return
        directory = self.options.state_dir
        self.node.apply(
            LedgerLoaded(read_stored_ledger(directory, self.node.snapshot.ledger.boot_id), previous_agent_ended=False)
        )
        await self._watch()
        self.running.start(
            {
                PEEK: lambda: follow_stored_ledger(self.node, directory),
                CONTROL: lambda: control_standby(self.node, directory, self.about),
            }
        )

    async def _watch(self) -> None:
        """Watch the world. A remembered wish holds from the first moment: no device node is opened."""
        if self.actor is not None and driver_release_reason(self.node.snapshot):
            await self.actor.release()
        self.running.start(watching(self.node, self.options, self.sources, self.actor))

    async def _serve(self, ledger: Ledger | None) -> None:
        """Serve until another has the turn, or we are asked to stop. What we know is on disk then, and nothing of ours
        is open to kubelet."""
        await self.running.end(PEEK, CONTROL)
        if ledger is not None:
            self.node.apply(LedgerLoaded(ledger))
            self.node.apply(
                StatusChanged(STATE_DIRECTORY_PART, None)
            )  # no agent is waited for; `keep_stored` reports more
        else:
            self._remember_nothing()
        self.kubelet_lock.check()
        await self._watch()
        parts = serving(
            self.node,
            self.options,
            self.actor,
            self.about,
            self.kubelet_lock.may_serve,
            remembers=ledger is not None,
        )
        self.running.start(parts)
        await self._unless_stopped(self.kubelet_lock.wait_until_lost())
        if self._stop.is_set():
            log.info("stopping")
            self.kubelet_lock.report_leaving()
        await self.running.end(*(part for part in parts if part not in (PLUGINS, STATE_DIRECTORY_PART)))
        until = self.node.now() + LAST_WORD
        await self._stored(ledger, until)
        if self._stop.is_set():
            self.kubelet_lock.report_stopped()
        await self.running.end(PLUGINS)
        await self._stored(ledger, until)  # what has happened meanwhile, too
        await self.running.end(STATE_DIRECTORY_PART)

    def _remember_nothing(self) -> None:
        """The state directory cannot be used. What lies there may be believed after a restart, so shares wait that it
        says otherwise; and what the agent before us granted last is asked all the same."""
        ours = self.node.snapshot.ledger
        there, _ = load_ledger(self.options.state_dir, ours.boot_id, ours=False)
        self.node.apply(LedgerLoaded(ours))
        self.node.apply(LedgerStored(StoredLedger(possible_share_layouts=(there.share_layouts or {},))))

    async def _stored(self, ledger: Ledger | None, until: float) -> None:
        if ledger is not None:
            await self.node.wait_until(is_ledger_stored, max(0.0, until - self.node.now()))

    async def _unless_stopped(self, work: Coroutine[None, None, None]) -> bool:
        """Do some work, unless we are asked to stop before it is done; whether it is done."""
        return await run_until(self._stop.wait(), work)

    async def _reload(self) -> None:
        """At each SIGHUP read and ask again what can change, whether or not it looks changed."""
        while True:
            await self._hangup.wait()
            self._hangup.clear()
            log.info("SIGHUP: reading configuration, Node object and machine again")
            await self.running.again(*ASKED_AGAIN)
            if self.actor is not None and not driver_release_reason(self.node.snapshot):
                await self.actor.do(ObserveMachine())
