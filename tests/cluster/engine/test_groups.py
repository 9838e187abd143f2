"""Pods of a group have a place each, or none has; what is promised to them is promised to all."""

import pytest

from gpuplane.cluster.engine.cluster import Cluster
from gpuplane.cluster.engine.engine import Engine
from gpuplane.cluster.engine.groups import GroupDecision, choose_group
from gpuplane.cluster.engine.policies import make_policy
from gpuplane.cluster.engine.reservations import Refused, Reservations
from gpuplane.cluster.model.nodes import Gpu, Node
from gpuplane.cluster.model.requests import GpuRequest, Placement, Request, Share


def node(name: str, gpus: int) -> Node:
    return Node(name, 64000, 64 * 1024, tuple(Gpu(f"{name}-{index}") for index in range(gpus)))


def wants(count: int, milli: int = 1000) -> Request:
    return Request(1000, 0, (GpuRequest(count, milli),))


def decide(cluster: Cluster, *requests: Request, policy: str = "waste-price") -> GroupDecision:
    free = cluster.milli_free.copy(), cluster.cpu_free.copy()
    found = choose_group(Engine(cluster, make_policy(policy)), requests)
    assert (cluster.milli_free == free[0]).all()
    assert (cluster.cpu_free == free[1]).all()
    return found


def test_each_has_a_place_beside_the_others() -> None:
    cluster = Cluster([node("a", 4), node("b", 2)])
    requests = (wants(1), wants(2), wants(1), wants(2))
    found = decide(cluster, *requests)

    assert len(found.placements) == 4
    for request, placement in zip(requests, found.placements, strict=True):
        assert len(placement.shares[0]) == request.gpus[0].count
        cluster.take(request, placement)  # raises where two have the same
    assert not cluster.milli_free.any()


def test_one_without_a_place_leaves_none_to_the_others() -> None:
    assert decide(Cluster([node("a", 4)]), wants(3), wants(1), wants(1)) == GroupDecision(missing=1)
    assert decide(Cluster([node("a", 4)]), wants(5)) == GroupDecision(missing=1)


def test_what_a_policy_spreads_is_packed_where_it_has_to_be() -> None:
    """Spread puts the two halves on a node each, and then no node has two GPUs."""
    cluster = Cluster([node("a", 2), node("b", 2)])
    requests = (wants(1, 500), wants(1, 500), wants(1, 1000), wants(2, 600))
    halves = wants(1, 500), wants(1, 500), wants(2, 400)

    assert len(decide(cluster, *halves, policy="spread").placements) == 3
    found = decide(cluster, *requests, policy="spread")
    assert len({each.node for each in found.placements}) == 2
    assert len(found.placements) == 4


def test_nothing_is_asked_of_an_empty_group() -> None:
    assert decide(Cluster([node("a", 1)])) == GroupDecision()


def on(name: str, *gpus: int) -> Placement:
    return Placement(name, (tuple(Share(gpu, 1000) for gpu in gpus),))


def test_a_group_is_promised_whole_or_not_at_all() -> None:
    reservations = Reservations(Cluster([node("a", 2), node("b", 1)]))
    seen = reservations.cluster.version
    group = [("x", wants(1), on("a", 0)), ("y", wants(1), on("a", 1)), ("z", wants(1), on("b", 0))]

    found = reservations.reserve_group(group, seen, 0.0)
    assert [each.pod for each in found] == ["x", "y", "z"]
    assert reservations.reserve_group(group, seen, 1.0) == found
    assert {each.pod for each in reservations.expire(61.0)} == {"x", "y", "z"}
    assert reservations.cluster.milli_free[:2].sum() == 3000


@pytest.mark.parametrize(
    ("last", "code"),
    [
        (("z", wants(1), on("a", 1)), "no-room"),
        (("z", wants(1), on("c", 0)), "node-gone"),
        (("x", wants(1), on("b", 0)), "pod-known"),
    ],
)
def test_one_that_is_refused_leaves_nothing_to_the_others(last: tuple[str, Request, Placement], code: str) -> None:
    reservations = Reservations(Cluster([node("a", 2), node("b", 1)]))
    group = [("x", wants(1), on("a", 0)), ("y", wants(1), on("a", 1)), last]

    with pytest.raises(Refused) as refused:
        reservations.reserve_group(group, reservations.cluster.version, 0.0)
    assert refused.value.code == code
    assert reservations.by_pod == {}
    assert reservations.cluster.milli_free[:2].sum() == 3000


def test_a_group_of_an_old_picture_is_refused() -> None:
    reservations = Reservations(Cluster([node("a", 2), node("b", 1)]))
    seen = reservations.cluster.version
    reservations.reserve("other", wants(1), on("b", 0), seen, 0.0)

    with pytest.raises(Refused, match="node b has changed") as refused:
        reservations.reserve_group([("x", wants(1), on("a", 0)), ("z", wants(1), on("b", 0))], seen, 0.0)
    assert refused.value.code == "node-changed"
    assert set(reservations.by_pod) == {"other"}


def test_the_largest_by_memory_are_placed_first() -> None:
    cluster = Cluster([Node("a", 8000, 0, (Gpu("0", memory_mib=10_000), Gpu("1", memory_mib=10_000)))])
    requests = [Request(0, 0, (GpuRequest(memory_mib=memory),)) for memory in (3000, 3000, 7000, 7000)]

    assert len(choose_group(Engine(cluster, make_policy("spread")), requests).placements) == 4
