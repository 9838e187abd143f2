"""Tables and paragraphs that stay readable on a narrow terminal: what has no room in a row goes below it.

Nothing is cut: ids differ at their ends, and people copy them.
"""

import textwrap
from collections.abc import Iterator, Mapping, Sequence

from rich.cells import cell_len
from rich.text import Text

from gpuplane.base.text import on_one_line
from gpuplane.base.value import Value

GAP = "  "
INDENT, ROOM = 5, 30
"""Cells that what is below a row is indented by at most, and that the last column is given before others give way."""

LABELS = {"HELD BY": "held by ", "FROM": "from ", "TO": "to "}
"""What is said before a cell that is not in its column, where it would not be understood."""

Cells = Mapping[str, str]
"""The head of a column → what stands there in one row."""

STYLES = {
    **dict.fromkeys(("healthy", "ok"), "green"),
    **dict.fromkeys(
        ("suspect", "degraded", "drained", "probing", "withheld", "held", "not offered", "waiting"), "yellow"
    ),
    **dict.fromkeys(("unhealthy", "absent", "failing"), "red"),
}
"""The words that say how something stands."""


class _Table(Value):
    """`room`: the cells that each column takes; `loose`: the one that gives way row by row."""

    heads: tuple[str, ...]
    room: Mapping[str, int]
    width: int
    loose: str = ""

    def fitting(self, give_way: Sequence[str]) -> Sequence[str]:
        """The columns that have room beside each other, where others give way in this order."""
        shown = self.heads
        for head in give_way:
            if sum(self._least(each) + len(GAP) for each in shown) - len(GAP) <= self.width:
                break
            shown = tuple(each for each in shown if each != head)
        return shown

    def _least(self, head: str) -> int:
        return min(self.room[head], ROOM) if head == self.loose else self.room[head]

    def row(self, row: Cells, shown: Sequence[str]) -> Iterator[Text]:
        """The lines of a row. What has no room is below it."""
        beside = _joined(row, shown, self.room)
        if self.loose in shown and beside.cell_len > self.width:
            shown = [each for each in shown if each != self.loose]
            beside = _joined(row, shown, self.room)
        yield beside
        below = [LABELS.get(head, "") + row[head] for head in self.heads if head not in shown and row[head]]
        yield from _below(below, min(self.room[self.heads[0]] + len(GAP), INDENT), self.width)


def table(
    heads: Sequence[str], rows: Sequence[Cells], width: int, give_way: Sequence[str] = (), loose: str = ""
) -> Iterator[Text]:
    """The lines of a table for a terminal of a width.

    Columns `give_way` in this order, until the others have room; what stood in them is below each row. The last one
    does so row by row where it is `loose`. A column in which nothing stands is left out.
    """
    rows = [{head: on_one_line(row[head]) for head in heads} for row in rows]
    heads = tuple(head for head in heads if any(row[head] for row in rows))
    room = {head: max(cell_len(row[head]) for row in ({head: head}, *rows)) for head in heads}
    drawn = _Table(heads, room, width, loose)
    shown = drawn.fitting(give_way)
    title = _joined({head: head for head in heads}, shown, room)
    title.style = "bold"
    yield title
    for row in rows:
        yield from drawn.row(row, shown)


def _joined(row: Cells, shown: Sequence[str], room: Mapping[str, int]) -> Text:
    cells = (Text(row[head], STYLES.get(row[head], "")) for head in shown)
    padded = (cell + " " * (room[head] - cell.cell_len) for cell, head in zip(cells, shown, strict=True))
    joined = Text(GAP).join(padded)
    joined.rstrip()
    return joined


def _below(cells: Sequence[str], indent: int, width: int) -> Iterator[Text]:
    """As many cells in a line as have room there; one that is longer than a line is wrapped."""
    beside = ""
    for cell in cells:
        longer = f"{beside}{GAP}{cell}" if beside else cell
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
