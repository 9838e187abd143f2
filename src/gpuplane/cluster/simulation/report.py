"""What a simulation found, over its seeds: each policy's figures, and how it differs from the first one."""

from collections.abc import Mapping, Sequence

from gpuplane.base.value import Value
from gpuplane.cluster.model.nodes import Node
from gpuplane.cluster.model.requests import MILLI_PER_GPU
from gpuplane.cluster.simulation.pods import TracePod
from gpuplane.cluster.simulation.replay import capacity_milli
from gpuplane.cluster.simulation.results import (
    Difference,
    MeanAndSd,
    Run,
    acceptance,
    acceptance_difference,
    difference,
    mean_and_sd,
    paired,
)
from gpuplane.cluster.simulation.scenario import Queue, Scenario


class DemandPoint(Value):
    """When demand first reached so much, over the seeds that reach it. All in % of the cluster's GPUs."""

    demand: int
    allocated: MeanAndSd
    fragmentation: MeanAndSd


class PolicyFigures(Value):
    """Figures of one policy: `Run` says what each is, and in which unit; here they are over the seeds.

    The differences are to the first policy, in points, and None for that one. `gpus_fewer`: how many GPUs can be left
    out so that as many are allocated as by the first policy on all, over the seeds with which all are enough;
    `fewer_found`: how many these are. None where it was not asked; `gpus_fewer` also where there are none.
    """

    policy: str
    allocated: MeanAndSd
    fragmentation: MeanAndSd
    acceptance: Mapping[str, float]
    points: tuple[DemandPoint, ...]
    wait_s: Mapping[str, float]
    mean_wait_s: MeanAndSd | None
    gpu_hours_lost: MeanAndSd | None
    difference: Difference | None
    acceptance_difference: Mapping[str, Difference] | None
    gpus_fewer: Difference | None
    fewer_found: int | None


class Report(Value):
    """A simulation, and its `Scenario`; `demand_percent` is its `demand`. `gpus`, `nodes`, `pods`: of what it was made;
    `seeds`: all that were played; `fewer_asked`: whether smaller clusters were tried; `runs`: each."""

    demand_percent: int
    departures: bool
    queue: Queue
    nodes: int
    gpus: int
    pods: int
    seeds: tuple[int, ...]
    fewer_asked: bool
    policies: tuple[PolicyFigures, ...]
    runs: tuple[Run, ...]


Fewer = Mapping[str, Sequence[float | None]]
"""Policy → GPUs that can be left out, by seed."""


def report(
    nodes: Sequence[Node], pods: Sequence[TracePod], scenario: Scenario, runs: Sequence[Run], fewer: Fewer | None = None
) -> Report:
    """Of runs with the same seeds for each policy; the first run's policy is what others are compared with."""
    by_policy = dict[str, list[Run]]()
    for run in runs:
        by_policy.setdefault(run.policy, []).append(run)
    first = by_policy[runs[0].policy]
    return Report(
        scenario.demand,
        scenario.departures,
        scenario.queue,
        len(nodes),
        capacity_milli(nodes) // MILLI_PER_GPU,
        len(pods),
        tuple(run.seed for run in first),
        fewer is not None,
        tuple(_figures(each, first, (fewer or {}).get(policy, ())) for policy, each in by_policy.items()),
        tuple(runs),
    )


def _figures(runs: Sequence[Run], first: Sequence[Run], fewer: Sequence[float | None]) -> PolicyFigures:
    own = runs is first
    found = [each for each in fewer if each is not None]
    return PolicyFigures(
        runs[0].policy,
        mean_and_sd([each.allocated for each in runs]),
        mean_and_sd([each.fragmentation for each in runs]),
        acceptance(runs),
        points(runs),
        _waits(runs),
        _known([each.mean_wait_s for each in runs]),
        _known([each.gpu_hours_lost for each in runs]),
        None if own else difference(runs, first),
        None if own else acceptance_difference(runs, first),
        paired(found) if found else None,
        len(found) if fewer else None,
    )


def points(runs: Sequence[Run]) -> tuple[DemandPoint, ...]:
    """The moments that all runs have."""
    return tuple(
        DemandPoint(
            at[0].demand, mean_and_sd([each.allocated for each in at]), mean_and_sd([each.fragmentation for each in at])
        )
        for at in zip(*(each.points for each in runs), strict=False)
    )


def _waits(runs: Sequence[Run]) -> dict[str, float]:
    """Class → mean seconds of all its pods that were placed."""
    sums, counts = dict[str, float](), dict[str, int]()
    for run in runs:
        for each, wait in run.wait_s.items():
            sums[each] = sums.get(each, 0.0) + wait * run.pods_placed[each]
            counts[each] = counts.get(each, 0) + run.pods_placed[each]
    return {each: sums[each] / count for each, count in counts.items()}


def _known(values: Sequence[float | None]) -> MeanAndSd | None:
    found = [each for each in values if each is not None]
    return mean_and_sd(found) if found else None
