"""The node: the one place where a snapshot is replaced by the next."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable

from gpuplane.core.reports.news import news
from gpuplane.core.step import next_due_time, step
from gpuplane.model.facts import Fact, Tick
from gpuplane.model.snapshot import Snapshot

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
        self._next = asyncio.Event()

    def apply(self, fact: Fact) -> None:
        before = self.snapshot
        after = step(before, fact, self.now())
        if after is before:
            return
        self.snapshot = after
        for each in news(before, after):
            log.log(LEVELS[each.level], "%s: %s", each.about, each.text, extra=each.subject.extra)
        self._next.set()
        self._next = asyncio.Event()

    async def changes(self) -> AsyncIterator[Snapshot]:
        seen = None
        while True:
            if self.snapshot is seen:
                await self._next.wait()
            else:
                seen = self.snapshot
                yield seen

    async def wait_until(self, ready: Callable[[Snapshot], bool], deadline: float) -> bool:
        try:
            async with asyncio.timeout(deadline):
                while not ready(self.snapshot):
                    await self._next.wait()
        except TimeoutError:
            return ready(self.snapshot)
        return True

    async def tick(self) -> None:
        """Tell the time whenever `due` wants it, for ever."""
        while True:
            at = next_due_time(self.snapshot)
            try:
                async with asyncio.timeout(None if at is None else max(0.0, at - self.now())):
                    await self._next.wait()
            except TimeoutError:
                self.apply(Tick())
