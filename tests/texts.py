"""Texts for people, in tests."""

from gpuplane.base.text import Text


def as_shown(text: Text) -> str:
    """A text as it is shown: for a test that looks for a name, a path or a number in it.

    How it is worded is a matter of golden files (`tests/golden.py`).
    """
    return f"{text}"
