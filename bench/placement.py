"""Placement: how much of the GPUs of real traces is allocated, whom that leaves without a place, and what is promised.

By the FGD paper's method, with ten seeds, each against our own FGD with the same pods in the
same order. A budget is the most that a figure may be: so what should be large is shown as what it lacks.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from bench.decisions import large, speed
from bench.moves import consolidation
from bench.row import Measure, Row
from bench.traces import DEFAULT, OTHERS, missing, play
from gpuplane.cluster.simulation.results import (
    Difference,
    Run,
    acceptance,
    acceptance_difference,
    difference,
    mean_and_sd,
)
from gpuplane.cluster.simulation.scenario import Scenario
from gpuplane.cluster.simulation.workers import cores
from tests.cluster.engine.histories import History

PUBLISHED = 95.4
"""Percent that FGD allocates of the default trace's cluster at 130 % of arrivals, by the paper's artifact."""
WITHIN = 0.2
TARGET = 96.2
"""Percent that we do; the bound is 96.5 (a linear program over packings)."""
AHEAD = 0.5
"""Points that each seed is ahead of FGD on the default trace."""
WORSE = 1.0
"""Points of its pods that no class may lose."""

HISTORIES = 100_000
"""Of reservations."""

ARRIVALS, DEPARTURES = Scenario(), Scenario(departures=True)


async def default_trace() -> list[Row]:
    """what is allocated of the default trace"""
    if rows := missing():
        return rows
    fgd, ours = play(DEFAULT, ARRIVALS)
    theirs, found, more = mean_and_sd(_allocated(fgd)), mean_and_sd(_allocated(ours)), difference(ours, fgd)
    return [
        Row(
            f"FGD on the default trace: distance from the published {PUBLISHED} %",
            abs(theirs.mean - PUBLISHED),
            WITHIN,
            "points",
            f"{theirs.mean:.2f} ± {theirs.sd:.2f} % allocated at 130 % of arrivals, {len(fgd)} seeds",
        ),
        Row(
            "GPUs of the default trace that waste-price does not allocate",
            100 - found.mean,
            round(100 - TARGET, 1),
            "%",
            f"{found.mean:.2f} ± {found.sd:.2f} % allocated, ties at random; the bound is 96.5",
        ),
        Row("the same, FGD's less ours, the worst seed", -more.least, -AHEAD, "points", _how(more)),
        _classes(DEFAULT, fgd, ours),
    ]


async def other_traces() -> list[Row]:
    """what is allocated of other traces, and of whom"""
    if rows := missing():
        return rows
    found = list[Row]()
    for trace in OTHERS:
        fgd, ours = play(trace, ARRIVALS)
        found += [_behind(f"{trace}: FGD's allocation less ours", fgd, ours), _classes(trace, fgd, ours)]
    return found


async def with_departures() -> list[Row]:
    """what is allocated while pods come and go"""
    if rows := missing():
        return rows
    found = list[Row]()
    for trace in (DEFAULT, *OTHERS):
        fgd, ours = play(trace, DEPARTURES)
        found.append(_behind(f"{trace} with departures: FGD's allocation less ours", fgd, ours))
    return found


async def reservations() -> list[Row]:
    """reservations under random histories"""
    with ProcessPoolExecutor(cores(), get_context("spawn")) as pool:
        wrong = [each for each in pool.map(_history, range(HISTORIES), chunksize=500) if each]
    how = f"{HISTORIES} histories: reserve, bind, expire, delete, restart, node gone, come or described anew"
    return [
        Row(
            "histories of reservations that give out twice, or lose",
            len(wrong),
            0,
            "histories",
            wrong[0] if wrong else how,
        )
    ]


def _history(seed: int) -> str:
    """What is wrong with it."""
    try:
        History(seed).play()
    except Exception as error:
        return f"seed {seed}: {type(error).__name__} {error}"
    return ""


def _behind(what: str, fgd: Sequence[Run], ours: Sequence[Run]) -> Row:
    more = difference(ours, fgd)
    theirs, found = mean_and_sd(_allocated(fgd)), mean_and_sd(_allocated(ours))
    how = f"{theirs.mean:.2f} ± {theirs.sd:.2f} to {found.mean:.2f} ± {found.sd:.2f} %, {len(fgd)} seeds; {_how(more)}"
    return Row(what, -more.mean, 0, "points", how)


def _classes(trace: str, fgd: Sequence[Run], ours: Sequence[Run]) -> Row:
    """Of the class that loses most."""
    more, before = acceptance_difference(ours, fgd), acceptance(fgd)
    worst = min(more, key=lambda each: more[each].mean)
    how = f"class {worst}, of which FGD places {before[worst]:.1f} %; {_by_class(more)}"
    return Row(f"{trace}: pods of one class that FGD places and we do not", -more[worst].mean, WORSE, "points", how)


def _by_class(more: Mapping[str, Difference]) -> str:
    return "ours more, in points: " + ", ".join(
        f"{kind} {each.mean:+.1f} ± {each.margin or 0:.1f}" for kind, each in more.items()
    )


def _allocated(runs: Sequence[Run]) -> list[float]:
    return [each.allocated for each in runs]


def _how(more: Difference) -> str:
    return f"paired {more.mean:+.2f} ± {more.margin or 0:.2f} points (95 %), the worst seed {more.least:+.2f}"


MEASURES: tuple[Measure, ...] = (
    default_trace,
    other_traces,
    with_departures,
    consolidation,
    speed,
    large,
    reservations,
)
