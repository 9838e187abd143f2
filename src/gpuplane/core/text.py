"""Texts that come from outside and go into logs, statuses and metrics."""

LONGEST = 300  # characters


def clip(text: str, longest: int = LONGEST) -> str:
    """One line of at most so many characters. What was cut off shows."""
    line = " ".join(text.split())
    return line if len(line) <= longest else line[: longest - 1] + "…"
