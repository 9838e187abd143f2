"""Durations as a configuration has them: "500ms", "5s", "1h30m", or a number of seconds."""

import math
import re

SECONDS_PER_UNIT = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
NUMBER_WITH_UNIT_PATTERN = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ms|[smhd])", re.ASCII)

LONGEST_DURATION = 100
"""Characters that are looked at: the rest is no duration."""

UnparsedDuration = str | float
"""A duration as the file has it."""


def quote_duration_as_written(duration: UnparsedDuration) -> str:
    """A duration as an error shows it."""
    return repr(duration) if isinstance(duration, str) else f"{duration:g}"


def to_seconds(duration: UnparsedDuration) -> float:
    """The number of seconds. Raises ValueError with the reason."""
    if isinstance(duration, str):
        parts = NUMBER_WITH_UNIT_PATTERN.findall(duration[: LONGEST_DURATION + 1])
        if not parts or "".join(map("".join, parts)) != duration:
            raise ValueError(f"{duration!r} is not a duration; write 500ms, 5s, 2m, 1h or a number of seconds")
        found = sum(float(number) * SECONDS_PER_UNIT[unit] for number, unit in parts)
    else:
        found = duration
    if not math.isfinite(found):
        raise ValueError(f"{quote_duration_as_written(duration)} is not finite")
    if found < 0:
        raise ValueError(f"{quote_duration_as_written(duration)} is negative")
    return found
