"""Times as people write and say them."""

import math
import re
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import click

SECONDS_BY_UNIT = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
UNIT_PAIRS = ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))
MIN_SECONDS, MAX_SECONDS = 0.001, 3650 * 86400.0
"""Seconds: a millisecond, ten years."""


class Duration(click.ParamType[float]):
    """A time as people write it: "50ms", "90s", "10m", "2h", "1d". Converted to seconds, `most` of them."""

    name = "duration"

    def __init__(self, most: float = MAX_SECONDS) -> None:
        self.most = most

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        parts = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|[smhd])", str(value), re.ASCII)
        if parts is None:
            self.fail(f"{value!r} is not a duration: write 90s, 10m, 2h or 1d", param, ctx)
        found = float(parts[1]) * SECONDS_BY_UNIT[parts[2]]
        if found < MIN_SECONDS:
            self.fail(f"{value!r} is too short: at least {format_duration(MIN_SECONDS)}", param, ctx)
        if found > self.most:
            self.fail(f"{value!r} is too long: at most {format_duration(self.most)}", param, ctx)
        return found


class PositiveNumber(click.FloatRange):
    """A number of `unit` above 0, and at most so many."""

    def __init__(self, unit: str, most: float) -> None:
        super().__init__(min=0, max=most, min_open=True)
        self.unit = unit

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found: float = super().convert(value, param, ctx)
        if math.isnan(found):  # which no bound keeps out
            self.fail(f"{value!r} is not a number of {self.unit}", param, ctx)
        return found


def format_duration(seconds: float) -> str:
    """A time as `Duration` takes it, in the largest unit of which it is a whole number: "50ms", "1m", "3650d"."""
    for unit, size in reversed(SECONDS_BY_UNIT.items()):
        if math.isclose(seconds / size, count := round(seconds / size)) and count:
            return f"{count}{unit}"
    return f"{seconds:g}s"


def describe_duration(seconds: float) -> str:
    """A time as people say it, to two units: "42 s", "4 min 10 s", "2 h", "3 d 4 h"."""
    whole = max(0, round(seconds))
    for large, name, small, smaller in UNIT_PAIRS:
        if whole >= large:
            rest = whole % large // small
            return f"{whole // large} {name}" + (f" {rest} {smaller}" if rest else "")
    return f"{whole} s"


def time_from_now(seconds: float) -> str:
    """The time so many seconds from now, as JSON has it: RFC 3339 in UTC, "2026-11-22T10:00:00Z"."""
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat(timespec="seconds").replace("+00:00", "Z")


def boottime() -> float:
    """The agent's clock, so that it can tell a wish whose sender has given up."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
