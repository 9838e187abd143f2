"""Which GPUs of a node are taken: alike ones once, linked ones together, of a MIG device the least useful GPU."""

import numpy as np
import pytest

from gpuplane.cluster.engine.candidates import candidates
from gpuplane.cluster.engine.cluster import Cluster
from gpuplane.cluster.engine.engine import Engine
from gpuplane.cluster.engine.policies import POLICIES, make_policy
from gpuplane.cluster.engine.within import place_within
from gpuplane.cluster.model.nodes import Gpu, Node
from gpuplane.cluster.model.requests import GpuRequest, Request


def node(name: str, links: list[int]) -> Node:
    return Node(name, 64000, 0, tuple(Gpu(f"{name}-{index}", link_group=group) for index, group in enumerate(links)))


def request(**gpus: object) -> Request:
    return Request(1000, 0, (GpuRequest(**{"milli": 1000, **gpus}),))  # type: ignore[arg-type]


def taken(cluster: Cluster, policy: str, *requests: Request) -> list[tuple[str, list[int]] | None]:
    engine, found = Engine(cluster, make_policy(policy)), []
    for each in requests:
        if placement := engine.choose(each):
            cluster.take(each, placement)
        found.append((placement.node, [share.gpu for share in placement.shares[0]]) if placement else None)
    return found


def test_gpus_that_would_be_left_alike_are_one_candidate() -> None:
    cluster = Cluster([node("a", [0] * 8), node("b", [0] * 4)])
    half = request(milli=500)
    placement = Engine(cluster, make_policy("binpack")).choose(half)
    assert placement
    cluster.take(half, placement)
    found = candidates(cluster, half, np.arange(2))

    assert sorted(zip(found.rows.tolist(), found.before[:, 0].tolist(), found.after[:, 0].tolist(), strict=True)) == [
        (0, 1000, 500), (1, 500, 0), (1, 1000, 500),
    ]  # fmt: skip


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_several_gpus_are_of_the_smallest_group_that_suffices(policy: str) -> None:
    cluster = Cluster([node("a", [1, 1, 1, 1, 2, 2, 3, 0])])

    assert taken(cluster, policy, request(count=2), request(count=3), request(count=2)) == [
        ("a", [4, 5]), ("a", [0, 1, 2]), ("a", [3, 6]),
    ]  # fmt: skip


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_node_with_links_comes_before_one_without(policy: str) -> None:
    cluster = Cluster([node("a", [0, 0]), node("b", [1, 1, 2, 2]), node("c", [1, 2])])
    required = request(count=2, linked="required")

    assert {found[0] for found in taken(cluster, policy, *[request(count=2)] * 2) if found} == {"b"}
    assert taken(cluster, policy, required) == [None]
    assert None not in taken(cluster, policy, *[request(count=2)] * 2)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_the_first_links_of_a_cluster_count_at_once(policy: str) -> None:
    cluster = Cluster([node("a", [0, 0]), node("b", [0, 0])])
    engine, preferred, required = (
        Engine(cluster, make_policy(policy)),
        request(count=2),
        request(count=2, linked="required"),
    )

    assert engine.choose(preferred) is not None
    assert engine.choose(required) is engine.choose(Request(0, 0, required.gpus * 2)) is None
    cluster.put_node(node("z", [1, 1]))
    for wanted in (preferred, required):
        placement = engine.choose(wanted)
        assert placement is not None
        assert placement.node == "z"


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_one_gpu_is_taken_where_links_lose_least(policy: str) -> None:
    cluster = Cluster([node("a", [1, 1, 1, 1, 2, 2, 0])])

    assert [found[1] for found in taken(cluster, policy, *[request()] * 4) if found] == [[6], [4], [5], [0]]


@pytest.mark.parametrize("policy", sorted(set(POLICIES) - {"spread"}))
def test_a_mig_device_is_taken_where_large_ones_lose_least(policy: str) -> None:
    layouts = [{"1g.10gb": 2, "3g.40gb": 1}, {"1g.10gb": 4}, {"1g.10gb": 1}]
    gpus = tuple(Gpu(f"g{index}", is_partitioned=True, profiles=each) for index, each in enumerate(layouts))
    cluster = Cluster([Node("a", 64000, 0, gpus[:2]), Node("b", 64000, 0, gpus[2:])])
    small = request(milli=0, profile="1g.10gb")

    assert taken(cluster, policy, *[small] * 4, request(milli=0, profile="3g.40gb")) == [
        ("b", [0]), ("a", [0]), ("a", [0]), ("a", [1]), ("a", [0]),
    ]  # fmt: skip


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_links_count_for_each_of_several_containers(policy: str) -> None:
    """Between nodes, and of the groups of one node the smallest that suffices."""
    pair = GpuRequest(count=2, milli=1000)
    two_pairs = Request(1000, 0, (pair, pair))
    cluster = Cluster([node("a", [0, 0, 0, 0]), node("b", [1, 1, 1, 2, 2, 3]), node("c", [1, 2, 3, 4])])

    found = Engine(cluster, make_policy(policy)).choose(two_pairs)
    assert found is not None
    assert found.node == "b"
    assert sorted(sorted(share.gpu for share in part) for part in found.shares) == [[0, 1], [3, 4]]


@pytest.mark.parametrize("policy", sorted(set(POLICIES) - {"spread"}))
def test_several_mig_devices_are_taken_where_large_ones_lose_least(policy: str) -> None:
    """As Kubernetes asks for them: each is a part."""
    small, large = {"1g.10gb": 2}, {"1g.10gb": 2, "3g.40gb": 1}
    layouts = {"a": (large, large), "b": (large, small), "c": (large, small)}
    cluster = Cluster(
        Node(
            name, 64000, 0, tuple(Gpu(f"{name}{n}", is_partitioned=True, profiles=each) for n, each in enumerate(gpus))
        )
        for name, gpus in layouts.items()
    )
    two = Request(0, 0, (GpuRequest(profile="1g.10gb"),) * 2)
    engine, found = Engine(cluster, make_policy(policy)), []
    for _ in range(3):
        placement = engine.choose(two)
        assert placement is not None
        cluster.take(two, placement)
        found.append((placement.node, [share.gpu for part in placement.shares for share in part]))
    assert sorted(found[:2]) == [("b", [1, 1]), ("c", [1, 1])]
    assert found[2][1] in ([0, 0], [1, 1])


def test_large_numbers_of_link_groups_are_told_apart() -> None:
    cluster = Cluster([node("a", [2048, 2048, 1024, 1024, 1024, 1, 1])])

    assert taken(cluster, "binpack", *[request(count=2)] * 3) == [("a", [5, 6]), ("a", [0, 1]), ("a", [2, 3])]


def test_mig_devices_need_no_links() -> None:
    """No link reaches a MIG device. One container and two find the same."""
    gpus = tuple(Gpu(f"{n}", is_partitioned=True, profiles={"1g.10gb": 1}, link_group=n) for n in range(2))
    cluster, linked = Cluster([Node("n", 8000, 0, gpus)]), GpuRequest(count=2, profile="1g.10gb", linked="required")

    for parts in ((linked,), (linked.but(count=1), linked.but(count=1))):
        found = Engine(cluster, make_policy("binpack")).choose(Request(0, 0, parts))
        assert found is not None
        assert sorted(share.gpu for part in found.shares for share in part) == [0, 1]
    assert place_within(cluster, 0, Request(0, 0, (linked,))) is not None
