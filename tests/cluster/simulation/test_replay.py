"""A run keeps its books: what is allocated, who is placed, who waits, and how much is a fragment."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.cluster.engine.cluster import Cluster
from gpuplane.cluster.engine.engine import Engine
from gpuplane.cluster.engine.policies import POLICIES, make_policy
from gpuplane.cluster.model.nodes import Node
from gpuplane.cluster.model.requests import GpuRequest, Placement, Request, Share
from gpuplane.cluster.simulation.fragmentation import FragmentationMeasure, typical
from gpuplane.cluster.simulation.pods import TracePod
from gpuplane.cluster.simulation.replay import Replay, capacity_milli, replay
from gpuplane.cluster.simulation.results import Difference, Run, acceptance, acceptance_difference, difference, paired
from gpuplane.cluster.simulation.scenario import Arrivals, Queue, Scenario, arrivals
from tests.cluster.simulation.small import node, pod, some_nodes, some_pods

SEEDS = st.integers(0, 1000)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_seed_decides_all(policy: str) -> None:
    """The same seed, the same run; another one, another."""
    nodes, pods, scenario = some_nodes(3), some_pods(3), Scenario()

    assert replay(nodes, pods, policy, 1, scenario) == replay(nodes, pods, policy, 1, scenario)
    assert replay(nodes, pods, policy, 1, scenario) != replay(nodes, pods, policy, 2, scenario).but(seed=1)


@given(SEEDS, st.sampled_from([*POLICIES]))
def test_points_lie_at_each_percent_of_demand(seed: int, policy: str) -> None:
    """Nothing ends: what is allocated never falls, is never more than demand and one pod, and never more than all."""
    nodes, pods = some_nodes(seed), some_pods(seed)
    run = replay(nodes, pods, policy, seed, Scenario(demand=120))
    allocated = [each.allocated for each in run.points]

    assert [each.demand for each in run.points] == [*range(1, len(run.points) + 1)]
    assert len(run.points) >= 119  # 120 % rounded down to whole milli-GPU
    assert allocated == sorted(allocated)
    assert allocated[-1] <= run.allocated <= 100
    assert all(0 <= each.fragmentation <= 100 - each.allocated + 1e-9 for each in run.points)
    assert all(run.pods_placed.get(each, 0) <= count for each, count in run.pods_arrived.items())


@given(SEEDS, st.sampled_from(["none", "fifo", "backfill"]), st.sampled_from([*POLICIES]))
def test_all_departs_and_whoever_waits_is_placed(seed: int, queue: Queue, policy: str) -> None:
    """At the end the cluster is empty. With a queue everybody has had a place whom an empty cluster has room for."""
    nodes, pods, scenario = some_nodes(seed), some_pods(seed), Scenario(departures=True, queue=queue)
    coming = arrivals(pods, capacity_milli(nodes), scenario, seed)
    play = Replay(nodes, pods, policy, seed, coming, scenario)
    run = play.run()
    empty = Engine(Cluster(nodes), make_policy("binpack"))
    possible = Counter(empty.choose(each.request) is not None for each in coming.pods)[True]

    assert play.allocated_milli == 0
    assert (play.cluster.milli_free == Cluster(nodes).milli_free).all()
    assert (play.cluster.cpu_free == Cluster(nodes).cpu_free).all()
    assert sum(run.pods_placed.values()) <= possible
    assert queue == "none" or sum(run.pods_placed.values()) == possible


def play(nodes: list[Node], pods: list[TracePod], scenario: Scenario) -> Run:
    """In the order given, one a second."""
    return Replay(nodes, pods, "binpack", 1, Arrivals(pods, 1.0, [0] * len(pods)), scenario).run()


WAITING = [
    pod("first", 1000, 1, 10.0),
    pod("large", 1000, 2, 10.0),  # waits for `first` until 10
    pod("small", 1000, 1, 1.0),  # fits beside `first`
]


@pytest.mark.parametrize(
    ("queue", "placed", "wait", "lost"),
    [
        ("none", {"1": 2, "2": 0}, {}, None),
        ("fifo", {"1": 2, "2": 1}, {"1": 9.0, "2": 9.0}, 1.0),
        ("backfill", {"1": 2, "2": 1}, {"1": 0.0, "2": 9.0}, 1.0),
    ],
)
def test_a_queue(queue: Queue, placed: dict[str, int], wait: dict[str, float], lost: float | None) -> None:
    """A large pod is refused; or holds up the small one behind it; or not. `small` waits from 2 to 20 in a line."""
    run = play([node("n", 2)], WAITING, Scenario(departures=True, queue=queue))

    assert {each: run.pods_placed.get(each, 0) for each in placed} == placed
    assert dict(run.wait_s) == wait  # of class 1 the mean of `first`, 0, and `small`
    assert run.gpu_hours_lost == (None if lost is None else pytest.approx(lost / 3600))


def test_who_can_never_have_room_is_refused() -> None:
    """It would hold up all others for ever."""
    pods = [pod("huge", 1000, 4, 1.0), pod("small", 500, 1, 1.0)]
    run = play([node("n", 2)], pods, Scenario(departures=True, queue="fifo"))

    assert dict(run.pods_placed) == {"shared": 1}


def fragments(cluster: Cluster, requests: dict[Request, float]) -> float:
    """Of a cluster with one model of GPU, as frag.go computes it."""
    total = 0.0
    for row, each in enumerate(cluster.nodes):
        assert each is not None
        free = [int(cluster.milli_free[row, gpu]) for gpu in range(len(each.gpus))]
        for request, frequency in requests.items():
            milli, count = (request.gpus[0].milli, request.gpus[0].count) if request.gpus else (0, 0)
            runs = count and request.cpu_milli <= cluster.cpu_free[row] and sum(f >= milli for f in free) >= count
            total += frequency * sum(f for f in free if not runs or f < milli)
    return total


@given(SEEDS)
def test_fragmentation_is_the_papers(seed: int) -> None:
    """After each of some pods that come and go."""
    nodes, pods, random = some_nodes(seed), some_pods(seed), Random(seed)
    cluster, requests = Cluster(nodes), typical(pods)
    engine, measure, there = Engine(cluster, make_policy("spread")), FragmentationMeasure(cluster, requests), []
    for each in pods:
        if (placement := engine.choose(each.request)) is not None:
            cluster.take(each.request, placement)
            there.append((each.request, placement))
        if there and random.random() < 0.3:
            cluster.give_back(*there.pop(random.randrange(len(there))))
        assert measure.milli() == pytest.approx(fragments(cluster, requests))


def test_containers_of_one_pod() -> None:
    """A GPU is of use that one of them fits into, where each of them has room."""
    cluster = Cluster([node("n", 2)])
    both = Request(0, 0, (GpuRequest(milli=800), GpuRequest(milli=300)))
    measure = FragmentationMeasure(cluster, {both: 1.0})
    left = list[float]()
    for milli in (600, 400):  # the second leaves nothing of that GPU
        cluster.take(Request(), Placement("n", ((Share(0, milli),),)))
        left.append(measure.milli())
    cluster.take(Request(), Placement("n", ((Share(1, 500),),)))

    assert left == [0, 0]  # 400 of GPU 0 are of use to the smaller
    assert measure.milli() == 500  # the larger has no room any more


def test_typical_requests_are_95_percent_of_the_pods() -> None:
    """The most frequent ones, and the last that is needed for it."""
    counts = {810: 60, 470: 30, 320: 6, 100: 4}
    pods = [pod(f"{milli}-{each}", milli) for milli, count in counts.items() for each in range(count)]

    found = {request.gpus[0].milli: frequency for request, frequency in typical(pods).items()}
    assert found == {810: 60 / 96, 470: 30 / 96, 320: 6 / 96}


def test_differences_are_paired_by_seed() -> None:
    one = Run("a", 1, 90.0, 5.0, (), {"1": 10}, {"1": 8}, {}, None, None)
    two = one.but(seed=2, allocated=94.0, pods_placed={"1": 9})
    other = [one.but(policy="b", seed=2, allocated=95.0), one.but(policy="b", allocated=92.0)]

    assert difference(other, [one, two]).mean == 1.5
    assert difference(other, [one, two]).margin == pytest.approx(12.706 * 0.5)  # sd √½ of two seeds
    assert difference(other, [one, two]).least == 1.0
    assert paired([1.0]) == Difference(1.0, None, 1.0)


def test_acceptance_and_its_difference_agree() -> None:
    """Both are means over the seeds, however many pods of a class a seed has; a seed without one does not count."""
    few = Run("a", 1, 90.0, 5.0, (), {"8": 1, "1": 4}, {"1": 4}, {}, None, None)
    many = few.but(seed=2, pods_arrived={"8": 9}, pods_placed={"8": 9})
    better = [few.but(pods_placed={"8": 1, "1": 2}), many]

    assert acceptance([few, many]) == {"1": 100.0, "8": 50.0}
    assert acceptance(better) == {"1": 50.0, "8": 100.0}
    assert {kind: each.mean for kind, each in acceptance_difference(better, [few, many]).items()} == {
        "1": -50.0,
        "8": 50.0,
    }
