"""A decision holds only for the node that it was made of; what is promised is given back exactly once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.cluster.engine.cluster import Cluster
from gpuplane.cluster.engine.reservations import Refused, Reservations, restored
from gpuplane.cluster.model.nodes import Gpu, Node
from gpuplane.cluster.model.requests import GpuRequest, Placement, Request, Share
from tests.cluster.engine.histories import History

WANTED = Request(1000, 0, (GpuRequest(milli=1000),))


def node(name: str = "a", gpus: tuple[str, ...] = ("0", "1")) -> Node:
    return Node(name, 4000, 1024, tuple(Gpu(f"{name}-{each}") for each in gpus))


def on(gpu: int, name: str = "a", milli: int = 1000) -> Placement:
    return Placement(name, ((Share(gpu, milli),),))


@given(st.integers(0, 2**64))
def test_nothing_is_given_out_twice_and_nothing_is_lost(seed: int) -> None:
    History(seed).play()


def test_histories_have_every_answer() -> None:
    """Else they would show nothing."""
    answers = set[str]().union(*(History(seed).play() for seed in range(400)))

    assert answers >= {"restart", "node gone", "node comes", "node changes", "again", "reserve", "bind"}
    assert answers >= {"node-changed", "node-gone", "expired", "pod-unknown"}


def test_of_two_that_decide_by_one_picture_one_is_refused() -> None:
    reservations = Reservations(Cluster([node(), node("b")]))
    seen = reservations.cluster.version
    reservations.reserve("x", WANTED, on(0), seen, 0.0)
    reservations.reserve("y", WANTED, on(0, "b"), seen, 0.0)

    with pytest.raises(Refused, match="decide again") as refused:
        reservations.reserve("z", WANTED, on(1), seen, 0.0)
    assert refused.value.code == "node-changed"
    assert reservations.reserve("z", WANTED, on(1), reservations.cluster.version, 0.0).placement == on(1)


@pytest.mark.parametrize(
    ("placement", "code"),
    [
        (on(0, "c"), "node-gone"),
        (on(2), "no-room"),
        (on(-1), "no-room"),
        (on(0, milli=1001), "no-room"),
        (on(0, milli=-1000), "no-room"),
        (Placement("a", ((Share(0, 0, 0, "1g.10gb"),),)), "no-room"),
    ],
)
def test_what_is_not_there_is_promised_to_nobody(placement: Placement, code: str) -> None:
    """A placement may come from a pod's annotation, which anybody may have written."""
    reservations = Reservations(Cluster([node()]))

    with pytest.raises(Refused) as refused:
        reservations.reserve("x", WANTED, placement, reservations.cluster.version, 0.0)
    assert refused.value.code == code
    with pytest.raises(Refused) as refused:
        reservations.adopt("x", WANTED, placement)
    assert refused.value.code == code
    assert not reservations.by_pod
    assert reservations.cluster.milli_free[0, :2].tolist() == [1000, 1000]


def test_what_is_not_bound_in_time_is_free_again() -> None:
    reservations = Reservations(Cluster([node()]), seconds=10.0)
    for pod, gpu in (("x", 0), ("y", 1)):
        reservations.reserve(pod, WANTED, on(gpu), reservations.cluster.version, 0.0)
    assert reservations.bind("x", 9.9).expires is None
    with pytest.raises(Refused, match=r"free again since 0\.1 s") as refused:
        reservations.bind("y", 10.1)

    assert refused.value.code == "expired"
    assert [*reservations.by_pod] == ["x"]
    assert reservations.bind("x", 99.0).expires is None


def test_a_pod_has_one_promise() -> None:
    reservations = Reservations(Cluster([node()]))
    first = reservations.reserve("x", WANTED, on(0), reservations.cluster.version, 0.0)

    assert reservations.reserve("x", WANTED, on(0), 0, 5.0) == first
    with pytest.raises(Refused) as refused:
        reservations.reserve("x", WANTED, on(1), reservations.cluster.version, 5.0)
    assert refused.value.code == "pod-known"


def test_a_node_that_is_described_anew_knows_its_gpus_by_their_ids() -> None:
    """Bound pods keep what they have before reserved ones do."""
    reservations = Reservations(Cluster([node()]))
    reservations.adopt("x", WANTED, on(1))
    reservations.reserve("y", WANTED, on(0), reservations.cluster.version, 0.0)

    assert reservations.put_node(node(gpus=("1", "0"))) == []
    assert reservations.by_pod["x"].placement == on(0)
    assert [each.pod for each in reservations.put_node(node(gpus=("1",)))] == ["y"]
    assert [each.pod for each in reservations.put_node(node(gpus=("1",)).but(cpu_milli=999))] == ["x"]


def test_pods_that_do_not_fit_after_a_restart_are_named() -> None:
    pods = [("x", WANTED, on(0)), ("y", WANTED, on(0)), ("z", WANTED, on(0, "c")), ("x", WANTED, on(1))]
    reservations, refused = restored([node()], pods, 100)

    assert [*reservations.by_pod] == ["x"]
    assert {pod: error.code for pod, error in refused.items()} == {"y": "no-room", "z": "node-gone", "x": "pod-known"}


@pytest.mark.parametrize(
    ("described", "is_bound", "is_kept"),
    [
        ({}, True, True),
        ({"is_partitioned": True, "profiles": {"1g.10gb": 7}}, True, False),
        ({"code": "xid-79"}, True, True),
        ({"code": "xid-79"}, False, False),
    ],
)
def test_a_promise_ends_where_its_gpu_is_given_out_otherwise(
    described: dict[str, object], is_bound: bool, is_kept: bool
) -> None:
    """Or it would be given out twice, once whole and once as MIG devices."""
    node = Node("n", 8000, 0, (Gpu("g"),))
    reservations = Reservations(Cluster([node]))
    whole = Request(0, 0, (GpuRequest(milli=1000),))
    reservations.reserve("p", whole, Placement("n", ((Share(0, 1000),),)), reservations.cluster.version, 0.0)
    if is_bound:
        reservations.bind("p", 1.0)
    ended = reservations.put_node(node.but(gpus=(node.gpus[0].but(**described),)))

    assert [each.pod for each in ended] == ([] if is_kept else ["p"])
    assert ("p" in reservations.by_pod) is is_kept


def test_the_same_decision_is_the_same_promise_when_gpus_have_other_places() -> None:
    reservations = Reservations(Cluster([node()]))
    first = reservations.reserve("x", WANTED, on(0), reservations.cluster.version, 0.0)
    for gpus in (("1", "0"), ("1", "2", "0")):
        assert reservations.put_node(node(gpus=gpus)) == []
        again = reservations.reserve("x", WANTED, on(0), 0, 0.0)
        assert (again.expires, again.placement) == (first.expires, on(gpus.index("0")))
        assert reservations.reserve("x", WANTED, again.placement, 0, 0.0) == again
    with pytest.raises(Refused) as refused:
        reservations.reserve("x", WANTED, on(1), 0, 0.0)
    assert refused.value.code == "pod-known"


def test_a_decision_of_an_earlier_life_is_refused() -> None:
    before = Reservations(Cluster([node()]))
    seen = before.cluster.version
    after, _ = restored([node()], [], before.cluster.version + 1000)

    with pytest.raises(Refused) as refused:
        after.reserve("x", WANTED, on(0), seen, 0.0)
    assert refused.value.code == "node-changed"
    with pytest.raises(Refused) as refused:
        after.reserve("x", WANTED, on(0), after.cluster.version + 1, 0.0)
    assert refused.value.code == "node-changed"
    assert after.reserve("x", WANTED, on(0), after.cluster.version, 0.0)
