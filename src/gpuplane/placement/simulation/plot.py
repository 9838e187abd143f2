"""What is allocated, and what is a fragment, while demand grows, and which pods are placed: of each policy its mean,
and all its seeds.

Only this module imports matplotlib. It draws into memory, and needs no screen.
"""

import io
import logging
from collections.abc import Callable

from gpuplane.placement.simulation.report import Report
from gpuplane.placement.simulation.results import Point

FORMATS = (".png", ".svg")
INCHES = (8.0, 9.0)
DOTS = 150
"""Of a PNG, per inch."""
BELOW = 10.0
"""Points below the least that is allocated at the end, where the scale begins: all policies rise alike until then."""


def plot(report: Report, suffix: str) -> bytes:
    """The picture in a format of `FORMATS`; the same report gives the same bytes. Raises ImportError."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it tells where it caches fonts
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    measures: tuple[tuple[str, Callable[[Point], float]], ...] = (
        ("allocated, % of the GPUs", lambda point: point.allocated),
        ("fragments, % of the GPUs", lambda point: point.fragmentation),
    )
    figure = Figure(figsize=INCHES, layout="constrained")
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
    upper.set_ylim(bottom=max(0.0, min(each.allocated for each in report.runs) - BELOW))
    upper.legend(loc="lower right")
    lower.set_xlabel("demand, % of the GPUs")
    for index, each in enumerate(report.policies):
        runs, shift = (
            [run for run in report.runs if run.policy == each.policy],
            0.1 * (index - len(report.policies) / 2),
        )
        for place, (kind, mean) in enumerate(each.acceptance.items()):
            of_seeds = [100 * run.placed.get(kind, 0) / run.arrived[kind] for run in runs if run.arrived.get(kind)]
            lowest, highest = min([mean, *of_seeds]), max([mean, *of_seeds])
            error = [[mean - lowest], [highest - mean]]
            classes.errorbar(place + shift, mean, error, fmt="o", color=f"C{index}", elinewidth=2, alpha=0.8)
    classes.set_xticks(range(len(report.policies[0].acceptance)), [*report.policies[0].acceptance])
    classes.set_ylabel("pods placed, %")
    classes.set_xlabel("class: without GPUs, parts of GPUs, or so many GPUs")
    classes.grid(alpha=0.3, axis="y")
    out = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "gpuplane"}):
        figure.savefig(out, format=suffix[1:], dpi=DOTS, metadata={"Date": None} if suffix == ".svg" else None)
    return out.getvalue()
