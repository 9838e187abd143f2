"""Texts: those that come from outside and go into logs, statuses and metrics, and values as people read them."""

from collections.abc import Sequence

import msgspec

LONGEST = 300  # characters


def clip(text: str, longest: int = LONGEST) -> str:
    """One line of at most so many printable characters. What was cut off, or cannot be shown, shows."""
    line = "".join(each if each.isprintable() else "�" for each in " ".join(text.split()))
    return line if len(line) <= longest else line[: longest - 1] + "…"


def escaped(text: str) -> str:
    """The same on one line, what cannot be shown as a program would write it: a path then still names its file."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def line(text: str) -> str:
    """A text on one line: its lines are joined by spaces, and what cannot be shown is `escaped`."""
    return text if text.isprintable() else escaped(" ".join(text.split()))


def amount(mib: int, unit: str = "GiB") -> str:
    """So much memory for people: in GiB where it is wanted so and comes out even, else in MiB."""
    return f"{mib // 1024} GiB" if unit == "GiB" and mib % 1024 == 0 else f"{mib} MiB"


def counted(number: int, what: str) -> str:
    """ "1 device", "8 devices"."""
    return f"{number} {what}{'s' * (number != 1)}"


def few(names: Sequence[str], most: int) -> str:
    """The first of these names, with commas between, and how many more there are: "a, b and 5 more"."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def ranged(indices: Sequence[str]) -> str:
    """Indices of devices, three or more that follow each other as a range: "0 to 3, 5, 6, 7:0 to 7:2"."""
    runs: list[list[str]] = []
    for each in indices:
        if runs and _follows(runs[-1][-1], each):
            runs[-1].append(each)
        else:
            runs.append([each])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(run) for run in runs)


def _follows(index: str, other: str) -> bool:
    (whole, _, last), (others, _, next) = index.rpartition(":"), other.rpartition(":")
    return whole == others and last.isdecimal() and next.isdecimal() and int(next) == int(last) + 1


def indented(value: object) -> bytes:
    """A value as a JSON document for people too, with a line's end behind it."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
