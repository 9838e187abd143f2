"""Times as people write and say them."""

import re
import time

import click

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
PAIRS = ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))


class Duration(click.ParamType[float]):
    """A time as people write it: "90s", "10m", "2h", "1d". Converted to seconds."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        parts = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", str(value))
        if parts is None:
            self.fail(f"{value!r} is not a time: write 90s, 10m, 2h or 1d", param, ctx)
        return float(parts[1]) * UNITS[parts[2]]


def span(seconds: float) -> str:
    """A time as people say it, to two units: "42 s", "4 min 10 s", "2 h", "3 d 4 h"."""
    whole = max(0, round(seconds))
    for large, name, small, smaller in PAIRS:
        if whole >= large:
            rest = whole % large // small
            return f"{whole // large} {name}" + (f" {rest} {smaller}" if rest else "")
    return f"{whole} s"


def boottime() -> float:
    """The agent's clock, so that it can tell a wish whose sender has given up."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
