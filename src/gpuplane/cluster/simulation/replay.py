"""One run: pods arrive one after the other, and are placed, refused, or wait. Pure; the seed decides what is random.

Each pod is tried once when it arrives, as in the FGD paper; where pods wait, again when one that departs has left room
that it could take.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Sequence
from random import Random

from gpuplane.cluster.engine.cluster import Cluster
from gpuplane.cluster.engine.engine import Engine
from gpuplane.cluster.engine.policies import make_policy
from gpuplane.cluster.engine.workload import Workload
from gpuplane.cluster.model.nodes import Node
from gpuplane.cluster.model.requests import MILLI_PER_GPU, Placement, Request
from gpuplane.cluster.simulation.fragmentation import FragmentationMeasure, typical
from gpuplane.cluster.simulation.pods import TracePod, class_of, ordered
from gpuplane.cluster.simulation.results import Point, Run
from gpuplane.cluster.simulation.scenario import Arrivals, Scenario, arrivals
from gpuplane.cluster.simulation.waiting import Waiting

MAX_SAMPLES = 100
"""Moments, evenly over the last quarter of the arrivals, whose mean is a run's figure with departures."""


def capacity_milli(nodes: Sequence[Node]) -> int:
    """Milli-GPU of the GPUs that can be given out."""
    return sum(MILLI_PER_GPU for node in nodes for gpu in node.gpus if not gpu.code and not gpu.is_partitioned)


def replay(nodes: Sequence[Node], pods: Sequence[TracePod], policy: str, seed: int, scenario: Scenario) -> Run:
    """Play a scenario. Raises Impossible, and UnknownPolicy."""
    return Replay(nodes, pods, policy, seed, arrivals(pods, capacity_milli(nodes), scenario, seed), scenario).run()


class Replay:
    """The state of a run."""

    def __init__(
        self,
        nodes: Sequence[Node],
        pods: Sequence[TracePod],
        policy: str,
        seed: int,
        coming: Arrivals,
        scenario: Scenario,
    ) -> None:
        """`coming`: who arrives; `pods`: the workload of which they are, as the policy knows it."""
        self._policy, self._seed, self._coming, self._scenario = policy, seed, coming, scenario
        self.cluster = Cluster(nodes)
        self._capacity = capacity_milli(nodes)
        usual = Workload(Counter(each.request for each in pods))
        self._engine = Engine(self.cluster, make_policy(policy, usual), Random(f"ties {seed}"))  # noqa: S311
        self._empty = Engine(Cluster(nodes), make_policy("binpack"))
        self._is_possible: dict[Request, bool] = {}
        self._fragmentation = FragmentationMeasure(self.cluster, typical(pods))
        self._waiting = Waiting(self.cluster, first_only=scenario.queue == "fifo")
        self._running: list[tuple[float, int, TracePod, Placement]] = []
        self._now = 0.0
        self.allocated_milli = 0
        self._lost = 0.0  # milli-GPU seconds
        self._placed: Counter[str] = Counter()
        self._waits: defaultdict[str, float] = defaultdict(float)

    def run(self) -> Run:
        """Play to the end: with departures, until the cluster is empty."""
        points, samples = list[Point](), list[Point]()
        pods, interval = self._coming.pods, self._coming.interval
        last_quarter = max(1, len(pods) - len(pods) // 4)
        every = max(1, len(pods) // 4 // MAX_SAMPLES)
        for index, (pod, demand) in enumerate(zip(pods, self._coming.demand_milli, strict=True)):
            self._pass_to(index * interval)
            self._arrive(index, pod)
            while (percent := len(points) + 1) * self._capacity <= 100 * demand:
                points.append(self._point(percent))
            if index >= last_quarter and (index - last_quarter) % every == 0:
                samples.append(self._point(0))
        final = samples if self._scenario.departures and samples else [self._point(0)]
        lost = self._lost
        if self._scenario.departures:
            self._pass_to(float("inf"))
        return Run(
            self._policy,
            self._seed,
            sum(each.allocated for each in final) / len(final),
            sum(each.fragmentation for each in final) / len(final),
            tuple(points),
            self._by_class(Counter(map(class_of, pods))),
            self._by_class(self._placed),
            *self._of_the_queue(lost),
        )

    def _of_the_queue(self, lost: float) -> tuple[dict[str, float], float | None, float | None]:
        if self._scenario.queue == "none":
            return {}, None, None
        waits = {each: self._waits[each] / count for each, count in self._by_class(self._placed).items()}
        total = sum(self._placed.values())
        return waits, sum(self._waits.values()) / total if total else 0.0, lost / MILLI_PER_GPU / 3600

    def _by_class(self, counts: Counter[str]) -> dict[str, int]:
        return {each: counts[each] for each in ordered(counts)}

    def _point(self, demand: int) -> Point:
        of_all = 100 / self._capacity
        return Point(demand, self.allocated_milli * of_all, self._fragmentation.milli() * of_all)

    def _pass_to(self, time: float) -> None:
        """Have those depart whose time has come, and those that wait take their places."""
        while self._running and self._running[0][0] <= time:
            end, _, pod, placement = heapq.heappop(self._running)
            self._turn_to(end)
            self.cluster.give_back(pod.request, placement)
            self.allocated_milli -= placement.gpu_milli
            if self._waiting:
                self._waiting.place(self.cluster.rows[placement.node], self._place)
        self._turn_to(time)

    def _turn_to(self, time: float) -> None:
        """What is free while somebody waits for as much is lost."""
        if self._waiting:
            free = self._capacity - self.allocated_milli
            self._lost += min(free, self._waiting.demand_milli) * (time - self._now)
        self._now = time

    def _arrive(self, index: int, pod: TracePod) -> None:
        if self._waiting.admits_nobody:
            if self._fits_when_empty(pod.request):
                self._waiting.append(index, pod)
        elif not self._place(index, pod) and self._scenario.queue != "none" and self._fits_when_empty(pod.request):
            self._waiting.append(index, pod)

    def _place(self, index: int, pod: TracePod) -> bool:
        """Give a pod its place, if there is one."""
        placement = self._engine.choose(pod.request)
        if placement is None:
            return False
        self.cluster.take(pod.request, placement)
        self.allocated_milli += placement.gpu_milli
        kind = class_of(pod)
        self._placed[kind] += 1
        self._waits[kind] += self._now - index * self._coming.interval
        if self._scenario.departures:
            heapq.heappush(self._running, (self._now + (pod.lifetime or 0.0), index, pod, placement))
        return True

    def _fits_when_empty(self, request: Request) -> bool:
        """A pod that even an empty cluster has no room for is refused: it would wait for ever."""
        if request not in self._is_possible:
            self._is_possible[request] = self._empty.choose(request) is not None
        return self._is_possible[request]
