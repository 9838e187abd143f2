"""Moments of an agent's clock as moments in UTC."""

from datetime import UTC, datetime

from gpuplane.base.value import Value


class Clock(Value):
    """CLOCK_BOOTTIME was `boottime` when the wall clock was `wall_time`, in seconds since 1970."""

    boottime: float
    wall_time: float

    def to_utc(self, at: float) -> datetime:
        """A moment in UTC, to the second."""
        return datetime.fromtimestamp(round(self.wall_time + at - self.boottime), UTC)

    def to_utc_or_none(self, at: float | None) -> datetime | None:
        """A moment in UTC; None if there is none."""
        return None if at is None else self.to_utc(at)


CLOCK_WITH_BOOT_AT_EPOCH = Clock(0.0, 0.0)
"""Shows a moment as if the machine had started in 1970: always the same for the same moment."""
