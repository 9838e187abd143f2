"""What is allocated, and what is a fragment, while demand grows, and which pods are placed, or with a queue how long
they wait: of each policy its mean, and all its seeds.

Only this module imports matplotlib. It draws into memory, and needs no screen.
"""

import io
import logging
from collections.abc import Callable

from gpuplane.cluster.simulation.report import Report
from gpuplane.cluster.simulation.results import Point, Run

PLOT_SUFFIXES = (".png", ".svg")
FIGURE_INCHES = (8.0, 9.0)
DOTS_PER_INCH = 150
"""Of a PNG, per inch."""
POINTS_BELOW_LEAST = 10.0
"""Points below the least that is allocated at the end, where the scale begins: all policies rise alike until then."""


def plot(report: Report, suffix: str) -> bytes:
    """The picture in a format of `PLOT_SUFFIXES`; the same report gives the same bytes. Raises ImportError."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it tells where it caches fonts
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    measures: tuple[tuple[str, Callable[[Point], float]], ...] = (
        ("allocated, % of the GPUs", lambda point: point.allocated),
        ("fragments, % of the GPUs", lambda point: point.fragmentation),
    )
    figure = Figure(figsize=FIGURE_INCHES, layout="constrained")
    FigureCanvasAgg(figure)
    upper, lower, classes = figure.subplots(3, 1)
    for axes, (name, value) in zip((upper, lower), measures, strict=True):
        for index, each in enumerate(report.policies):
            runs = [run for run in report.runs if run.policy == each.policy]
            columns = [*zip(*([value(point) for point in run.points] for run in runs), strict=False)]
            demand, colour = [point.demand for point in each.points], f"C{index}"
            axes.plot(demand, [sum(at) / len(at) for at in columns], color=colour, label=each.policy)
            axes.fill_between(demand, [*map(min, columns)], [*map(max, columns)], color=colour, alpha=0.2, linewidth=0)
        axes.set_ylabel(name)
        axes.grid(alpha=0.3)
    upper.set_ylim(bottom=max(0.0, min(each.allocated for each in report.runs) - POINTS_BELOW_LEAST))
    upper.legend(loc="lower right")
    lower.set_xlabel("demand, % of the GPUs")
    waits = report.queue != "none"
    kinds = [*report.policies[0].acceptance]
    for index, each in enumerate(report.policies):
        shift = 0.1 * (index - len(report.policies) / 2)
        runs = [run for run in report.runs if run.policy == each.policy]
        for place, kind in enumerate(kinds):
            of_seeds = [found for run in runs if (found := _of_class(run, kind, waits=waits)) is not None]
            if not of_seeds:
                continue
            mean = sum(of_seeds) / len(of_seeds)
            error = [[mean - min(of_seeds)], [max(of_seeds) - mean]]
            classes.errorbar(place + shift, mean, error, fmt="o", color=f"C{index}", elinewidth=2, alpha=0.8)
    classes.set_xticks(range(len(kinds)), kinds)
    classes.set_ylabel("mean wait, hours" if waits else "pods placed, %")
    classes.set_xlabel("class: without GPUs, parts of GPUs, or so many GPUs")
    classes.grid(alpha=0.3, axis="y")
    out = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "gpuplane"}):
        figure.savefig(out, format=suffix[1:], dpi=DOTS_PER_INCH, metadata={"Date": None} if suffix == ".svg" else None)
    return out.getvalue()


def _of_class(run: Run, kind: str, *, waits: bool) -> float | None:
    """How long pods of a class have waited, in hours, or how many of them were placed, in %; None where none came."""
    if waits:
        return run.wait_s[kind] / 3600 if kind in run.wait_s else None
    return 100 * run.pods_placed.get(kind, 0) / run.pods_arrived[kind] if run.pods_arrived.get(kind) else None
