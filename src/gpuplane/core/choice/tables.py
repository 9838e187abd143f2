"""The tables that there are: one for each layout of links, made beforehand and never while a request waits.

A table is a function of the worths alone, so this memory is none of the node's state: whoever finds no table here
searches instead, and gets an answer that is as good on most machines.
"""

from gpuplane.core.choice.question import Question
from gpuplane.core.choice.search import search
from gpuplane.core.choice.sets import MOST, Sets
from gpuplane.core.choice.topology import Worths

KEPT = 4
"""Tables that are remembered: of the layouts before, for a GPU that went and comes back."""

_tables: dict[Worths, Sets] = {}


def prepare(worths: Worths) -> None:
    """Make the table of these worths, unless there is one or the machine is too large. Takes up to 50 ms."""
    table = _tables.pop(worths, None) or (Sets(worths) if len(worths) <= MOST else None)
    if table is not None:
        _tables[worths] = table
    while len(_tables) > KEPT:
        del _tables[next(iter(_tables))]


def prepared(worths: Worths) -> Sets | None:
    """The table, if it has been made."""
    return _tables.get(worths)


def best(worths: Worths, question: Question) -> tuple[int, ...]:
    """The best set, by the table; a good one as long as there is none. Ascending; () where no set is possible."""
    table = _tables.get(worths)
    return search(worths, question) if table is None else table.best(question)
