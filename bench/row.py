"""One budget and its figure."""

from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple


class Row(NamedTuple):
    """What was measured, the figure and the most that it may be, in the same unit (s, ms, loops, loops/s, MB, %,
    points, ×, /s, pods or files)."""

    what: str
    figure: float
    budget: float
    unit: str
    how: str = ""

    @property
    def kept(self) -> bool:
        """Whether the figure is within its budget."""
        return self.figure <= self.budget


Measure = Callable[[], Coroutine[Any, Any, list[Row]]]
