"""Moments of an agent's clock as moments in UTC."""

from datetime import UTC, datetime

from gpuplane.model.value import Value


class Clock(Value):
    """CLOCK_BOOTTIME was `now` when it was `wall`, in seconds since 1970."""

    now: float
    wall: float

    def time(self, at: float) -> datetime:
        """A moment in UTC, to the second."""
        return datetime.fromtimestamp(round(self.wall + at - self.now), UTC)

    def perhaps(self, at: float | None) -> datetime | None:
        """The same; None for none."""
        return None if at is None else self.time(at)
