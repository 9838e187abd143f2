"""What was measured, on which machine, and how busy that was: as a table, as JSON, as Markdown."""

import json
import statistics
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from bench.machine import BUSY, Machine, Use
from bench.row import Row


class Figure(NamedTuple):
    """A row, the part of the bench that it is of, and who had the CPUs while it was measured."""

    part: str
    row: Row
    use: Use


class Report(NamedTuple):
    """One run; `date` is that of its start, as 2026-01-31, `load` the load average of a minute then."""

    date: str
    machine: Machine
    load: float
    figures: Sequence[Figure]

    @property
    def kept(self) -> bool:
        """Whether all budgets are."""
        return all(figure.row.kept for figure in self.figures)

    def beside(self) -> str:
        """How busy the machine was with other work."""
        taken = [figure.use.taken for figure in self.figures] or [0.0]
        busy = sum(figure.use.busy for figure in self.figures)
        return (
            f"Load average before the run: {self.load:.2f}. During it other processes took "
            f"{statistics.median(taken):.0f} % of the CPUs (median) and {max(taken):.0f} % at most; {busy} of "
            f"{len(self.figures)} figures are of a busy machine, where others took more than {BUSY:.0f} %."
        )


def show(report: Report) -> None:
    """On a terminal, or as lines."""
    table = Table("what", "measured", "budget", "", "others", "how", box=None, header_style="bold", pad_edge=False)
    for _, row, use in report.figures:
        verdict = "[green]kept[/green]" if row.kept else "[red]missed[/red]"
        table.add_row(row.what, _measured(row), _budget(row), verdict, _others(use), row.how)
    console = Console(soft_wrap=not sys.stdout.isatty(), highlight=False)
    console.print(table)
    console.print(f"\n{report.machine}\n{report.beside()}")


def document(report: Report) -> str:
    """One JSON document; CPU times are in percent of all CPUs' time."""
    whole: dict[str, Any] = {"date": report.date, "machine": report.machine._asdict(), "load": report.load}
    whole["rows"] = [
        {"part": part, **row._asdict(), "kept": row.kept, **use._asdict(), "busy": use.busy}
        for part, row, use in report.figures
    ]
    return json.dumps(whole, ensure_ascii=False, indent=1)


HEAD = "| | budget | measured | | others | how |"
RULE = "|---|---|---|---|---|---|"


def markdown(report: Report) -> str:
    """What docs/performance.md ends with."""
    lines = [
        f"Measured on {report.date}, on {report.machine}. {report.beside()}",
        "",
        HEAD,
        "|---|---|---|---|---|---|",
    ]
    for part, row, use in report.figures:
        cells = (f"{part}: {row.what}", _budget(row), _measured(row), "" if row.kept else "**missed**", _others(use))
        lines.append("| " + " | ".join(each.replace("|", "\\|") for each in (*cells, row.how)) + " |")
    return "\n".join(lines)


def _measured(row: Row) -> str:
    return f"{row.figure:.3g} {row.unit}".strip()


def _budget(row: Row) -> str:
    return f"≤ {row.budget:g} {row.unit}".strip()


def _others(use: Use) -> str:
    return f"{use.taken:.0f} %" + (", busy" if use.busy else "")
