"""Texts that come from outside and go into logs, statuses and metrics."""

LONGEST = 300  # characters


def clip(text: str, longest: int = LONGEST) -> str:
    """One line of at most so many printable characters. What was cut off, or cannot be shown, shows."""
    line = "".join(each if each.isprintable() else "�" for each in " ".join(text.split()))
    return line if len(line) <= longest else line[: longest - 1] + "…"


def escaped(text: str) -> str:
    """The same on one line, what cannot be shown as a program would write it: a path then still names its file."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def amount(mib: int, unit: str = "GiB") -> str:
    """So much memory for people: in GiB where it is wanted so and comes out even, else in MiB."""
    return f"{mib // 1024} GiB" if unit == "GiB" and mib % 1024 == 0 else f"{mib} MiB"
