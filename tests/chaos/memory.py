"""The memory of an agent: whether it grows while it lives."""

import os
from collections.abc import Callable
from pathlib import Path

WARM = 120.0
"""Seconds of a life after which memory counts: what is imported and remembered once is there by then."""
ALLOWED = 4096.0
ALLOWED_PER_MINUTE = 256.0
"""KiB by which all lives together may grow: what an allocator keeps, and what no leak that matters hides in."""


class Memory:
    """Samples of the resident memory of one agent after the other, in KiB."""

    def __init__(self) -> None:
        self.grown = self.seconds = 0.0  # of the lives that are over
        self._born: float | None = None
        self._warm: tuple[float, int] | None = None
        self._last: tuple[float, int] | None = None

    def sample(self, pid: int, now: float) -> None:
        """Look at the agent. Raises FileNotFoundError or ProcessLookupError where it has gone."""
        self.add(_resident(pid), now)

    def add(self, resident: int, now: float) -> None:
        """A sample of the one that lives now."""
        self._born = now if self._born is None else self._born
        if now >= self._born + WARM:
            self._warm, self._last = self._warm or (now, resident), (now, resident)

    def died(self) -> None:
        """It has been killed; the next one begins anew."""
        self.grown, self.seconds = self._sum()
        self._born = self._warm = self._last = None

    def check(self, broken: Callable[[str], Exception]) -> None:
        """Raise `broken` where it has grown."""
        grown, seconds = self._sum()
        if grown > ALLOWED + ALLOWED_PER_MINUTE * seconds / 60:
            raise broken(
                f"the agent's memory has grown by {grown:.0f} KiB in {seconds / 60:.1f} minutes "
                "(without the start phase)"
            )

    def _sum(self) -> tuple[float, float]:
        if self._warm is None or self._last is None:
            return self.grown, self.seconds
        (began, first), (ended, last) = self._warm, self._last
        return self.grown + last - first, self.seconds + ended - began


def _resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024
