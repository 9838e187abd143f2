"""Every node has the reason that holds there, and what is said of waiting is true."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.cluster.engine.cluster import Cluster
from gpuplane.cluster.engine.engine import Engine
from gpuplane.cluster.engine.explanation import GpuReason, NodeReason, explain, explain_gpus
from gpuplane.cluster.engine.policies import make_policy
from gpuplane.cluster.model.nodes import Gpu, Node
from gpuplane.cluster.model.pods import Pod
from gpuplane.cluster.model.requests import MILLI_PER_GPU, GpuRequest, NodeRules, Placement, Request, Share

BINPACK = make_policy("binpack")


def gpus(name: str, count: int, **described: object) -> tuple[Gpu, ...]:
    return tuple(Gpu(f"{name}-{index}", "A100", 1000, **described) for index in range(count))  # type: ignore[arg-type]


def wants(cpu: int = 0, **asked: object) -> Pod:
    return Pod("uid", "d/it", Request(cpu, 0, (GpuRequest(**{"milli": MILLI_PER_GPU, **asked}),)), priority=5)  # type: ignore[arg-type]


NODES = (
    Node("closed", 8000, 8000, gpus("closed", 2), is_schedulable=False),
    Node("cpu only", 8000, 8000),
    Node("partitioned", 8000, 8000, gpus("partitioned", 2, is_partitioned=True, profiles={"1g.10gb": 7})),
    Node("pool", 8000, 8000, gpus("pool", 2, resource="nvidia.com/pool"), {"tier": "x"}),
    Node("sick", 8000, 8000, gpus("sick", 2, code="xid-79")),
    Node("small", 1000, 8000, gpus("small", 2)),
)


@pytest.mark.parametrize(
    ("pod", "codes"),
    [
        (wants(), {"closed": "closed", "cpu only": "no-gpus", "partitioned": "partitioned", "sick": "sick"}),
        (wants(cpu=2000), {"small": "too-small", "pool": "chosen", "closed": "closed"}),
        (wants(count=3), dict.fromkeys(("pool", "small", "sick", "partitioned", "cpu only"), "no-gpus")),
        (wants(models=frozenset({"H100"})), {"pool": "model", "sick": "model", "cpu only": "no-gpus"}),
        (wants(ids=frozenset({"small-1"})), {"pool": "id", "small": "chosen", "sick": "id"}),
        (wants(resource="nvidia.com/pool"), {"pool": "chosen", "small": "resource"}),
        (wants(milli=0, profile="1g.10gb", count=2), {"partitioned": "chosen", "pool": "profile", "sick": "sick"}),
        (wants(milli=0, memory_mib=1001), {"pool": "too-small", "small": "too-small"}),
        (wants(milli=0, profile="of no node"), {"partitioned": "profile", "pool": "profile", "cpu only": "no-gpus"}),
    ],
)
def test_each_node_has_its_reason(pod: Pod, codes: dict[str, str]) -> None:
    found = {each.node: each.code for each in explain(Engine(Cluster(NODES), BINPACK), pod).nodes}

    assert set(found) == {each.name for each in NODES}
    assert {name: found[name] for name in codes} == codes


def test_labels_come_before_what_a_node_has() -> None:
    pod = wants()
    pod = pod.but(request=pod.request.but(nodes=NodeRules((("tier", "x"),))))
    found = explain(Engine(Cluster(NODES), BINPACK), pod)

    assert found.counts() == {"chosen": 1, "closed": 1, "labels": 4}
    assert found.nodes[0] == NodeReason("pool", "chosen", found.nodes[0].score)


def test_other_resources_are_short() -> None:
    nodes = [Node(name, 1000, 1000, gpus(name, 2), others={"pods": pods}) for name, pods in (("a", 1), ("b", 2))]
    cluster, pod = Cluster(nodes), wants()
    two = pod.but(request=pod.request.but(others=(("pods", 2),)))
    assert explain(Engine(cluster, BINPACK), two).counts() == {"chosen": 1, "no-others": 1}
    cluster.take(Request(others=(("pods", 1),)), Placement("b"))
    assert explain(Engine(cluster, BINPACK), two).counts() == {"no-others": 1, "others-in-use": 1}


def test_what_is_taken_now_is_told_apart_from_what_is_never_there() -> None:
    cluster = Cluster([Node("a", 2000, 1000, gpus("a", 2)), Node("b", 2000, 1000, gpus("b", 2))])
    both = Share(0, MILLI_PER_GPU, 1000), Share(1, MILLI_PER_GPU, 1000)
    pods = [
        Pod("1", "d/cpu", Request(1500), placement=Placement("a"), priority=1),
        Pod("2", "d/gpu", wants(count=2).request, placement=Placement("b", (both,)), priority=7),
    ]  # fmt: skip
    for each in pods:
        assert each.placement is not None
        cluster.take(each.request, each.placement)
    found = explain(Engine(cluster, BINPACK), wants(cpu=1000), pods)

    assert {each.node: each.code for each in found.nodes} == {"a": "cpu-in-use", "b": "gpus-in-use"}
    assert found.placement is None
    assert found.preemption is not None
    assert [each.name for each in found.preemption.ends] == ["d/cpu"]
    assert found.ending == found.preemption
    found = explain(Engine(cluster, BINPACK), wants(cpu=1000).but(priority=0), pods)
    assert found.preemption is None
    assert found.ending is not None


def test_what_it_would_have_is_told() -> None:
    cluster = Cluster([Node("a", 8000, 1000, gpus("a", 2))])
    cluster.take(wants(milli=600).request, Placement("a", ((Share(1, 600, 600),),)))
    found = explain(Engine(cluster, BINPACK), wants(milli=300))

    assert found.gpus == (GpuReason(0, "a-0", "fits", 1000), GpuReason(1, "a-1", "chosen", 400, 100))


@pytest.mark.parametrize(
    ("asked", "codes"),
    [
        ({}, ["in-use", "fits", "sick", "partitioned"]),
        ({"milli": 400}, ["fits", "fits", "sick", "partitioned"]),
        ({"models": frozenset({"H100"})}, ["model"] * 4),
        ({"ids": frozenset({"a-1", "a-2"})}, ["id", "fits", "sick", "id"]),
        ({"milli": 0, "profile": "1g.10gb"}, ["profile", "profile", "sick", "fits"]),
        ({"milli": 0, "profile": "2g.20gb"}, ["profile", "profile", "sick", "profile"]),
        ({"milli": 0, "memory_mib": 1001}, ["too-small", "too-small", "sick", "partitioned"]),
    ],
)
def test_each_gpu_of_a_node_has_its_reason(asked: dict[str, object], codes: list[str]) -> None:
    well, sick = gpus("a", 2), Gpu("a-2", "A100", 1000, code="xid-79")
    mig = Gpu("a-3", "A100", 1000, is_partitioned=True, profiles={"1g.10gb": 1})
    cluster = Cluster([Node("a", 8000, 1000, (*well, sick, mig)), *NODES])
    holder = Pod("h", "d/holder", wants(milli=600).request, placement=Placement("a", ((Share(0, 600, 600),),)))
    assert holder.placement is not None
    cluster.take(holder.request, holder.placement)
    found = explain_gpus(cluster, wants(**asked).request, "a", [holder])  # type: ignore[arg-type]

    assert [each.code for each in found] == codes
    assert [each.pods for each in found] == [("d/holder",), (), (), ()]
    assert [each.free for each in found] == [400, 1000, None, None]
    with pytest.raises(KeyError):
        explain_gpus(cluster, wants().request, "z")


def test_links_that_are_required_and_not_there() -> None:
    linked = tuple(each.but(link_group=1 + index // 2) for index, each in enumerate(gpus("b", 4)))
    cluster = Cluster([Node("b", 8000, 1000, linked)])

    assert explain(Engine(cluster, BINPACK), wants(count=3, linked="required")).counts() == {"not-linked": 1}
    assert explain(Engine(cluster, BINPACK), wants(count=2, linked="required")).counts() == {"chosen": 1}


REQUESTS = (
    wants(), wants(count=2), wants(milli=400), wants(cpu=3000, milli=100), wants(milli=0, memory_mib=600),
    wants(milli=0, profile="1g.10gb"), wants(models=frozenset({"H100"})), wants(count=2, linked="required"),
)  # fmt: skip


@given(st.integers(0, 2**32), st.sampled_from(["binpack", "spread", "fgd", "waste-price", "waste-price+spread:0.5"]))
def test_waiting_helps_where_something_is_in_use_and_nowhere_else(seed: int, policy: str) -> None:
    random = Random(seed)
    nodes = [
        each.but(gpus=tuple(gpu.but(model=random.choice(("A100", "H100"))) for gpu in each.gpus)) for each in NODES
    ]
    cluster = Cluster(random.sample(nodes, random.randint(1, len(nodes))))
    engine = Engine(cluster, make_policy(policy))
    for _ in range(random.randint(0, 8)):
        asked = random.choice(REQUESTS).request
        if (placement := engine.choose(asked)) is not None:
            cluster.take(asked, placement)
    pod = random.choice(REQUESTS)
    found = explain(Engine(cluster, make_policy(policy)), pod)

    assert {each.node for each in found.nodes} == set(cluster.rows)
    assert (found.placement is not None) == any(each.code == "chosen" for each in found.nodes)
    for each in found.nodes:
        node = cluster.nodes[cluster.rows[each.node]]
        assert node is not None
        alone = Cluster([node])
        fits_empty = Engine(alone, BINPACK).choose(pod.request) is not None
        assert fits_empty == (each.code in ("chosen", "worse", "cpu-in-use", "memory-in-use", "gpus-in-use")), each
        assert (each.score is not None) == (each.code in ("chosen", "worse"))
