"""What a command prints of what it has found: a JSON document, a page at a terminal, and elsewhere lines.

A command gives all three forms, and prints one of them. rich, which draws pages, is imported only at a terminal.
"""

import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Union

import click

from gpuplane.base.text import Text, tab_separated
from gpuplane.base.value import Value
from gpuplane.cli.kit.messages import say, wrap_for
from gpuplane.node.model.encoding import format_json

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


class Table(Value):
    """Rows below the headings of their columns.

    `give_way`: the columns whose cells go below their rows, in this order, where the terminal is too narrow for all;
    the last does so row by row where it is `loose`. `numeric`: columns that are aligned right. `best_row`: a row that
    stands out.
    """

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    give_way: tuple[str, ...] = ()
    loose: str = ""
    numeric: tuple[str, ...] = ()
    best_row: int | None = None

    def cells(self) -> list[Mapping[str, str]]:
        """Each row: the heading of a column → what stands there."""
        return [dict(zip(self.headings, row, strict=True)) for row in self.rows]


Block = Union[str, Table, "RenderableType"]
"""A part of a page: a table; a line with rich's markup, which is wrapped; a line of `unbroken` or `wrapped`, which is
not; or what else rich prints."""


def print_result(
    document: object,
    lines: Iterable[Text],
    page: Iterable[Block] | None = None,
    *,
    as_json: bool,
    nothing_found: str = "",
) -> None:
    """Print what a command has found.

    Without a `page` the lines are sentences: at a terminal they are fitted to its width. `nothing_found`: what is said
    on standard error instead of a page and lines; "" where there are some.
    """
    if as_json:
        print_json(document)
    elif nothing_found:
        say(nothing_found, err=True)
    elif page is None:
        for line in lines:
            say(line)
    elif is_terminal():
        print_page(page)
    else:
        print_lines(lines)


def print_json(document: object) -> None:
    """One JSON document."""
    sys.stdout.buffer.write(format_json(document))
    sys.stdout.buffer.flush()


def print_lines(lines: Iterable[Text]) -> None:
    """Lines for a program, as they are, all at once."""
    click.echo("".join(f"{line}\n" for line in lines), nl=False)


def print_page(page: Iterable[Block]) -> None:
    """Blocks for a person at a terminal."""
    from rich.text import Text as RichText

    from gpuplane.cli.kit.tables import table_lines

    screen = console()
    for block in page:
        if isinstance(block, Table):
            for line in table_lines(block, screen.width):
                screen.print(line, soft_wrap=True)
        else:
            screen.print(block, soft_wrap=isinstance(block, RichText), crop=False)


def rows_as_lines(rows: Iterable[Iterable[Text]]) -> Iterable[str]:
    """Rows for a program: tabs between the columns."""
    return (tab_separated(*row) for row in rows)


def is_terminal() -> bool:
    """Whether a person reads standard output."""
    return sys.stdout.isatty()


def console() -> "Console":
    """Where pages are printed: only what a command marks is coloured, and no text of others becomes a picture."""
    from rich.console import Console

    return Console(highlight=False, emoji=False)


def unbroken(markup: str) -> "RenderableType":
    """A line of a page that is not wrapped, even where it is wider than the terminal: so it can be copied."""
    from rich.text import Text as RichText

    return RichText.from_markup(markup, emoji=False)


def wrapped(sentence: Text) -> "RenderableType":
    """A sentence of a page, broken between words as `say` does it: an id stays whole."""
    from rich.text import Text as RichText

    return RichText(wrap_for(sys.stdout, sentence))
