"""Views: pure functions of a snapshot, asked many times for each snapshot."""

from collections.abc import Callable
from functools import update_wrapper
from typing import Generic, TypeVar

from gpuplane.model.snapshot import Snapshot

R = TypeVar("R")


class view(Generic[R]):  # noqa: N801 (a decorator)
    """Remembers the answer for the snapshot that was asked about last, by identity: a request costs no derivation."""

    def __init__(self, derive: Callable[[Snapshot], R]) -> None:
        self.derive = derive
        self._last: tuple[Snapshot, R] | None = None
        update_wrapper(self, derive)

    def __call__(self, snapshot: Snapshot) -> R:
        last = self._last
        if last is None or last[0] is not snapshot:
            self._last = last = (snapshot, self.derive(snapshot))
        return last[1]
