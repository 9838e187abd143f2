"""Prices are duals of the packing problem; slots are counted as defined; the openb trace gives the known prices."""

import csv
import math
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.cluster.engine.candidates import candidates
from gpuplane.cluster.engine.cluster import Cluster
from gpuplane.cluster.engine.engine import Engine
from gpuplane.cluster.engine.policies.wasteprice import WastePrice
from gpuplane.cluster.engine.policies.wasteprice.policy import (
    POINTS_PER_WASTED_GPU,
    SLOTS_EXPONENT,
    USUAL_CPU,
    merge_alike,
    weights,
    with_large,
)
from gpuplane.cluster.engine.policies.wasteprice.prices import MAX_SIZES, round_up, waste_prices
from gpuplane.cluster.engine.policies.wasteprice.slots import Slots
from gpuplane.cluster.engine.workload import RequestClass, Workload
from gpuplane.cluster.model.nodes import Gpu, Node
from gpuplane.cluster.model.requests import GpuRequest, Request

TRACES = Path(os.environ.get("GPUPLANE_OPENB", Path(__file__).parents[4] / "shared/data/openb"))
DEMANDS = st.dictionaries(st.integers(60, 999), st.integers(1, 50), min_size=1, max_size=8)


@given(DEMANDS)
def test_prices_are_duals_of_the_packing_problem(demand: dict[int, int]) -> None:
    """No way to fill a GPU is worth more than a GPU, and what fits beside each other is worth at least the sum."""
    worth = waste_prices(demand)

    assert (worth[0], worth[1000], worth[-1]) == (0, 1, 0)
    assert (np.diff(worth[:1001]) >= -1e-9).all()
    for part in range(1, 1000):
        assert (worth[part] + worth[: 1001 - part] <= worth[part:1001] + 1e-7).all()


@given(DEMANDS)
def test_prices_are_the_best_duals(demand: dict[int, int]) -> None:
    """By strong duality: what the demand is worth is what the fewest GPUs serve. No other prices that are feasible,
    as the sizes themselves or one share a GPU, are worth more; and rounding up to whole patterns costs more."""
    worth = waste_prices(demand)
    value = sum(number * worth[size] for size, number in demand.items())

    assert value >= sum(number / (1000 // size) for size, number in demand.items() if size > 500) - 1e-6
    assert value >= sum(number * size for size, number in demand.items()) / 1000 - 1e-6
    assert value <= sum(number / (1000 // size) for size, number in demand.items()) + 1e-6


@pytest.mark.parametrize(
    ("demand", "worth"),
    [
        ({500: 1}, {499: 0, 500: 1 / 2, 999: 1 / 2}),
        ({300: 1}, {299: 0, 300: 1 / 3, 600: 2 / 3, 900: 1}),
        ({600: 2, 400: 1}, {399: 0, 400: 0, 599: 0, 600: 1}),
        ({600: 1, 400: 2}, {399: 0, 400: 1 / 2, 600: 1 / 2}),
        ({}, {1: 0, 999: 0}),
    ],
)
def test_prices_of_small_workloads(demand: dict[int, float], worth: dict[int, float]) -> None:
    assert {part: round(float(waste_prices(demand)[part]), 6) for part in worth} == {
        part: round(price, 6) for part, price in worth.items()
    }


MANY = st.dictionaries(st.integers(1, 999), st.integers(1, 50), max_size=200)


@given(MANY)
def test_of_many_sizes_the_rare_ones_are_rounded_up(demand: dict[int, int]) -> None:
    """The simplex method would take seconds for some fifty odd ones. Nobody gets less than is asked for."""
    found = round_up(demand)
    most = sorted(demand, key=lambda size: (-size * demand[size], size))[: MAX_SIZES // 2]

    assert len(found) <= MAX_SIZES
    assert found.keys() <= demand.keys()
    assert sum(found.values()) == sum(demand.values())
    assert all(found[size] >= demand[size] for size in most)
    for least in demand:
        assert sum(number for size, number in found.items() if size >= least) >= sum(
            number for size, number in demand.items() if size >= least
        )
    if len(demand) <= MAX_SIZES:
        assert found == demand


@given(MANY, st.integers(1, 12))
def test_prices_whose_search_ends_early_are_feasible(demand: dict[int, int], steps: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("gpuplane.cluster.engine.policies.wasteprice.prices.MAX_SIMPLEX_STEPS", steps)
        worth = waste_prices(demand)

    assert (np.diff(worth[:1001]) >= -1e-9).all()
    for part in range(1, 1000):
        assert (worth[part] + worth[: 1001 - part] <= worth[part:1001] + 1e-7).all()


@pytest.mark.skipif(not TRACES.is_dir(), reason="the openb trace is not here: its data are not ours to publish")
def test_prices_of_the_openb_trace() -> None:
    with (TRACES / "openb_pod_list_default.csv").open() as file:
        shares = Counter(int(row["gpu_milli"]) for row in csv.DictReader(file) if row["num_gpu"] == "1")
    worth = waste_prices(shares)

    steps = {
        190: 0,
        230: 1 / 4,
        290: 1 / 4,
        320: 1 / 3,
        370: 1 / 3,
        460: 1 / 2,
        480: 1 / 2,
        550: 2 / 3,
        650: 2 / 3,
        810: 1,
    }
    assert {part: round(float(worth[part]), 9) for part in steps} == {part: round(v, 9) for part, v in steps.items()}


CLASSES = st.builds(
    lambda cpu, count, milli, model: (
        RequestClass(cpu, count, milli, frozenset([model] if model else []))
        if count
        else RequestClass(cpu, 0, 0, frozenset())
    ),
    st.sampled_from([1000, 3000, 7000]),
    st.integers(0, 3),
    st.sampled_from([100, 300, 470, 1000]),
    st.sampled_from(["", "A100", "T4"]),
)


def slots_of(each: RequestClass, cpu: int, model: str, gpus: list[int]) -> float:
    """How often a class fits on a node, as defined."""
    by_cpu = cpu / each.cpu_milli
    if not each.gpus:
        return math.floor(by_cpu)
    fits = (not each.models or model in each.models) and len(gpus) >= each.gpus
    count = sum(free // each.milli for free in gpus) // each.gpus if fits else 0
    if by_cpu < 1:
        return 0
    return count if by_cpu >= count else math.floor(by_cpu) + 0.8 * (count - math.floor(by_cpu))


def worth_of(each: RequestClass, slots: float) -> float:
    size = each.gpus * each.milli / 1000 if each.gpus else each.cpu_milli / USUAL_CPU
    return float(1000 * (slots * size) ** SLOTS_EXPONENT)


def request_of(each: RequestClass) -> Request:
    gpus = (GpuRequest(count=each.gpus, milli=each.milli, models=each.models),) if each.gpus else ()
    return Request(each.cpu_milli, 0, gpus)


@given(st.dictionaries(CLASSES, st.integers(1, 9), min_size=1, max_size=6), st.data())
def test_scores_are_as_defined(demand: dict[RequestClass, int], data: st.DataObject) -> None:
    """Of each candidate, after any history; and the totals are those of all nodes."""
    nodes = [
        Node(f"{size}-{model}", 9000, 0, (Gpu("", model),) * size) for size in (1, 2, 4) for model in ("A100", "T4")
    ]
    cluster = Cluster(nodes)
    policy = WastePrice(Workload({request_of(each): float(number) for each, number in demand.items()}))
    engine = Engine(cluster, policy)
    for each in data.draw(st.lists(st.sampled_from(sorted(demand, key=repr)), max_size=8)):
        pricing, request = policy.refresh(cluster), request_of(each)
        slots, worth = policy._slots, pricing.worth  # the dual prices of a demand need not be the only ones
        weight = dict(zip(slots.classes, pricing.weights, strict=True))
        states = [
            (int(cluster.cpu_free[row]), node.gpus[0].model, cluster.milli_free[row, : len(node.gpus)].tolist())
            for row, node in enumerate(nodes)
        ]
        assert {kind: slots.totals(cluster)[index] / 5 for index, kind in enumerate(slots.classes)} == pytest.approx(
            {kind: sum(slots_of(kind, *state) for state in states) for kind in demand}
        )
        found = candidates(cluster, request, np.arange(len(nodes)))
        for index, score in enumerate(pricing.score(cluster, request, found)):
            cpu, model, before = states[found.rows[index]]
            after = list(before)
            for gpu in found.gpus[index]:
                after[gpu] -= each.milli
            expected = POINTS_PER_WASTED_GPU * (
                sum(worth[free] for free in after) - sum(worth[free] for free in before)
            )
            for kind in demand:
                left = slots_of(kind, cpu - each.cpu_milli, model, after)
                expected += weight[kind] * (worth_of(kind, left) - worth_of(kind, slots_of(kind, cpu, model, before)))
            assert score == pytest.approx(expected, rel=1e-6, abs=1e-3)
        if placement := engine.choose(request):
            cluster.take(request, placement)


def test_what_is_scarce_weighs_more_and_what_cannot_run_nothing() -> None:
    classes = {RequestClass(1000, 1, 500, frozenset()): 0.5, RequestClass(1000, 8, 1000, frozenset()): 0.3,
               RequestClass(1000, 16, 1000, frozenset()): 0.2}  # fmt: skip
    slots = Slots(list(classes))
    cluster = Cluster([Node("a", 64000, 0, (Gpu("a"),) * 8), Node("b", 64000, 0, (Gpu("a"),) * 4)])
    found = {each.gpus: weight for each, weight in zip(slots.classes, weights(cluster, slots, classes), strict=True)}

    assert found == pytest.approx({1: 0.5 * 2, 8: 0.3 * 1.5**2, 16: 0})


def test_rare_large_requests_count_as_three_of_two_hundred() -> None:
    """All with as many GPUs together; the frequent ones, and those of one GPU or none, count as they are."""
    none = frozenset[str]()
    share, one, two = RequestClass(1, 1, 500, none), RequestClass(1, 1, 1000, none), RequestClass(1, 2, 1000, none)
    eight, other_eight = RequestClass(8, 8, 1000, none), RequestClass(9, 8, 1000, none)

    assert with_large({share: 0.9, one: 0.001, two: 0.098, eight: 0.0008, other_eight: 0.0002}) == pytest.approx({
        share: 0.9, one: 0.001, two: 0.098, eight: 0.012, other_eight: 0.003,
    })  # fmt: skip


def test_requests_that_differ_little_in_cpu_are_one_class() -> None:
    none, t4 = frozenset[str](), frozenset(["T4"])
    frequency = {
        RequestClass(1000, 1, 1000, none): 0.3,
        RequestClass(1100, 1, 1000, none): 0.1,
        RequestClass(1101, 1, 1000, none): 0.1,
        RequestClass(1000, 1, 1000, t4): 0.2,
        RequestClass(1000, 1, 500, none): 0.2,
        RequestClass(0, 0, 0, none): 0.1,
    }

    assert merge_alike(frequency) == pytest.approx({
        RequestClass(1025, 1, 1000, none): 0.4,
        RequestClass(1101, 1, 1000, none): 0.1,
        RequestClass(1000, 1, 1000, t4): 0.2,
        RequestClass(1000, 1, 500, none): 0.2,
        RequestClass(0, 0, 0, none): 0.1,
    })  # fmt: skip


def test_scarcity_is_looked_at_again_while_pods_come_and_go() -> None:
    """Also where as much stays free as was."""
    request = request_of(RequestClass(1000, 1, 1000, frozenset()))
    cluster = Cluster([Node("a", 64000, 0, (Gpu("a"),) * 8), Node("b", 64000, 0, (Gpu("a"),) * 8)])
    policy = WastePrice(Workload({request: 1.0}))
    engine = Engine(cluster, policy)
    first = policy.refresh(cluster)
    assert policy.refresh(cluster) is first
    placement = engine.choose(request)
    assert placement
    cluster.take(request, placement)
    cluster.give_back(request, placement)

    assert policy.refresh(cluster) is not first


@pytest.mark.parametrize("gpus", [64, 65, 112, 256])
def test_a_node_may_have_many_gpus(gpus: int) -> None:
    """As one has whose GPUs are all MIG devices of the strategy "single"."""
    one = Request(1000, 0, (GpuRequest(milli=1000),))
    many = Node("a", 1_000_000, 0, tuple(Gpu(f"a{index}") for index in range(gpus)))
    cluster = Cluster([many, Node("b", 8000, 0, (Gpu("b"),))])
    engine = Engine(cluster, WastePrice(Workload({one: 1.0})))
    for _ in range(gpus + 1):
        placement = engine.choose(one)
        assert placement is not None
        cluster.take(one, placement)

    assert engine.choose(one) is None
