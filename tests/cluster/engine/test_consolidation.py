"""A plan can be made as it stands, gains what it says, and moves no more than it may."""

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.cluster.engine.cluster import Cluster
from gpuplane.cluster.engine.consolidation import Placed, Plan, plan_moves, usable_to
from gpuplane.cluster.engine.engine import Engine
from gpuplane.cluster.engine.policies import make_policy
from gpuplane.cluster.engine.policies.wasteprice import WastePrice
from gpuplane.cluster.engine.workload import Workload
from gpuplane.cluster.model.nodes import Gpu, Node
from gpuplane.cluster.model.requests import MILLI_PER_GPU, GpuRequest, Placement, Request, Share


def share(milli: int) -> Request:
    return Request(1000, 1024, (GpuRequest(milli=milli),))


WHOLE_GPU, PAIR = share(MILLI_PER_GPU), Request(1000, 1024, (GpuRequest(milli=MILLI_PER_GPU, count=2),))
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
    assert sorted(cluster.milli_free[:2, 0].tolist()) == [0, MILLI_PER_GPU]
    assert plan.gain > 0


def test_shares_of_one_gpu_leave_it_together() -> None:
    """One of them alone would gain nothing."""
    cluster = Cluster([node("a"), node("b"), node("c")])
    placed = running(
        cluster, ("a", 0, share(250)), ("a", 0, share(250)), ("b", 0, share(500)), ("b", 0, share(250)),
        ("c", 0, share(500)), ("c", 0, share(250)),
    )  # fmt: skip
    plan = plan_of(cluster, placed)

    assert [each.step for each in plan.moves] == [1, 1]
    assert len({each.before.node for each in plan.moves}) == 1
    assert sorted(cluster.milli_free[:3, 0].tolist()) == [0, 0, MILLI_PER_GPU]


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


def test_a_step_that_is_too_long_is_told() -> None:
    """Four GPUs of one node have to be left for the pod of eight that is expected."""
    cluster = Cluster([node("a", 8), node("b", 8)])
    placed = running(
        cluster, *(("a", gpu, WHOLE_GPU) for gpu in range(4)), *(("b", gpu, WHOLE_GPU) for gpu in range(4))
    )
    policy = WastePrice(Workload({Request(1000, 0, (GpuRequest(8, MILLI_PER_GPU),)): 1.0}))

    plan = plan_moves(cluster, policy, placed, 3)
    assert (plan.moves, plan.least) == ((), 4)
    plan = plan_moves(cluster, policy, placed, 4)
    assert (len(plan.moves), plan.least) == (4, 0)


def test_steps_are_tried_again_when_others_are_made() -> None:
    """A second plan of what a first one leaves finds nothing, as long as no pod has to move twice."""
    random, more = Random(7), 0
    for _ in range(40):
        cluster = Cluster([node(name, 2) for name in "abcdef"])
        engine, placed = Engine(cluster, make_policy("spread"), random), list[Placed]()
        for number in range(14):
            if placement := engine.choose(request := random.choice(REQUESTS)):
                cluster.take(request, placement)
                placed.append(Placed(f"pod-{number}", request, placement))
        moved = {each.pod for each in plan_of(cluster, placed, 100).moves}
        more += len(plan_of(cluster, [each for each in placed if each.pod not in moved], 100).moves)
    assert more == 0


def test_a_pod_stays_where_another_gpu_is_no_better() -> None:
    """The pair on b is wanted whole: one pod leaves it, and nobody changes GPUs of one node."""
    cluster = Cluster([node("a", 2), node("b", 2)])
    placed = running(cluster, ("a", 1, WHOLE_GPU), ("b", 0, WHOLE_GPU))
    plan = plan_moves(cluster, WastePrice(Workload({PAIR: 1.0})), placed, 2)

    assert [(each.before.node, each.after.node) for each in plan.moves] in ([("a", "b")], [("b", "a")])


def test_what_fits_nowhere_counts_nothing() -> None:
    nodes, share_alone = [node("a", 2), node("b")], {share(500): 1.0}
    impossible = {
        Request(1000, 0, (GpuRequest(16, MILLI_PER_GPU),)): 9.0,
        Request(65000, 0, (GpuRequest(1, MILLI_PER_GPU),)): 9.0,
    }
    usable = [
        usable_to(WastePrice(Workload(expected)), cluster).of(cluster, np.arange(2)).tolist()
        for expected, cluster in ((share_alone, Cluster(nodes)), (share_alone | impossible, Cluster(nodes)))
    ]
    assert usable[0] == usable[1] == [2, 1]


def test_where_all_is_well_nothing_moves() -> None:
    cluster = Cluster([node("a"), node("b")])
    placed = running(cluster, ("a", 0, share(500)), ("a", 0, share(500)))

    assert plan_of(cluster, placed).moves == ()


@given(st.integers(0, 2**64), st.integers(0, 12))
def test_a_plan_can_be_made_as_it_stands(seed: int, most: int) -> None:
    """Move by move, on a cluster that knows nothing of the planner; nothing is lost, nobody has two places."""
    random = Random(seed)
    cluster = Cluster([node("a", 4), node("b", 2), node("c", 1), node("d", 2)])
    engine, placed = Engine(cluster, make_policy("spread"), random), list[Placed]()
    for number in range(random.randrange(14)):
        request = random.choice(REQUESTS)
        if placement := engine.choose(request):
            cluster.take(request, placement)
            placed.append(Placed(f"pod-{number}", request, placement))
    other = cluster.copy()
    where = {each.pod: each.placement for each in placed}

    plan = plan_of(cluster, placed, most)

    assert len(plan.moves) <= most
    assert len({each.pod for each in plan.moves}) == len(plan.moves)
    assert all(each.before != each.after for each in plan.moves)
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


def test_pods_without_gpus_leave_nodes_whose_gpus_they_keep_idle() -> None:
    """On one node all CPU is taken, on another there is some, and no GPU."""
    cluster = Cluster([node("a", 2), Node("b", 64000, 64 * 1024)])
    hog = Placed("hog", Request(63500, 1024), Placement("a"))
    cluster.take(hog.request, hog.placement)
    plan = plan_of(cluster, [hog])

    assert [(each.pod, each.after.node) for each in plan.moves] == [("hog", "b")]
    assert 1 < plan.gain <= 2


def test_gpus_of_a_node_are_freed_together_for_a_request_that_wants_them_all() -> None:
    """A GPU is free on none of the nodes: no single move makes room for a pair."""
    cluster = Cluster([node(name, 2) for name in "abc"])
    placed = running(cluster, *((name, gpu, share(300)) for name in "abc" for gpu in (0, 1)))
    plan = plan_moves(cluster, WastePrice(Workload({PAIR: 1.0, share(300): 0.01})), placed, 2)

    assert [each.step for each in plan.moves] == [1, 1]
    assert sorted((cluster.room[:3] == MILLI_PER_GPU).sum(axis=1).tolist()) == [0, 0, 2]


@given(st.integers(0, 2**64))
def test_what_a_plan_gains_is_what_is_usable_more(seed: int) -> None:
    random = Random(seed)
    cluster = Cluster([node("a", 4), node("b", 2), node("c", 1), Node("d", 4000, 64 * 1024)])
    engine, placed = Engine(cluster, make_policy("spread"), random), list[Placed]()
    for number in range(random.randrange(14)):
        request = random.choice((*REQUESTS, Request(random.choice((1000, 30000)), 1024)))
        if placement := engine.choose(request):
            cluster.take(request, placement)
            placed.append(Placed(f"pod-{number}", request, placement))
    policy, rows = WastePrice(Workload(dict.fromkeys(REQUESTS, 1.0))), np.arange(len(cluster.nodes))
    usable = usable_to(policy, cluster)
    before = usable.of(cluster, rows).sum()
    plan = plan_moves(cluster, policy, placed, 5)

    assert plan.gain == pytest.approx(usable.of(cluster, rows).sum() - before)
