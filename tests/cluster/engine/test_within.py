"""GPUs of several containers on one node: a place is found exactly where there is one."""

from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.cluster.engine.cluster import Cluster
from gpuplane.cluster.engine.engine import Engine
from gpuplane.cluster.engine.policies import POLICIES, make_policy
from gpuplane.cluster.engine.within import place_within
from gpuplane.cluster.model.nodes import Gpu, Node
from gpuplane.cluster.model.requests import GpuRequest, Placement, Request, Share

MEMORY = 1000
PARTS = st.builds(
    GpuRequest,
    count=st.integers(1, 2),
    milli=st.sampled_from([200, 500, 700, 1000]),
    memory_mib=st.sampled_from([0, 300, 800]),
)


def fits(free: list[tuple[int, int]], parts: list[GpuRequest]) -> bool:
    """By trying everything."""
    choices = [list(combinations(range(len(free)), each.count)) for each in parts]
    for sets in product(*choices):
        milli, memory = [each[0] for each in free], [each[1] for each in free]
        for part, gpus in zip(parts, sets, strict=True):
            for gpu in gpus:
                milli[gpu] -= part.milli
                memory[gpu] -= part.memory_mib or MEMORY * part.milli // 1000
        if min([0, *milli, *memory]) >= 0:
            return True
    return False


@given(
    st.lists(st.sampled_from([0, 300, 500, 800]), min_size=1, max_size=4),
    st.lists(PARTS, min_size=1, max_size=3) | st.builds(lambda part, more: [part, part, more], PARTS, PARTS),
    st.sampled_from(sorted(POLICIES)),
)
def test_a_place_is_found_where_there_is_one(used: list[int], parts: list[GpuRequest], policy: str) -> None:
    """By the engine, too, whose placement can be taken and given back."""
    cluster = Cluster([Node("n", 8000, 0, tuple(Gpu(f"{n}", memory_mib=MEMORY) for n in range(len(used))))])
    taken = Placement("n", (tuple(Share(gpu, milli, milli) for gpu, milli in enumerate(used)),))
    cluster.take(Request(), taken)
    request = Request(1000, 0, tuple(parts))

    found = place_within(cluster, 0, request)

    assert (found is not None) == fits([(1000 - each, MEMORY - each) for each in used], parts)
    chosen = Engine(cluster, make_policy(policy)).choose(request)
    assert (chosen is None) == (found is None)
    for placement in filter(None, (found, chosen)):
        assert [len({share.gpu for share in part}) for part in placement.shares] == [each.count for each in parts]
        before = cluster.room.copy()
        cluster.take(request, placement)
        cluster.give_back(request, placement)
        assert (cluster.room == before).all()


def test_containers_may_share_a_gpu() -> None:
    cluster = Cluster([Node("n", 8000, 0, (Gpu("0"),))])
    half = GpuRequest(milli=500)

    assert Engine(cluster, make_policy("waste-price")).choose(Request(0, 0, (half, half))) == Placement(
        "n", ((Share(0, 500),), (Share(0, 500),))
    )
    assert Engine(cluster, make_policy("waste-price")).choose(Request(0, 0, (half,) * 3)) is None


@given(
    st.lists(
        st.integers(1, 18).flatmap(lambda first: st.tuples(st.just(first), st.integers(first + 1, 19))), max_size=5
    )
)
def test_parts_that_fill_all_gpus_are_placed(cuts: list[tuple[int, int]]) -> None:
    """Three of each GPU. Parts that are alike are not tried in each order: that took all steps."""
    sizes = sorted(size for low, high in cuts for size in (low, high - low, 20 - high))
    cluster = Cluster([Node("n", 8000, 0, tuple(Gpu(f"{n}") for n in range(len(cuts))))])

    found = place_within(cluster, 0, Request(0, 0, tuple(GpuRequest(milli=50 * each) for each in sizes)))
    assert found is not None
    cluster.take(Request(), found)
    assert not cluster.milli_free.any()


def test_a_pod_of_a_thousand_parts_is_answered() -> None:
    """As one that asks for so many MIG devices is read."""
    gpus = tuple(Gpu(f"{n}", is_partitioned=True, profiles={"1g.10gb": 70}) for n in range(16))
    cluster = Cluster([Node("n", 8000, 0, gpus)])
    parts = (GpuRequest(profile="1g.10gb"),) * 1120

    found = place_within(cluster, 0, Request(0, 0, parts))
    assert found is not None
    cluster.take(Request(0, 0, parts), found)
    assert not any(cluster.mig_free(profile).any() for profile in cluster.profiles)
    cluster.give_back(Request(0, 0, parts), found)
    assert place_within(cluster, 0, Request(0, 0, (*parts, parts[0]))) is None


def test_more_devices_than_there_are_need_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = tuple(Gpu(f"{n}", is_partitioned=True, profiles={"1g.10gb": 7}) for n in range(8))
    cluster = Cluster([Node("n", 8000, 0, gpus)])
    monkeypatch.setattr("gpuplane.cluster.engine.within._Search._sets", None)

    assert place_within(cluster, 0, Request(0, 0, (GpuRequest(profile="1g.10gb"),) * 57)) is None
    assert place_within(cluster, 0, Request(0, 0, (GpuRequest(profile="of no node"),) * 2)) is None


def test_a_gpu_that_is_held_beyond_what_it_has_takes_no_room_of_another() -> None:
    """Pods may hold more of a GPU than there is; the other GPUs of the node are free all the same."""
    cluster = Cluster([Node("n", 8000, 0, (Gpu("0"), Gpu("1")))])
    for _ in range(2):
        cluster.hold(Request(), Placement("n", ((Share(0, 1000),),)))
    half = GpuRequest(milli=500)

    assert place_within(cluster, 0, Request(0, 0, (half, half))) == Placement("n", ((Share(1, 500),), (Share(1, 500),)))
