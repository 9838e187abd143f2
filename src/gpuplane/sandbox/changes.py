"""Waiting until something has become true, without looking again and again, or until what was begun is done."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

R = TypeVar("R")
DEFAULT_TIMEOUT_SECONDS = 60.0
"""Seconds after which what one waits for is taken to come no more; a busy machine may need most of them."""


class Changes:
    """Whoever changes something calls `notify`; whoever waits looks again then."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        """Something has changed."""
        event, self._event = self._event, asyncio.Event()
        event.set()

    async def next_change(self) -> None:
        """The next change."""
        await self._event.wait()

    async def until(self, ready: Callable[[], R], deadline: float = DEFAULT_TIMEOUT_SECONDS) -> R:
        """What `ready` returns once that is true. Raises TimeoutError after so many seconds."""
        async with asyncio.timeout(deadline):
            while not (found := ready()):
                await self.next_change()
            return found


async def finish_despite_cancellation(work: Coroutine[Any, Any, R]) -> R:
    """What comes of the work. Whoever cancels it waits until it is done."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise
