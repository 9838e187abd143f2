"""What a room sees of the node: the newest snapshot, a way to tell it facts, and two ways to wait."""

from collections.abc import AsyncIterator, Callable
from typing import Protocol

from gpuplane.node.model.facts import Fact
from gpuplane.node.model.snapshot import Snapshot


class Node(Protocol):
    """Implemented once, in `agent`. All of it belongs to one event loop."""

    @property
    def snapshot(self) -> Snapshot:
        """The newest picture."""

    def now(self) -> float:
        """Seconds of CLOCK_BOOTTIME."""

    def apply(self, fact: Fact) -> None:
        """The world has changed."""

    def changes(self, *of: Callable[[Snapshot], object]) -> AsyncIterator[Snapshot]:
        """The snapshot now, and each newest one of which one of these views differs; without views: each newest one.

        Snapshots that came and went between may be skipped. Views that keep their answer are cheap to compare.
        """

    async def wait_until(self, ready: Callable[[Snapshot], bool], deadline: float | None) -> bool:
        """Whether a snapshot came to be ready within `deadline` seconds; None: wait for ever."""
