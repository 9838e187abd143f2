"""What people see of long work: on standard error, if that is a terminal, and gone when the work is done."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(what: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar; what is given is called at each of the `total` that is done."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(None), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)


@contextmanager
def spinner(what: str) -> Iterator[Callable[[str], None]]:
    """One line with a sign that moves, for work of which nobody knows how much there is; what is given changes it."""
    if not sys.stderr.isatty():
        yield lambda what: None
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True, highlight=False).status(escape(what)) as status:
        yield lambda what: status.update(escape(what))
