"""Waiting for something that another process does."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 90.0
"""Seconds. Nothing here takes long; a busy machine may."""
STEP = 0.03
"""Seconds between two looks."""


def until(
    look: Callable[[], T | None], what: str, deadline: float = PATIENCE, more: Callable[[], object] = lambda: ""
) -> T:
    """What `look` returns once that is true. Raises TimeoutError with `more` of the circumstances."""
    began = time.monotonic()
    while True:
        looked = time.monotonic()
        if found := look():
            return found
        now = time.monotonic()
        if now > began + deadline:
            raise TimeoutError(f"not within {deadline:g} s: {what}; last seen: {found!r}\n{more()}")
        time.sleep(max(STEP, 2 * (now - looked)))  # a look may be a process: others want the machine too


def boot_time() -> float:
    """The clock of every time in state files and requests: seconds since boot."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
