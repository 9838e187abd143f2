"""What a play that breaks says."""

from collections.abc import Sequence

TOLD = 60
"""Steps, and lines of the log, that a story ends with."""


def story(broken: str, steps: Sequence[str], log: Sequence[str]) -> str:
    """What broke, and how it came to that. Of the seed the fixture `seed` tells."""
    last = ("the last steps:", *steps[-TOLD:], "", "the agent's log ends with:", *log[-TOLD:])
    return "\n".join((broken, "", *last))
