"""A part that raises is restarted alone."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from gpuplane.agent.node import Node
from gpuplane.model.facts import Stood
from gpuplane.model.snapshot import Condition

BACKOFF = (0.5, 30.0)  # seconds: the first wait, and the longest
LASTING = 60.0  # seconds of work after which a failure counts as the first
log = logging.getLogger("gpuplane")


async def keep(
    node: Node, part: str, run: Callable[[], Awaitable[None]], backoff: tuple[float, float] = BACKOFF
) -> None:
    """Run a part for ever: whatever it raises is said, once while it stays the same, and it starts again later."""
    wait, last = backoff[0], ""
    while True:
        began = node.now()
        try:
            await run()
            reason = "it ended"
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            if reason != last:
                log.exception("%s failed", part)
        last = reason
        if node.now() - began > LASTING:
            wait = backoff[0]
        node.tell(Stood(part, Condition(standing="failing", reason=reason)))
        await asyncio.sleep(wait)
        node.tell(Stood(part, None))
        wait = min(wait * 2, backoff[1])
