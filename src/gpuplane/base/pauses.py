"""Pauses of what looks at the world again and again, and of what is tried again.

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


class Backoff:
    """Pauses that double, from `first` to `longest` seconds, while something does not go well."""

    def __init__(self, first: float, longest: float) -> None:
        self._first, self._longest = first, longest
        self.seconds = first
        """The pause that is next."""

    def after(self, *, well: bool) -> float:
        """The next pause: the first one after what went well, else twice the one before."""
        self.seconds = self._first if well else min(self.seconds * 2, self._longest)
        return self.seconds
