"""Tables and paragraphs that stay readable on a narrow terminal: what has no room in a row goes below it.

Nothing is cut: ids differ at their ends, and people copy them.
"""

import textwrap
from collections.abc import Iterator, Mapping, Sequence

from rich.cells import cell_len
from rich.text import Text

from gpuplane.base.text import on_one_line
from gpuplane.base.value import Value
from gpuplane.cli.kit.presenter import Table

COLUMN_GAP = "  "
MAX_INDENT = 5
"""Cells that what is below a row is indented by at most."""
MIN_LOOSE_WIDTH = 30
"""Cells that a loose column is given before others give way."""

LABEL_BY_HEADING = {"HELD BY": "held by ", "FROM": "from ", "TO": "to ", "set with the lowest indices": "set "}
"""What is said before a cell that is not in its column, where it would not be understood."""

Cells = Mapping[str, str]
"""The heading of a column → what stands there in one row."""

STYLE_BY_STATE = {
    **dict.fromkeys(("healthy", "ok"), "green"),
    **dict.fromkeys(
        ("suspect", "degraded", "drained", "probing", "withheld", "held", "not offered", "waiting"), "yellow"
    ),
    **dict.fromkeys(("unhealthy", "absent", "failing"), "red"),
}


class _Layout(Value):
    """How wide each column is, and which have a right edge."""

    width_by_heading: Mapping[str, int]
    width: int
    loose: str = ""
    numeric: tuple[str, ...] = ()

    def fitting(self, give_way: Sequence[str]) -> Sequence[str]:
        """The columns that have room beside each other, where others give way in this order."""
        shown = tuple(self.width_by_heading)
        for heading in give_way:
            if sum(self._least(each) + len(COLUMN_GAP) for each in shown) - len(COLUMN_GAP) <= self.width:
                break
            shown = tuple(each for each in shown if each != heading)
        return shown

    def _least(self, heading: str) -> int:
        width = self.width_by_heading[heading]
        return min(width, MIN_LOOSE_WIDTH) if heading == self.loose else width

    def row(self, row: Cells, shown: Sequence[str]) -> Iterator[Text]:
        """The lines of a row. What has no room is below it."""
        beside = self.joined(row, shown)
        if self.loose in shown and beside.cell_len > self.width:
            shown = [each for each in shown if each != self.loose]
            beside = self.joined(row, shown)
        yield beside
        below = [
            LABEL_BY_HEADING.get(heading, "") + row[heading]
            for heading in self.width_by_heading
            if heading not in shown and row[heading]
        ]
        first = next(iter(self.width_by_heading.values()))
        yield from _below(below, min(first + len(COLUMN_GAP), MAX_INDENT), self.width)

    def joined(self, row: Cells, shown: Sequence[str]) -> Text:
        """The cells beside each other."""
        line = Text(COLUMN_GAP).join(self._padded(heading, row[heading]) for heading in shown)
        line.rstrip()
        return line

    def _padded(self, heading: str, text: str) -> Text:
        cell = Text(text, STYLE_BY_STATE.get(text, ""))
        space = " " * (self.width_by_heading[heading] - cell.cell_len)
        return Text(space) + cell if heading in self.numeric else cell + space


def table_lines(table: Table, width: int) -> Iterator[Text]:
    """The lines of a table for a terminal of a width. A column in which nothing stands is left out."""
    rows = [{heading: on_one_line(cell) for heading, cell in row.items()} for row in table.cells()]
    layout = _Layout(_column_widths(table.headings, rows), width, table.loose, table.numeric)
    shown = layout.fitting(table.give_way)
    title = layout.joined({heading: heading for heading in table.headings}, shown)
    title.style = "bold"
    yield title
    for number, row in enumerate(rows):
        for line in layout.row(row, shown):
            line.style = "green" if number == table.best_row else line.style
            yield line


def table_width(table: Table) -> int:
    """How wide a table is where no column gives way."""
    return max(line.cell_len for line in table_lines(table.but(give_way=(), loose=""), 0))


def _column_widths(headings: Sequence[str], rows: Sequence[Cells]) -> dict[str, int]:
    filled = [heading for heading in headings if any(row[heading] for row in rows)]
    return {heading: max(cell_len(row[heading]) for row in ({heading: heading}, *rows)) for heading in filled}


def _below(cells: Sequence[str], indent: int, width: int) -> Iterator[Text]:
    """As many cells in a line as have room there; one that is longer than a line is wrapped."""
    beside = ""
    for cell in cells:
        longer = f"{beside}{COLUMN_GAP}{cell}" if beside else cell
        if beside and indent + cell_len(longer) > width:
            yield from paragraph(beside, width, indent, indent)
            longer = cell
        beside = longer
    if beside:
        yield from paragraph(beside, width, indent, indent)


def paragraph(text: str, width: int, first: int = 0, then: int = 2) -> Iterator[Text]:
    """A text in lines of a width, the first and the others indented by so much. A word that is longer stays whole."""
    for each in textwrap.wrap(
        on_one_line(text),
        max(width, then + 20),
        initial_indent=" " * first,
        subsequent_indent=" " * then,
        break_long_words=False,
        break_on_hyphens=False,
    ):
        yield Text(each)
