"""A part of a daemon that raises is restarted alone.

What the machine refuses (an OSError: a file, a port, a socket) makes one line in the log, that of the part's status.
Whatever else is raised is a defect of ours, and is logged with its traceback.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator

from gpuplane.base.logsubject import LogSubject
from gpuplane.base.pauses import Backoff

RESTART_BACKOFF = (0.5, 30.0)  # seconds: the first wait, and the longest
STEADY_AFTER = 5.0  # seconds of work after which a part counts as well again
log = logging.getLogger("gpuplane")


async def keep_running(
    name: str,
    run: Callable[[], Awaitable[None]],
    report_failed: Callable[[str], None],
    report_well: Callable[[str], None],
    backoff: tuple[float, float] = RESTART_BACKOFF,
    steady: float = STEADY_AFTER,
) -> None:
    """Run a part for ever: whatever it raises is reported, and it starts again later.

    `report_failed` gets the reason; `report_well` gets the last reason ("" for none) once the part has worked for
    `steady` seconds.
    """
    loop, pauses, last = asyncio.get_running_loop(), Backoff(*backoff), ""
    while True:
        well = loop.call_later(steady, report_well, last)
        began = loop.time()
        try:
            await run()
            reason = "this part ended unexpectedly"
        except Exception as error:
            causes = list(_causes(error))
            reason = "; ".join(dict.fromkeys(map(_describe_error, causes)))
            if reason != last and not all(isinstance(cause, OSError) for cause in causes):
                log.exception("%s failed", name, extra=LogSubject(part=name).extra)
        finally:
            well.cancel()
        if loop.time() - began > steady:
            pauses.after(well=True)
        last = reason
        report_failed(reason)
        await asyncio.sleep(pauses.seconds)
        pauses.after(well=False)


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
