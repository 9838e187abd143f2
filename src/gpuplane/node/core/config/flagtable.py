"""The table of flags for the documentation."""

from collections.abc import Iterable

from gpuplane.node.core.config.flags import FLAGS, Flag

TABLE_HEAD = """\
| flag | environment | file | default | what it does |
|---|---|---|---|---|
"""


def flags_table() -> str:
    """The table in Markdown, a row for each flag."""
    return TABLE_HEAD + "".join(f"| {' | '.join(_table_cells(flag))} |\n" for flag in FLAGS)


def _table_cells(flag: Flag) -> list[str]:
    choices = f" ({', '.join(flag.choices)})" if len(flag.choices) > 1 else ""
    return [
        _code_spans(f"--{name}" for name in flag.names),
        _code_spans(flag.environment_variables),
        _code_spans([flag.file_key] if flag.file_key else []),
        _code_spans([flag.default] if flag.default else []),
        flag.help + choices,
    ]


def _code_spans(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)
