"""What a simulation found: as a table for people, as lines for programs, and as CSV."""

import csv
import io
from collections.abc import Iterator

from gpuplane.cli.times import span
from gpuplane.core.text import format_count
from gpuplane.placement.simulation.report import PolicyFigures, Report
from gpuplane.placement.simulation.results import Difference, MeanAndSd, Run

COLUMNS = ("policy", "seed", "measure", "at", "value")
END = "end"


def csv_of(report: Report) -> bytes:
    """One figure a line: `at` is a class of pods, the demand in %, or the end."""
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(COLUMNS)
    for run in report.runs:
        table.writerows((run.policy, run.seed, *cells) for cells in _cells(run))
    return out.getvalue().encode()


def _cells(run: Run) -> Iterator[tuple[str, str | int, float]]:
    for point in run.points:
        yield "allocated", point.demand, round(point.allocated, 4)
        yield "fragmentation", point.demand, round(point.fragmentation, 4)
    yield "allocated", END, round(run.allocated, 4)
    yield "fragmentation", END, round(run.fragmentation, 4)
    for name, figures in (("arrived", run.arrived), ("placed", run.placed), ("wait_s", run.wait_s)):
        yield from ((name, kind, round(figure, 3)) for kind, figure in figures.items())
    if run.mean_wait_s is not None and run.gpu_hours_lost is not None:
        yield "mean_wait_s", END, round(run.mean_wait_s, 3)
        yield "gpu_hours_lost", END, round(run.gpu_hours_lost, 3)


def lines(report: Report) -> Iterator[str]:
    """For programs that read lines: what, the policy, a class where it is of one, and the figures."""
    for each in report.policies:
        yield "\t".join(("allocated", each.policy, *_two(each.allocated)))
        yield "\t".join(("fragmentation", each.policy, *_two(each.fragmentation)))
        if each.difference:
            yield "\t".join(("difference", each.policy, *_three(each.difference)))
        for kind, accepted in each.acceptance.items():
            yield f"acceptance\t{each.policy}\t{kind}\t{accepted:.2f}"
        for kind, more in (each.acceptance_difference or {}).items():
            yield "\t".join(("acceptance difference", each.policy, kind, *_three(more)))
        for kind, wait in each.wait_s.items():
            yield f"wait_s\t{each.policy}\t{kind}\t{wait:.0f}"
        if each.gpu_hours_lost:
            yield "\t".join(("gpu hours lost", each.policy, *_two(each.gpu_hours_lost)))
        if each.gpus_fewer:
            yield "\t".join(("gpus fewer", each.policy, *_three(each.gpus_fewer)))


def _two(figure: MeanAndSd) -> tuple[str, str]:
    return f"{figure.mean:.2f}", f"{figure.sd:.2f}"


def _three(figure: Difference) -> tuple[str, str, str]:
    return f"{figure.mean:.2f}", "" if figure.margin is None else f"{figure.margin:.2f}", f"{figure.least:.2f}"


def draw(report: Report) -> None:
    """For a person."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    first = report.policies[0].policy
    console.print(_title(report))

    def table(*heads: str) -> Table:
        made = Table(box=None, header_style="bold", pad_edge=False)
        for index, head in enumerate(heads):
            made.add_column(head, justify="right" if index else "left", overflow="fold")
        return made

    found = table("policy", "allocated", "fragments", *([f"more than {first}"] if report.policies[1:] else []))
    for each in report.policies:
        found.add_row(each.policy, _percent(each.allocated), _percent(each.fragmentation), _signed(each.difference))
    console.print(found)
    console.print("\n[bold]pods that got a place, %[/bold]")
    found = table("GPUs", *(each.policy for each in report.policies))
    for kind in report.policies[0].acceptance:
        found.add_row(kind, *(_accepted(each, kind) for each in report.policies))
    console.print(found)
    if report.policies[0].wait_s:
        console.print("\n[bold]how long they waited[/bold]")
        found = table("GPUs", *(each.policy for each in report.policies))
        for kind in report.policies[0].acceptance:
            waits = (each.wait_s.get(kind) for each in report.policies)
            found.add_row(kind, *("–" if wait is None else span(wait) for wait in waits))
        console.print(found)
    for line in _sentences(report, first):
        console.print(line)


def _title(report: Report) -> str:
    how = ", with departures" if report.departures else ""
    if report.queue != "none":
        how += f" and a queue ({report.queue})"
    return (
        f"{format_count(report.gpus, 'GPU')} of {format_count(report.nodes, 'node')}, "
        f"{format_count(report.pods, 'pod')}, demand {report.arrivals} %{how}; "
        f"{format_count(len(report.seeds), 'seed')}"
    )


def _sentences(report: Report, first: str) -> Iterator[str]:
    if report.policies[1:] and len(report.seeds) > 1:
        yield f"\nDifferences are in points, seed by seed against {first}, with 95 % confidence."
    for each in report.policies:
        if each.gpu_hours_lost:
            yield f"{each.policy}: {each.gpu_hours_lost.mean:.0f} GPU-hours were free while pods waited for as much."
    for each in report.policies[1:] if report.fewer_asked else ():
        if each.gpus_fewer is None:
            yield f"{each.policy} allocates less than {first} on all GPUs with some seed: it needs more of them."
        else:
            margin = "" if each.gpus_fewer.margin is None else f" ± {each.gpus_fewer.margin:.0f}"
            yield (
                f"{each.policy} needs {each.gpus_fewer.mean:.0f}{margin} of {report.gpus} GPUs fewer to allocate as "
                f"many as {first}."
            )


def _percent(figure: MeanAndSd) -> str:
    return f"{figure.mean:.2f} %"


def _signed(figure: Difference | None) -> str:
    if figure is None:
        return ""
    return f"{figure.mean:+.2f}" + ("" if figure.margin is None else f" ± {figure.margin:.2f}")


def _accepted(figures: PolicyFigures, kind: str) -> str:
    """Of a policy and a class, and how it differs."""
    more = (figures.acceptance_difference or {}).get(kind)
    return f"{figures.acceptance[kind]:.1f}" + (f" ({_signed(more)})" if more else "")
