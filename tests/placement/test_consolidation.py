"""A plan can be made as it stands, gains what it says, and moves no more than it may."""

from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.placement.cluster import Cluster, Gpu, Node
from gpuplane.placement.consolidation import Placed, Plan, plan_moves
from gpuplane.placement.engine import Engine
from gpuplane.placement.policies import POLICIES
from gpuplane.placement.policies.wasteprice import WastePrice
from gpuplane.placement.requests import WHOLE, GpuRequest, Placement, Request, Share
from gpuplane.placement.workload import Workload


def share(milli: int) -> Request:
    return Request(1000, 1024, (GpuRequest(milli=milli),))


WHOLE_GPU, PAIR = share(WHOLE), Request(1000, 1024, (GpuRequest(milli=WHOLE, count=2),))
REQUESTS = (share(250), share(500), share(300), WHOLE_GPU, PAIR)


def node(name: str, gpus: int = 1) -> Node:
    return Node(name, 64000, 64 * 1024, tuple(Gpu(f"{name}-{index}") for index in range(gpus)))


def plan_of(cluster: Cluster, placed: list[Placed], most: int = 10) -> Plan:
    policy = WastePrice(Workload(dict.fromkeys(REQUESTS, 1.0)))
    return plan_moves(cluster, policy, placed, most)


def running(cluster: Cluster, *pods: tuple[str, int, Request]) -> list[Placed]:
    found = []
    for number, (name, gpu, request) in enumerate(pods):
        shares = tuple(Share(gpu + index, request.gpus[0].milli) for index in range(request.gpus[0].count))
        found.append(Placed(f"pod-{number}", request, Placement(name, (shares,))))
        cluster.take(request, found[-1].placement)
    return found


def test_a_share_alone_joins_another() -> None:
    cluster = Cluster([node("a"), node("b")])
    plan = plan_of(cluster, running(cluster, ("a", 0, share(500)), ("b", 0, share(500))))

    assert len(plan.moves) == 1
    assert sorted(cluster.milli_free[:2, 0].tolist()) == [0, WHOLE]
    assert plan.gain > 0


def test_shares_of_one_gpu_leave_it_together() -> None:
    """One of them alone would gain nothing."""
    cluster = Cluster([node("a"), node("b"), node("c")])
    placed = running(
        cluster, ("a", 0, share(250)), ("a", 0, share(250)), ("b", 0, share(500)), ("b", 0, share(250)),
        ("c", 0, share(500)), ("c", 0, share(250)),
    )  # fmt: skip
    plan = plan_of(cluster, placed)

    assert [(each.before.node, each.step) for each in plan.moves] == [("a", 1), ("a", 1)]
    assert cluster.milli_free[:3, 0].tolist() == [WHOLE, 0, 0]


def test_no_more_is_moved_than_may_be() -> None:
    """And a step is made whole, or not at all."""
    cluster = Cluster([node("a"), node("b"), node("c")])
    placed = running(
        cluster, ("a", 0, share(250)), ("a", 0, share(250)), ("b", 0, share(500)), ("b", 0, share(250)),
        ("c", 0, share(500)), ("c", 0, share(250)),
    )  # fmt: skip

    plan = plan_of(cluster, placed, 1)

    assert len(plan.moves) <= 1
    assert all(each.before.node != "a" for each in plan.moves)


def test_where_all_is_well_nothing_moves() -> None:
    cluster = Cluster([node("a"), node("b")])
    placed = running(cluster, ("a", 0, share(500)), ("a", 0, share(500)))

    assert plan_of(cluster, placed).moves == ()


@given(st.integers(0, 2**64), st.integers(0, 12))
def test_a_plan_can_be_made_as_it_stands(seed: int, most: int) -> None:
    """Move by move, on a cluster that knows nothing of the planner; nothing is lost, nobody has two places."""
    random = Random(seed)
    cluster = Cluster([node("a", 4), node("b", 2), node("c", 1), node("d", 2)])
    engine, placed = Engine(cluster, POLICIES["spread"](), random), list[Placed]()
    for number in range(random.randrange(14)):
        request = random.choice(REQUESTS)
        if placement := engine.choose(request):
            cluster.take(request, placement)
            placed.append(Placed(f"pod-{number}", request, placement))
    other = cluster.copy()
    where = {each.pod: each.placement for each in placed}

    plan = plan_of(cluster, placed, most)

    assert len(plan.moves) <= most
    assert [each.step for each in plan.moves] == sorted(each.step for each in plan.moves)
    for step in sorted({each.step for each in plan.moves}):
        moves = [each for each in plan.moves if each.step == step]
        assert all(each.gain > 0 for each in moves)
        for each in moves:
            assert where[each.pod] == each.before
            other.give_back(each.request, each.before)
        for each in moves:
            other.take(each.request, each.after)
            where[each.pod] = each.after
    assert np.array_equal(other.milli_free, cluster.milli_free)
    assert np.array_equal(other.cpu_free, cluster.cpu_free)
