"""The flags' table as a page for people."""

from collections.abc import Iterable

from gpuplane.core.config.flags import FLAGS, Flag

HEAD = """\
| flag | environment | file | default | what it does |
|---|---|---|---|---|
"""


def reference() -> str:
    """The table in Markdown, a row for each flag."""
    return HEAD + "".join(f"| {' | '.join(_cells(flag))} |\n" for flag in FLAGS)


def _cells(flag: Flag) -> list[str]:
    choices = f" ({', '.join(flag.choices)})" if len(flag.choices) > 1 else ""
    return [
        _code(f"--{name}" for name in flag.names),
        _code(flag.environment),
        _code([flag.key] if flag.key else []),
        _code([flag.default] if flag.default else []),
        flag.help + choices,
    ]


def _code(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)
