"""How pods arrive: the scenario of a run, and the sequence that a seed makes of a workload.

**Arrivals alone**, as in the FGD paper (USENIX ATC'23; its simulator, pkg/simulator): the pods are sorted by name and
shuffled by the seed. Clones of pods drawn at random are appended until all together ask for so much of the cluster's
GPUs. Nothing ends.

**With departures** each pod runs as long as in the trace. Traces hold a small part of a cluster's load over a long
time, so time is scaled by how fast pods arrive: `ARRIVALS_PER_RUNNING_POD` times as many as above arrive at even
intervals, in so long a time that at its end those that would be running then, were none refused, ask for so much of the
GPUs.
"""

from collections.abc import Sequence
from itertools import accumulate
from random import Random
from typing import Literal

from gpuplane.base.value import Value
from gpuplane.cluster.simulation.pods import TracePod

ARRIVALS_PER_RUNNING_POD = 3
"""What arrives with departures, as a factor of what runs at the end of it."""
MAX_ARRIVALS = 2_000_000
"""That arrive in one run."""
MAX_HALVINGS = 60
"""Of the search for the interval: its error is then less than a float's."""

Queue = Literal["none", "fifo", "backfill"]


class Impossible(ValueError):
    """A scenario that cannot be played with these nodes and pods. Its text says why."""


class Scenario(Value):
    """How pods arrive, and for how long they stay.

    `demand`: what all together ask for at the end, in % of the cluster's GPUs. `queue`: what becomes of a pod that fits
    nowhere: it is refused (`none`), or waits and holds up all behind it (`fifo`) or nobody (`backfill`).
    """

    demand: int = 130
    departures: bool = False
    queue: Queue = "none"


class Arrivals(Value):
    """Pods in their order, and the seconds from each to the next (0 without departures). `demand_milli`: beside each
    pod, what all want that would be running with it, were none refused."""

    pods: Sequence[TracePod]
    interval: float
    demand_milli: Sequence[int]


def arrivals(pods: Sequence[TracePod], capacity_milli: int, scenario: Scenario, seed: int) -> Arrivals:
    """The sequence of one run. Raises Impossible."""
    random = Random(seed)  # noqa: S311
    own = sorted(pods, key=lambda each: each.name)
    random.shuffle(own)
    target = capacity_milli * scenario.demand // 100
    whole = sum(each.demand_milli for each in own)
    _check(own, capacity_milli, scenario, whole, target)
    if not scenario.departures:
        demand, sequence = 0, list[TracePod]()
        while demand < target:
            sequence.append(own[len(sequence)] if len(sequence) < len(own) else random.choice(own))
            demand += sequence[-1].demand_milli
        return Arrivals(sequence, 0.0, [*accumulate(each.demand_milli for each in sequence)])
    count = max(1, ARRIVALS_PER_RUNNING_POD * target * len(own) // whole)
    sequence = [*own[:count], *random.choices(own, k=max(0, count - len(own)))]
    interval = _interval(sequence, target)
    return Arrivals(sequence, interval, _demands(sequence, interval))


def _check(pods: Sequence[TracePod], capacity_milli: int, scenario: Scenario, whole: int, target: int) -> None:
    """Raises Impossible."""
    if not capacity_milli:
        raise Impossible("no node has a GPU that can be given out whole or in parts")
    if not whole:
        raise Impossible("no pod asks for a GPU")
    if (count := target * len(pods) // whole * (ARRIVALS_PER_RUNNING_POD if scenario.departures else 1)) > MAX_ARRIVALS:
        raise Impossible(f"these pods ask for so little that {count} had to arrive, more than {MAX_ARRIVALS}")
    if not scenario.departures:
        if scenario.queue != "none":
            raise Impossible("a pod that waits needs one that departs")
        return
    timeless = [each.name for each in pods if each.lifetime is None]
    if timeless:
        raise Impossible(f"pod {timeless[0]} has no creation_time or deletion_time, and so no time to depart")
    if not any(each.lifetime and each.demand_milli for each in pods):
        raise Impossible("no pod has a GPU for any time")


def _interval(sequence: Sequence[TracePod], target: int) -> float:
    """The seconds between two arrivals by which those that are left when the last has come want the target."""
    lives = [(len(sequence) - index, each.lifetime or 0.0, each.demand_milli) for index, each in enumerate(sequence)]
    low, high = 0.0, max(life for _, life, _ in lives)  # at `high` each has ended when the next comes
    for _ in range(MAX_HALVINGS):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        left = sum(milli for age, life, milli in lives if life > age * middle)
        low, high = (middle, high) if left > target else (low, middle)
    return high


def _demands(sequence: Sequence[TracePod], interval: float) -> list[int]:
    """Beside each arrival, what those want that would be running, were none refused."""
    ends = sorted((index * interval + (each.lifetime or 0.0), each.demand_milli) for index, each in enumerate(sequence))
    found, demand, ended = list[int](), 0, 0
    for index, each in enumerate(sequence):
        demand += each.demand_milli
        while ended < len(ends) and ends[ended][0] <= index * interval:
            demand -= ends[ended][1]
            ended += 1
        found.append(demand)
    return found
