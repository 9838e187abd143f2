"""Texts that come from outside and go into logs, statuses and metrics."""

LONGEST = 300  # characters


def clip(text: str, longest: int = LONGEST) -> str:
    """One line of at most so many printable characters. What was cut off, or cannot be shown, shows."""
    line = "".join(each if each.isprintable() else "�" for each in " ".join(text.split()))
    return line if len(line) <= longest else line[: longest - 1] + "…"
