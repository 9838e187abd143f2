"""A part that raises is restarted alone.

What the machine refuses (an OSError: a file, a port, a socket) makes one line in the log, that of the part's status.
Whatever else is raised is a defect of ours, and is logged with its traceback. What else the part's status says stays.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator

from gpuplane.agent.node import Node
from gpuplane.model.facts import StatusChanged
from gpuplane.model.status import AnyPart
from gpuplane.model.views import LogSubject

BACKOFF = (0.5, 30.0)  # seconds: the first wait, and the longest
STEADY = 5.0  # seconds of work after which a part counts as well again
log = logging.getLogger("gpuplane")


async def keep_running(
    node: Node,
    part: AnyPart,
    run: Callable[[], Awaitable[None]],
    backoff: tuple[float, float] = BACKOFF,
    steady: float = STEADY,
) -> None:
    """Run a part for ever: whatever it raises is said, once while it stays the same, and it starts again later."""
    wait, last = backoff[0], ""

    def forget_failure() -> None:
        status = node.snapshot.statuses.of(part)
        if status is not None and (status.state, status.text) == ("failing", last):
            node.apply(StatusChanged(part, None))

    while True:
        well = asyncio.get_running_loop().call_later(steady, forget_failure)
        began = node.now()
        try:
            await run()
            reason = "this part of the agent ended unexpectedly"
        except Exception as error:
            causes = list(_causes(error))
            reason = "; ".join(dict.fromkeys(map(_describe_error, causes)))
            if reason != last and not all(isinstance(cause, OSError) for cause in causes):
                log.exception("%s failed", part.name, extra=LogSubject(part=part.name).extra)
        finally:
            well.cancel()
        if node.now() - began > steady:
            wait = backoff[0]
        last = reason
        known = node.snapshot.statuses.of(part) or part.status_type("failing")
        node.apply(StatusChanged(part, known.but(state="failing", text=reason, code="", warns=False)))
        await asyncio.sleep(wait)
        wait = min(wait * 2, backoff[1])


def _causes(error: Exception) -> Iterator[Exception]:
    """What went wrong in the tasks of a group, however deep; an error that is no group is its own cause."""
    if isinstance(error, ExceptionGroup):
        for each in error.exceptions:
            yield from _causes(each)
    else:
        yield error


def _describe_error(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        place = error.filename2 or error.filename
        return f"{place}: {error.strerror}" if place else error.strerror
    return f"{type(error).__name__}: {error}".removesuffix(": ")
