"""What a run shows, and what runs of several seeds show together."""

import statistics
from collections.abc import Mapping, Sequence

from gpuplane.model.value import Value


class Point(Value):
    """The moment when demand first reached so much. All in % of the cluster's GPUs."""

    demand: int
    allocated: float
    fragmentation: float


class Run(Value):
    """One policy, one seed.

    `allocated`, `fragmentation`: % of the cluster's GPUs at the end; with departures the mean over the last quarter of
    the arrivals. `arrived`, `placed`: pods by class. `wait_s`: with a queue, the mean seconds that placed pods have
    waited, by class; `mean_wait_s`: of all. `gpu_hours_lost`: with a queue, GPU-hours that were free while pods waited
    for as much, until the last arrival.
    """

    policy: str
    seed: int
    allocated: float
    fragmentation: float
    points: tuple[Point, ...]
    arrived: Mapping[str, int]
    placed: Mapping[str, int]
    wait_s: Mapping[str, float] = {}
    mean_wait_s: float | None = None
    gpu_hours_lost: float | None = None


class Spread(Value):
    """Of one figure over the seeds: its mean, and its standard deviation (0 of one seed)."""

    mean: float
    sd: float


def spread(values: Sequence[float]) -> Spread:
    """Raises StatisticsError where there are none."""
    return Spread(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0)


def difference(runs: Sequence[Run], reference: Sequence[Run]) -> Spread:
    """How much more is allocated than by another policy, in points: paired by seed, which both have."""
    other = {each.seed: each.allocated for each in reference}
    return spread([each.allocated - other[each.seed] for each in runs])


def acceptance(runs: Sequence[Run]) -> dict[str, float]:
    """Class → % of the pods that were placed, of all runs."""
    arrived, placed = dict[str, int](), dict[str, int]()
    for run in runs:
        for each, count in run.arrived.items():
            arrived[each] = arrived.get(each, 0) + count
            placed[each] = placed.get(each, 0) + run.placed.get(each, 0)
    return {each: 100 * placed[each] / count for each, count in arrived.items()}
