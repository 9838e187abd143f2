"""Pods arrive as the FGD paper's do, or so that as many run at the end as it wants."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.cluster.simulation.scenario import ARRIVALS_PER_RUNNING_POD, Impossible, Scenario, arrivals
from tests.cluster.simulation.small import pod, some_pods

SEEDS = st.integers(0, 1000)


@given(SEEDS, st.integers(1, 300))
def test_all_pods_then_clones_until_demand_is_reached(seed: int, percent: int) -> None:
    """By the last pod, and not before; whatever the order of the file."""
    pods, capacity = some_pods(seed), 20_000
    found = arrivals(pods, capacity, Scenario(demand=percent), seed)
    names, target = [each.name for each in found.pods], capacity * percent // 100

    assert found.demand_milli[-1] >= target > found.demand_milli[-1] - found.pods[-1].demand_milli
    assert max(Counter(names[: len(pods)]).values()) == 1
    assert arrivals(pods[::-1], capacity, Scenario(demand=percent), seed) == found


def test_seeds_give_other_orders() -> None:
    """Clones too."""
    pods = some_pods(1)
    names = {tuple(each.name for each in arrivals(pods, 90_000, Scenario(), seed).pods) for seed in range(20)}

    assert len(names) == 20


@given(SEEDS)
def test_with_departures_as_much_runs_at_the_end_as_is_wanted(seed: int) -> None:
    """Were none refused: no more than wanted, and with a slightly shorter interval more."""
    pods, capacity = some_pods(seed), 20_000
    target = capacity * 130 // 100
    found = arrivals(pods, capacity, Scenario(departures=True), seed)

    def running(interval: float) -> int:
        last = len(found.pods)
        return sum(
            each.demand_milli for i, each in enumerate(found.pods) if (each.lifetime or 0.0) > (last - i) * interval
        )

    assert running(found.interval) <= target
    assert running(found.interval * (1 - 1e-9)) > target
    assert sum(each.demand_milli for each in found.pods) > (ARRIVALS_PER_RUNNING_POD - 1) * target


@pytest.mark.parametrize(
    ("pods", "capacity", "scenario"),
    [
        ([pod("a", 500)], 0, Scenario()),
        ([pod("a", 0)], 1000, Scenario()),
        ([pod("a", 500)], 1000, Scenario(departures=True)),
        ([pod("a", 500, lifetime=0.0)], 1000, Scenario(departures=True)),
        ([pod("a", 500, lifetime=1.0)], 1000, Scenario(queue="fifo")),
        ([pod("a", 1)], 10**10, Scenario()),
    ],
)
def test_what_cannot_be_played_is_said(pods: list, capacity: int, scenario: Scenario) -> None:  # type: ignore[type-arg]
    """No GPU, no demand, no times, a queue that nobody leaves, too many pods."""
    with pytest.raises(Impossible):
        arrivals(pods, capacity, scenario, 1)
