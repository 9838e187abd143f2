"""A part that raises is restarted alone."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from gpuplane.agent.node import Node
from gpuplane.model.facts import Stood
from gpuplane.model.snapshot import Condition

BACKOFF = (0.5, 30.0)
log = logging.getLogger("gpuplane")


async def keep(node: Node, part: str, run: Callable[[], Awaitable[None]]) -> None:
    """Run a part for ever: whatever it raises is said, and it starts again after a back-off of its own."""
    wait = BACKOFF[0]
    while True:
        began = node.now()
        try:
            await run()
            reason = "it ended"
        except Exception as error:
            log.exception("%s failed", part)
            reason = f"{type(error).__name__}: {error}"
        node.tell(Stood(part, Condition(standing="failing", reason=f"{reason}; started again in {wait:g} s")))
        await asyncio.sleep(wait)
        wait = BACKOFF[0] if node.now() - began > 60 else min(wait * 2, BACKOFF[1])
