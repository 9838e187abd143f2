"""The engine takes what its policy likes best, whatever has changed meanwhile; nothing is given out twice."""

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.cluster.engine.arrays import Floats
from gpuplane.cluster.engine.candidates import Candidates
from gpuplane.cluster.engine.cluster import Cluster, OverCommitted
from gpuplane.cluster.engine.engine import Engine
from gpuplane.cluster.engine.policies import POLICIES, make_policy
from gpuplane.cluster.engine.policies.binpack import Binpack
from gpuplane.cluster.engine.policies.fgd import Fgd
from gpuplane.cluster.engine.policies.policy import Policy, Pricing
from gpuplane.cluster.engine.policies.wasteprice.policy import Potential
from gpuplane.cluster.engine.policies.wasteprice.slots import Slots
from gpuplane.cluster.model.nodes import Gpu, Node
from gpuplane.cluster.model.requests import (
    MILLI_PER_GPU,
    NO_NODE_RULES,
    GpuRequest,
    NodeRules,
    Placement,
    Request,
    Share,
)
from gpuplane.kubernetes.selectors import NodeSelector, NodeSelectorTerm, Requirement, Taint, Toleration
from tests.lengths import length

GIB = 1024


def node(name: str, gpus: int = 2, **of_gpus: object) -> Node:
    """A node with 8 CPUs and so many GPUs of 80 GiB."""
    described = {"model": "A100", "memory_mib": 80 * GIB, **of_gpus}
    return Node(name, 8000, 64 * GIB, tuple(Gpu(f"{name}-{index}", **described) for index in range(gpus)))  # type: ignore[arg-type]


def request(cpu: int = 1000, **gpus: object) -> Request:
    return Request(cpu, GIB, (GpuRequest(**gpus),) if gpus else ())  # type: ignore[arg-type]


def places(found: Placement | None) -> tuple[str, list[int]] | None:
    return (found.node, [share.gpu for part in found.shares for share in part]) if found else None


def run(engine: Engine, *requests: Request) -> list[tuple[str, list[int]] | None]:
    """Where these requests go, one after the other."""
    found = []
    for each in requests:
        placement = engine.choose(each)
        if placement:
            engine.cluster.take(each, placement)
        found.append(places(placement))
    return found


def test_binpack_fills_and_spread_spreads() -> None:
    half, whole = request(milli=500), request(milli=1000)
    nodes = [node("a"), node("b")]

    assert run(Engine(Cluster(nodes), make_policy("binpack")), half, half, whole, half, whole, whole, half) == [
        ("a", [0]), ("a", [0]), ("a", [1]), ("b", [0]), ("b", [1]), None, ("b", [0]),
    ]  # fmt: skip
    assert run(Engine(Cluster(nodes), make_policy("spread")), half, half, half, half, whole) == [
        ("a", [0]), ("b", [0]), ("a", [1]), ("b", [1]), None,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "shares"),
    [
        (request(milli=250), [(250, 20 * GIB)]),
        (request(memory_mib=40 * GIB), [(500, 40 * GIB)]),
        (request(memory_percent=10), [(100, 8 * GIB)]),
        (request(milli=100, memory_mib=40 * GIB), [(100, 40 * GIB)]),
        (request(units=1, count=2), [(250, 20 * GIB), (250, 20 * GIB)]),
        (request(units=2, milli=500), [(500, 40 * GIB)]),
        (request(units=1, milli=251), None),
        (request(units=1, memory_mib=20 * GIB), [(250, 20 * GIB)]),
        (request(units=1, memory_mib=20 * GIB + 1), None),
        (request(milli=1000, models=frozenset({"A100", "H100"})), [(1000, 80 * GIB)]),
        (request(milli=1000, models=frozenset({"H100"})), None),
        (request(milli=1000, ids=frozenset({"a-1"})), [(1000, 80 * GIB)]),
        (request(milli=1000, count=3), None),
        (request(cpu=9000), None),
        (request(), []),
    ],
)
def test_what_a_request_takes(wanted: Request, shares: list[tuple[int, int]] | None) -> None:
    engine = Engine(Cluster([node("a", units=4)]), make_policy("binpack"))
    found = engine.choose(wanted)

    assert (found and [(each.milli, each.memory_mib) for part in found.shares for each in part]) == shares


@pytest.mark.parametrize(
    ("policy", "units"),
    [
        *((policy, units) for policy in sorted(POLICIES) for units in (1, 3, 7, 48)),
        *((policy, units) for policy in length(["binpack"], sorted(POLICIES)) for units in (1000, 1001, 2500)),
    ],
)
def test_a_gpu_takes_as_many_ids_as_its_node_offers(policy: str, units: int) -> None:
    """Whether they divide a GPU or not; for pods of one container and of two."""
    both = Request(gpus=(GpuRequest(units=1),) * 2)
    engine = Engine(Cluster([node("a", 1, units=units).but(cpu_milli=0)]), make_policy(policy))
    placements = list[tuple[Request, Placement]]()
    while (found := engine.choose(wanted := both if len(placements) % 2 else Request(gpus=both.gpus[:1]))) is not None:
        engine.cluster.take(wanted, found)
        placements.append((wanted, found))
    assert sum(len(wanted.gpus) for wanted, _ in placements) in (units - 1, units)
    assert (engine.choose(Request(gpus=both.gpus[:1])) is None) == (engine.cluster.units_free[0, 0] == 0)

    for wanted, found in placements:
        engine.cluster.give_back(wanted, found)
    assert (engine.cluster.units_free[0, 0], engine.cluster.milli_free[0, 0]) == (units, MILLI_PER_GPU)


def test_a_profile_takes_a_mig_device() -> None:
    cluster = Cluster([node("a"), node("b", is_partitioned=True, profiles={"1g.10gb": 1})])
    engine = Engine(cluster, make_policy("binpack"))
    wanted = request(profile="1g.10gb")

    assert run(engine, wanted, wanted, wanted) == [("b", [0]), ("b", [1]), None]
    assert run(engine, request(milli=1000, ids=frozenset({"b-0"}))) == [None]


def test_sick_gpus_and_closed_nodes_are_passed_over() -> None:
    cluster = Cluster([node("a", code="gpu-lost"), node("b").but(is_schedulable=False), node("c", 1)])

    assert run(Engine(cluster, make_policy("binpack")), request(milli=1), request(milli=1000)) == [("c", [0]), None]


def test_nodes_come_and_go() -> None:
    cluster = Cluster([node("a")])
    engine = Engine(cluster, make_policy("binpack"))
    assert run(engine, request(milli=1000, count=4)) == [None]
    cluster.put_node(node("b", 4))
    assert run(engine, request(milli=1000, count=4)) == [("b", [0, 1, 2, 3])]
    cluster.remove_node("b")
    assert run(engine, request(milli=1000, count=4), request(milli=1000)) == [None, ("a", [0])]
    cluster.put_node(node("c", 1))
    assert (cluster.rows, len(cluster.nodes)) == ({"a": 0, "c": 1}, 2)


def test_ties_are_broken_by_chance_where_that_is_wanted() -> None:
    cluster = Cluster([node(name) for name in "abcd"])
    engine = Engine(cluster, make_policy("spread"), Random(7))

    assert {found.node for _ in range(60) if (found := engine.choose(request(milli=1000)))} == set("abcd")


def test_nothing_is_taken_twice_or_given_back_twice() -> None:
    cluster, wanted = Cluster([node("a", 1)]), request(milli=600)
    found = Engine(cluster, make_policy("binpack")).choose(wanted)
    assert found
    cluster.take(wanted, found)
    with pytest.raises(OverCommitted, match=r"node a: .* milli-GPU cannot be taken"):
        cluster.take(wanted, found)
    cluster.give_back(wanted, found)
    with pytest.raises(OverCommitted, match="given back"):
        cluster.give_back(wanted, found)
    with pytest.raises(OverCommitted, match="node z is not there"):
        cluster.take(wanted, found.but(node="z"))
    assert cluster.cpu_free[0] == 8000


def test_a_node_whose_pods_do_not_fit_stays_as_it_was() -> None:
    cluster, half = Cluster([node("a", 2)]), request(milli=600)
    found = Engine(cluster, make_policy("binpack")).choose(half)
    assert found
    cluster.take(half, found)
    for name in "ab":
        with pytest.raises(OverCommitted):
            cluster.put_node(node(name, 1), [(half, found.but(node=name))] * 2)
    assert (cluster.rows, cluster.milli_free[0].tolist()) == ({"a": 0}, [400, 1000])


@pytest.mark.parametrize(
    ("described", "taken"),
    [
        (Node("NAME", 1 << 63, 0), []),
        (node("NAME", 1).but(memory_bytes=1 << 63), []),
        (node("NAME", 3), [(request(milli=600), Placement("other", ((Share(0, 600),),)))]),
    ],
)
def test_a_node_that_cannot_be_described_changes_nothing(
    described: Node, taken: list[tuple[Request, Placement]]
) -> None:
    cluster = Cluster([node("a", 2), node("other", 1)])
    for name in ("a", "b"):
        with pytest.raises((OverCommitted, OverflowError)):
            cluster.put_node(described.but(name=name), taken)
    assert [each and each.name for each in cluster.nodes[:2]] == ["a", "other"]
    assert set(cluster.rows) == {"a", "other"}
    assert (cluster.milli_free.sum(), cluster.cpu_free.sum()) == (3000, 16000)


def test_other_resources_are_taken_and_given_back() -> None:
    """As the scheduler counts pods, ephemeral storage and what other device plugins offer."""
    cluster = Cluster([node("a", 2).but(others={"pods": 1}), node("b", 2).but(others={"pods": 2, "x/nic": 1})])
    pod, with_nic = request(milli=100).but(others=(("pods", 1),)), request(milli=100).but(others=(("x/nic", 1),))
    engine, strange = Engine(cluster, make_policy("binpack")), request(milli=100).but(others=(("y/nic", 1),))

    assert run(engine, pod, pod, pod, pod) == [("a", [0]), ("b", [0]), ("b", [0]), None]
    assert run(engine, with_nic, with_nic, strange) == [("b", [0]), None, None]
    cluster.give_back(pod, Placement("a", ((Share(0, 100, 4 * GIB),),)))
    assert run(engine, pod) == [("a", [0])]
    with pytest.raises(OverCommitted, match="1 pods cannot be taken, 0 are free"):
        cluster.take(pod, Placement("a", ((Share(0, 100),),)))
    with pytest.raises(OverCommitted, match="node a has no y/nic"):
        cluster.take(strange, Placement("a", ((Share(0, 100),),)))


class Repriced(Binpack):
    """Prices by a sign that changes, and counts the rows that it looks at."""

    def __init__(self) -> None:
        self.pricing, self.seen = Binpack(), list[int]()

    def refresh(self, cluster: Cluster) -> "Repriced":
        return self.pricing  # type: ignore[return-value]

    def reverse(self) -> None:
        seen, sign = self.seen, -self.pricing.sign

        class Priced(Binpack):
            def score(self, cluster: Cluster, request: Request, found: Candidates) -> Floats:
                seen.append(len(found.rows))
                return super().score(cluster, request, found)

        self.pricing = Priced()
        self.pricing.sign = sign


def test_no_decision_pays_for_new_prices_of_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """By new prices it looks at the nodes that were best by the old ones, and at as many others in turn."""
    monkeypatch.setattr("gpuplane.cluster.engine.engine.ROWS_PER_REPRICING", 2)
    policy, wanted = Repriced(), request(0, milli=250)
    cluster = Cluster([node(f"{index:02}", 1) for index in range(12)])
    for index in range(1, 12):
        cluster.take(request(0, milli=50 * index), Placement(f"{index:02}", ((Share(0, 50 * index),),)))
    engine, found = Engine(cluster, policy), list[str]()
    for _ in range(12):
        found += [placement.node for _ in range(2) if (placement := engine.choose(wanted))]
        policy.reverse()
    assert found[:6] == ["11", "11", "10", "10", "11", "11"]  # the fullest, the emptiest of those two, the fullest
    assert found[-2:] == ["00", "00"]  # the emptiest, once all have had their turn
    assert max(policy.seen) <= 2 * 2


def test_what_is_known_is_full_and_others_have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuplane.cluster.engine.engine.ROWS_PER_REPRICING", 1)
    policy = Repriced()
    engine = Engine(Cluster([node(str(index), 1) for index in range(5)]), policy)
    wanted = request(0, milli=MILLI_PER_GPU)
    assert run(engine, wanted) == [("0", [0])]
    policy.reverse()
    assert run(engine, *[wanted] * 5) == [("1", [0]), ("2", [0]), ("3", [0]), ("4", [0]), None]


class Scored(Binpack):
    """Nodes score what is said of them, until that changes."""

    def __init__(self, **points: float) -> None:
        self.points, self.pricing = points, Binpack()

    def say(self, **points: float) -> None:
        said = self.points = {**self.points, **points}

        class Priced(Binpack):
            def score(self, cluster: Cluster, request: Request, found: Candidates) -> Floats:
                return np.array([said[each.name] for row in found.rows if (each := cluster.nodes[row])])

        self.pricing = Priced()

    def refresh(self, cluster: Cluster) -> Binpack:
        return self.pricing


@pytest.mark.parametrize("at_once", [1, 150])
def test_linked_gpus_go_before_others_and_scores_stay_true(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of places that are not linked, too, the better one is taken, however little it is better."""
    monkeypatch.setattr("gpuplane.cluster.engine.engine.ROWS_PER_REPRICING", at_once)
    cluster = Cluster([node("a"), node("b"), node("c", link_group=1), node("d", link_group=1)])
    policy, pair, points = Scored(), request(milli=1000, count=2), {"a": 5.0, "b": 5.0 + 1e-9, "c": -3.0, "d": -3.5}
    engine = Engine(cluster, policy)
    policy.say(**points)

    assert engine.scores(pair).tolist() == list(points.values())
    assert run(engine, pair) == [("c", [0, 1])]
    policy.say()  # the same anew
    assert run(engine, pair, pair, pair, pair) == [("d", [0, 1]), ("b", [0, 1]), ("a", [0, 1]), None]


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_rows_score_the_same_whichever_are_scored_together(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster([node(f"{index}", 1 + index % 4, link_group=index % 2) for index in range(20)])
    for index in range(3, 20, 2):
        cluster.take(request(milli=10 * index), Placement(f"{index}", ((Share(0, 10 * index),),)))
    requests = request(milli=300), request(milli=1000, count=2), request()
    engines = list[Engine]()
    for rows in (3, 4096):
        monkeypatch.setattr("gpuplane.cluster.engine.engine.ROWS_PER_BATCH", rows)
        monkeypatch.setattr("gpuplane.cluster.engine.policies.wasteprice.slots.NODES_PER_BATCH", rows)
        engines.append(engine := Engine(cluster, make_policy(policy)))
        for each in requests:
            engine.scores(each)

    for each in requests:
        assert engines[0].scores(each).tolist() == engines[1].scores(each).tolist()
        assert engines[0].choose(each) == engines[1].choose(each)


WANTED = st.builds(
    GpuRequest,
    milli=st.integers(1, 1000),
    count=st.integers(1, 3),
    models=st.sampled_from([frozenset(), frozenset({"A100"})]),
    linked=st.sampled_from(["any", "preferred", "required"]),
) | st.sampled_from([
    GpuRequest(memory_mib=20 * GIB), GpuRequest(memory_percent=30, count=2), GpuRequest(milli=100, memory_mib=GIB),
    GpuRequest(units=1), GpuRequest(profile="1g.10gb"), GpuRequest(profile="of no node"),
])  # fmt: skip
TAINT = Taint("gpu", "NoSchedule")
RULES = (
    NO_NODE_RULES,
    NodeRules((("zone", "x"),)),
    NodeRules(tolerations=(Toleration("gpu", "Exists"),)),
    NodeRules((), NodeSelector((NodeSelectorTerm((Requirement("zone", "NotIn", ("x",)),)),))),
)
REQUESTS = st.builds(
    Request,
    cpu_milli=st.integers(0, 3000),
    memory_bytes=st.just(GIB),
    gpus=st.lists(WANTED, min_size=1, max_size=2).map(tuple),
    nodes=st.sampled_from(RULES),
    others=st.sampled_from([(), (("pods", 1),), (("x/nic", 1), ("pods", 1))]),
)


OFTEN = st.sampled_from([True, True, True, False])


class Fixed(Binpack):
    """Prices as a policy does now, with tables of its own."""

    def __init__(self, policy: Policy, cluster: Cluster) -> None:
        pricing: Pricing = policy.refresh(cluster)
        if isinstance(pricing, Potential):  # prices depend on when the policy looked at the cluster
            pricing = Potential(pricing.worth, Slots(pricing.slots.classes), pricing.weights)
        elif isinstance(policy, Fgd):
            pricing = Fgd().refresh(cluster)
        self.pricing, self.prefers_free_gpus = pricing, policy.prefers_free_gpus

    def refresh(self, cluster: Cluster) -> Binpack:
        return self.pricing  # type: ignore[return-value]


@given(st.data(), st.sampled_from(sorted(POLICIES)), st.sampled_from([1, 150]))
def test_kept_scores_are_those_of_a_new_engine(data: st.DataObject, policy: str, at_once: int) -> None:
    """After any history, of nodes too. What was taken is free again at the end, and nothing more. Where fewer rows are
    looked at than there are, another place may be chosen; where there is one, one is found."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("gpuplane.cluster.engine.engine.ROWS_PER_REPRICING", at_once)
        _play_a_history(data, policy, is_exact=at_once > 1)


def _play_a_history(data: st.DataObject, policy: str, *, is_exact: bool) -> None:
    nodes = {"a": 2, "b": 3, "c": 1}
    mig = Gpu("m", "A100", 80 * GIB, is_partitioned=True, profiles={"1g.10gb": 2, "2g.20gb": 1})

    def described(name: str) -> Node:
        found = node(name, nodes.get(name, 4), link_group=data.draw(st.integers(0, 1)))
        taints, labels = data.draw(st.sampled_from([(), (TAINT,)])), data.draw(st.sampled_from([{}, {"zone": "x"}]))
        others = {"pods": 20, **({} if name == "a" else {"x/nic": 20})}
        is_open = data.draw(OFTEN)
        return found.but(gpus=(*found.gpus, mig), taints=taints, labels=labels, is_schedulable=is_open, others=others)

    cluster = Cluster([described(name) for name in nodes])
    engine, taken = Engine(cluster, make_policy(policy)), list[tuple[Request, Placement]]()
    known = data.draw(st.lists(REQUESTS, min_size=1, max_size=3))
    for _ in range(data.draw(st.integers(0, 20))):
        event = data.draw(st.sampled_from(["pod", "pod", "pod", "end", "node"]))
        if event == "end" and taken:
            cluster.give_back(*taken.pop(data.draw(st.integers(0, len(taken) - 1))))
        if event == "node":
            name = data.draw(st.sampled_from([*nodes, "d"]))
            if name in cluster.rows and data.draw(st.booleans()):
                cluster.remove_node(name)
                taken = [each for each in taken if each[1].node != name]
            else:
                cluster.put_node(described(name), [each for each in taken if each[1].node == name])
        if event != "pod":
            continue
        wanted = data.draw(st.sampled_from(known))
        found = engine.choose(wanted)
        new = Engine(cluster.copy(), Fixed(engine.policy, cluster))
        if is_exact:
            assert found == new.choose(wanted)
        else:
            assert (found is None) == (new.choose(wanted) is None)
            if data.draw(st.booleans()):
                assert np.array_equal(engine.scores(wanted), new.scores(wanted))
        if found:
            cluster.take(wanted, found)
            taken.append((wanted, found))
    for each in taken:
        cluster.give_back(*each)
    for free, total in ((cluster.cpu_free, cluster.cpu_milli), (cluster.gpu_memory_free, cluster.gpu_memory_mib)):
        assert np.array_equal(free, total)
    assert (cluster.milli_free[cluster.is_usable] == MILLI_PER_GPU).all()
    assert sum(cluster.mig_free(profile).sum() for profile in cluster.profiles) == 3 * cluster.is_partitioned.sum()
