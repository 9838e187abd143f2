"""What a simulation found: as a table for people, as lines for programs, and as CSV."""

import csv
import io
from collections.abc import Callable, Iterator, Sequence

from gpuplane.base.text import format_count
from gpuplane.cli.kit.durations import describe_duration
from gpuplane.cli.kit.presenter import Block, Table, console
from gpuplane.cluster.simulation.report import PolicyFigures, Report
from gpuplane.cluster.simulation.results import Difference, MeanAndSd, Run

CSV_COLUMNS = ("policy", "seed", "measure", "at", "value")
AT_END = "end"


def csv_of(report: Report) -> bytes:
    """One figure a line: `at` is a class of pods, the demand in %, or the end."""
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(CSV_COLUMNS)
    for run in report.runs:
        table.writerows((run.policy, run.seed, *cells) for cells in _csv_rows(run))
    return out.getvalue().encode()


def _csv_rows(run: Run) -> Iterator[tuple[str, str | int, float]]:
    for point in run.points:
        yield "allocated", point.demand, round(point.allocated, 4)
        yield "fragmentation", point.demand, round(point.fragmentation, 4)
    yield "allocated", AT_END, round(run.allocated, 4)
    yield "fragmentation", AT_END, round(run.fragmentation, 4)
    for name, figures in (("pods_arrived", run.pods_arrived), ("pods_placed", run.pods_placed), ("wait_s", run.wait_s)):
        yield from ((name, kind, round(figure, 3)) for kind, figure in figures.items())
    if run.mean_wait_s is not None and run.gpu_hours_lost is not None:
        yield "mean_wait_s", AT_END, round(run.mean_wait_s, 3)
        yield "gpu_hours_lost", AT_END, round(run.gpu_hours_lost, 3)


def lines(report: Report) -> Iterator[str]:
    """For programs that read lines: what, the policy, a class where it is of one, and the figures."""
    for each in report.policies:
        yield "\t".join(("allocated", each.policy, *_mean_and_sd_cells(each.allocated)))
        yield "\t".join(("fragmentation", each.policy, *_mean_and_sd_cells(each.fragmentation)))
        if each.difference:
            yield "\t".join(("difference", each.policy, *_difference_cells(each.difference)))
        if report.queue == "none":
            for kind, accepted in each.acceptance.items():
                yield f"acceptance\t{each.policy}\t{kind}\t{accepted:.2f}"
            for kind, more in (each.acceptance_difference or {}).items():
                yield "\t".join(("acceptance difference", each.policy, kind, *_difference_cells(more)))
        for kind, refused in _never_placed(report, each).items():
            yield f"refused\t{each.policy}\t{kind}\t{refused:.2f}"
        for kind, wait in each.wait_s.items():
            yield f"wait_s\t{each.policy}\t{kind}\t{wait:.0f}"
        if each.gpu_hours_lost:
            lost = each.gpu_hours_lost
            yield "\t".join(("gpu hours lost", each.policy, _significant(lost.mean), _significant(lost.sd)))
        if each.gpus_fewer:
            yield "\t".join(("gpus fewer", each.policy, *_difference_cells(each.gpus_fewer)))
        if each.fewer_found is not None:
            yield f"fewer found\t{each.policy}\t{each.fewer_found}\t{len(report.seeds)}"


def _never_placed(report: Report, figures: PolicyFigures) -> dict[str, float]:
    """With a queue all get a place but those that not even an empty cluster has room for. Class → % of these."""
    if report.queue == "none":
        return {}
    return {kind: 100 - accepted for kind, accepted in figures.acceptance.items() if accepted < 100}


def _significant(figure: float) -> str:
    """ "0.24", "12.3", "4567": three digits at least, and no exponent but for what is next to nothing."""
    return f"{figure:.0f}" if figure >= 100 else f"{figure:.3g}"


def _mean_and_sd_cells(figure: MeanAndSd) -> tuple[str, str]:
    return f"{figure.mean:.2f}", f"{figure.sd:.2f}"


def _difference_cells(figure: Difference) -> tuple[str, str, str]:
    return f"{figure.mean:.2f}", "" if figure.margin is None else f"{figure.margin:.2f}", f"{figure.least:.2f}"


def page(report: Report) -> Iterator[Block]:
    """For a person."""
    first, several = report.policies[0].policy, bool(report.policies[1:])
    yield _title(report)
    headings = ("policy", "allocated", "fragments", *([f"more than {first}"] if several else []))
    rows = tuple(
        (each.policy, _percent(each.allocated), _percent(each.fragmentation), _signed(each.difference))[: len(headings)]
        for each in report.policies
    )
    overview = Table(headings, rows, numeric=headings[1:])
    if _fits(overview):
        yield overview
    else:
        for each in report.policies:
            more = f", {_signed(each.difference)} more than {first}" if each.difference else ""
            shown = f"{_percent(each.allocated)} allocated, {_percent(each.fragmentation)} fragments"
            yield f"{each.policy}: {shown}{more}"
    if report.queue == "none":
        yield from _by_class(report, "pods that got a place, %", _accepted)
    else:
        yield from _by_class(report, "how long they waited", _waited)
    yield from _sentences(report, first)


def _by_class(report: Report, title: str, cell: Callable[[PolicyFigures, str], str]) -> Iterator[Block]:
    """All policies beside each other; where that is too wide, below each other."""
    yield f"\n[bold]{title}[/bold]"
    beside = _class_table(report.policies, cell)
    yield from [beside] if _fits(beside) else [_class_table((each,), cell) for each in report.policies]


def _class_table(policies: Sequence[PolicyFigures], cell: Callable[[PolicyFigures, str], str]) -> Table:
    names = tuple(each.policy for each in policies)
    rows = tuple((kind, *(cell(each, kind) for each in policies)) for kind in policies[0].acceptance)
    return Table(("GPUs", *names), rows, numeric=names)


def _fits(table: Table) -> bool:
    from gpuplane.cli.kit.tables import table_width

    return table_width(table) <= console().width


def _title(report: Report) -> str:
    how = ", with departures" if report.departures else ""
    if report.queue != "none":
        how += f" and a queue ({report.queue})"
    return (
        f"{format_count(report.gpus, 'GPU')} of {format_count(report.nodes, 'node')}, "
        f"{format_count(report.pods, 'pod')}, demand {report.demand_percent} %{how}; "
        f"{format_count(len(report.seeds), 'seed')}"
    )


def _sentences(report: Report, first: str) -> Iterator[str]:
    if report.policies[1:] and len(report.seeds) > 1:
        yield f"\nDifferences are in points, seed by seed against {first}, with 95 % confidence."
    for each in report.policies:
        if each.gpu_hours_lost:
            lost = _significant(each.gpu_hours_lost.mean)
            yield f"{each.policy}: {lost} GPU-hours were free while pods waited for as much."
    for kind, refused in _never_placed(report, report.policies[0]).items():
        yield f"{_significant(refused)} % of the pods of class {kind} were refused: they fit on no node, even if empty."
    for each in report.policies[1:]:
        if each.fewer_found is not None:
            yield _fewer_gpus_sentence(each, each.fewer_found, report, first)


def _fewer_gpus_sentence(figures: PolicyFigures, found: int, report: Report, first: str) -> str:
    seeds, as_many = len(report.seeds), f"to allocate as many as {first}"
    if figures.gpus_fewer is None:
        with_all = "" if seeds == 1 else f" with each of the {seeds} seeds"
        return f"{figures.policy} needs more than all {report.gpus} GPUs {as_many}{with_all}."
    margin = "" if figures.gpus_fewer.margin is None else f" ± {figures.gpus_fewer.margin:.0f}"
    fewer = f"{figures.policy} needs {figures.gpus_fewer.mean:.0f}{margin} of {report.gpus} GPUs fewer {as_many}"
    return (
        f"{fewer}." if found == seeds else f"{fewer} with {found} of {seeds} seeds, and with the others more than all."
    )


def _percent(figure: MeanAndSd) -> str:
    return f"{figure.mean:.2f} %"


def _signed(figure: Difference | None) -> str:
    if figure is None:
        return ""
    return f"{figure.mean:+.2f}" + ("" if figure.margin is None else f" ± {figure.margin:.2f}")


def _waited(figures: PolicyFigures, kind: str) -> str:
    wait = figures.wait_s.get(kind)
    return "–" if wait is None else describe_duration(wait)


def _accepted(figures: PolicyFigures, kind: str) -> str:
    """Of a policy and a class, and how it differs."""
    more = (figures.acceptance_difference or {}).get(kind)
    return f"{figures.acceptance[kind]:.1f}" + (f" ({_signed(more)})" if more else "")
