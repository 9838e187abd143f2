"""An event loop whose time passes as fast as there is nothing to do: hours of waiting take a moment."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Selector(selectors.DefaultSelector):
    """Waits for nothing: it moves the time on."""

    time = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if not found and timeout is None:
            raise AssertionError("everybody waits for ever")
        if not found and timeout:
            self.time += timeout
        return found


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.time


def run_in_virtual_time(work: Coroutine[Any, Any, T]) -> T:
    """What comes of the work."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(work)
