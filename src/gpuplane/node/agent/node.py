"""The node: the one place where a snapshot is replaced by the next."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from functools import partial

from gpuplane.node.core.reports.news import news
from gpuplane.node.core.step import next_due_time, step
from gpuplane.node.model.facts import Fact, Tick
from gpuplane.node.model.snapshot import Snapshot

LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
log = logging.getLogger("gpuplane")


def boottime() -> float:
    """Seconds since boot, sleep and our own death included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Node:
    """Holds the newest snapshot and wakes whoever follows it. Belongs to one event loop."""

    def __init__(self, snapshot: Snapshot, now: Callable[[], float] = boottime) -> None:
        self.snapshot = snapshot
        self.now = now
        self._waiting: dict[asyncio.Event, Callable[[Snapshot], bool]] = {}
        self._wake_is_due = False

    def apply(self, fact: Fact) -> None:
        before = self.snapshot
        after = step(before, fact, self.now())
        if after is before:
            return
        self.snapshot = after
        for each in news(before, after):
            log.log(LEVELS[each.level], "%s: %s", each.about, each.text, extra=each.subject.extra)
        if self._waiting and not self._wake_is_due:
            self._wake_is_due = True
            asyncio.get_running_loop().call_soon(self._wake)

    async def changes(self, *of: Callable[[Snapshot], object]) -> AsyncIterator[Snapshot]:
        seen: tuple[object, ...] | None = None

        def is_new(snapshot: Snapshot) -> bool:
            return seen is None or seen != (tuple(view(snapshot) for view in of) or (snapshot.generation,))

        while True:
            await self._wait(is_new)
            snapshot = self.snapshot
            seen = tuple(view(snapshot) for view in of) or (snapshot.generation,)
            yield snapshot

    async def wait_until(self, ready: Callable[[Snapshot], bool], deadline: float | None) -> bool:
        try:
            async with asyncio.timeout(deadline):
                await self._wait(ready)
        except TimeoutError:
            return ready(self.snapshot)
        return True

    async def run_clock(self) -> None:
        """Apply a Tick whenever time alone changes the snapshot, for ever."""
        while True:
            at = next_due_time(self.snapshot)
            left = None if at is None else max(0.0, at - self.now())
            if not await self.wait_until(partial(_is_due_at_another_time, at), left):
                self.apply(Tick())

    async def _wait(self, wanted: Callable[[Snapshot], bool]) -> None:
        """Wait for a snapshot that is wanted. A task that waits here runs only when there is one."""
        while not wanted(self.snapshot):
            woken = asyncio.Event()
            self._waiting[woken] = wanted
            try:
                await woken.wait()
            finally:
                del self._waiting[woken]

    def _wake(self) -> None:
        """Wake the tasks that want the newest snapshot. It runs after the answer that made the snapshot is sent."""
        self._wake_is_due = False
        for woken, wanted in self._waiting.items():
            if not woken.is_set() and _is_wanted(wanted, self.snapshot):
                woken.set()


def _is_wanted(wanted: Callable[[Snapshot], bool], snapshot: Snapshot) -> bool:
    """Whether a task is to be woken; also where it cannot be said: the error is raised in that task, not here."""
    try:
        return wanted(snapshot)
    except Exception:
        return True


def _is_due_at_another_time(before: float | None, snapshot: Snapshot) -> bool:
    return next_due_time(snapshot) != before
