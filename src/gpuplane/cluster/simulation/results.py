"""What a run shows, and what runs of several seeds show together."""

import math
import statistics
from collections.abc import Mapping, Sequence

from gpuplane.base.value import Value
from gpuplane.cluster.simulation.pods import ordered


class Point(Value):
    """The moment when demand first reached so much. All in % of the cluster's GPUs."""

    demand: int
    allocated: float
    fragmentation: float


class Run(Value):
    """One policy, one seed.

    `allocated`, `fragmentation`: % of the cluster's GPUs at the end; with departures the mean over the last quarter of
    the arrivals. `pods_arrived`, `pods_placed`: how many pods, by class. `wait_s`: with a queue, the mean seconds that
    placed pods have waited, by class; `mean_wait_s`: of all. `gpu_hours_lost`: with a queue, GPU-hours that were free
    while pods waited for as much, until the last arrival.
    """

    policy: str
    seed: int
    allocated: float
    fragmentation: float
    points: tuple[Point, ...]
    pods_arrived: Mapping[str, int]
    pods_placed: Mapping[str, int]
    wait_s: Mapping[str, float]
    mean_wait_s: float | None
    gpu_hours_lost: float | None


class MeanAndSd(Value):
    """Of one figure over the seeds: its mean, and its standard deviation (0 of one seed)."""

    mean: float
    sd: float


class Difference(Value):
    """Of two policies, paired by seed. `margin`: the mean of endless seeds is within it of `mean`, with 95 %
    confidence; None of one seed. `least`: of all seeds."""

    mean: float
    margin: float | None
    least: float


def mean_and_sd(values: Sequence[float]) -> MeanAndSd:
    """Raises StatisticsError where there are none."""
    return MeanAndSd(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0)


# fmt: off
STUDENT_QUANTILES = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)
# fmt: on
"""Student's t for 95 % of both sides, by degrees of freedom from 1 on (any table of it). Beyond, 1.96 + 2.5 / them."""


def paired(values: Sequence[float]) -> Difference:
    """Of the differences of each seed. Raises StatisticsError where there are none."""
    found, freedom = mean_and_sd(values), len(values) - 1
    if not freedom:
        return Difference(found.mean, None, found.mean)
    student = STUDENT_QUANTILES[freedom - 1] if freedom <= len(STUDENT_QUANTILES) else 1.96 + 2.5 / freedom
    return Difference(found.mean, student * found.sd / math.sqrt(len(values)), min(values))


def difference(runs: Sequence[Run], reference: Sequence[Run]) -> Difference:
    """How much more is allocated than by another policy, in points: paired by seed, which both have."""
    other = {each.seed: each.allocated for each in reference}
    return paired([each.allocated - other[each.seed] for each in runs])


def acceptance(runs: Sequence[Run]) -> dict[str, float]:
    """Class → % of its pods that were placed: the mean of the seeds that have some."""
    found = dict[str, list[float]]()
    for run in runs:
        for each, count in run.pods_arrived.items():
            found.setdefault(each, []).append(100 * run.pods_placed.get(each, 0) / count)
    return {each: statistics.fmean(found[each]) for each in ordered(found)}


def acceptance_difference(runs: Sequence[Run], reference: Sequence[Run]) -> dict[str, Difference]:
    """Class → how many more of its pods were placed than by another policy, in points: of the seeds that have some."""
    other, found = {each.seed: each for each in reference}, dict[str, list[float]]()
    for run in runs:
        for each, count in run.pods_arrived.items():
            more = run.pods_placed.get(each, 0) - other[run.seed].pods_placed.get(each, 0)
            found.setdefault(each, []).append(100 * more / count)
    return {each: paired(found[each]) for each in ordered(found)}
