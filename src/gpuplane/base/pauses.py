"""Pauses of what looks at the world again and again.

A process that wakes often keeps a CPU from its sleep. So pauses of the same length, or of multiples of it, end at the
same moment, however far apart they began: the process wakes once for all of them.
"""

import asyncio
import time


def seconds_until_next(period: float) -> float:
    """Seconds until CLOCK_MONOTONIC is a multiple of `period`: `period` at the most, and more than nothing."""
    return period - time.monotonic() % period


async def sleep_until_next(period: float) -> None:
    """Sleep until CLOCK_MONOTONIC is a multiple of `period` (seconds)."""
    await asyncio.sleep(seconds_until_next(period))
