"""What has not changed is not looked at again; and what is kept of one cluster is not taken for another's."""

import numpy as np
import pytest

from gpuplane.cluster.engine.arrays import Booleans, Integers, with_rows
from gpuplane.cluster.engine.changes import Changes
from gpuplane.cluster.engine.cluster import Cluster
from gpuplane.cluster.engine.engine import Engine
from gpuplane.cluster.engine.policies import POLICIES, make_policy
from gpuplane.cluster.engine.policies.expected import usual_gpu
from gpuplane.cluster.engine.workload import Workload
from gpuplane.cluster.model.nodes import Gpu, Node
from gpuplane.cluster.model.requests import NO_NODE_RULES, GpuRequest, NodeRules, Placement, Request, Share

GIB = 1024
ZONE = NodeRules((("zone", "x"),))
HALF, WHOLE_ONE = Request(1000, 0, (GpuRequest(milli=500),)), Request(2000, 0, (GpuRequest(milli=1000),))
IN_ZONE = Request(1000, 0, (GpuRequest(milli=300, models=frozenset({"T4"})),), ZONE)
BY_MEMORY = Request(1000, 0, (GpuRequest(memory_mib=20 * GIB),))


def node(name: str, gpus: int = 2, memory: int = 80, model: str = "A100", **labels: str) -> Node:
    return Node(name, 8000, 0, tuple(Gpu(f"{name}-{gpu}", model, memory * GIB) for gpu in range(gpus)), labels)


def workload() -> Workload:
    return Workload({HALF: 3.0, WHOLE_ONE: 2.0, IN_ZONE: 2.0, BY_MEMORY: 1.0, Request(500): 1.0})


def test_changes_since_the_last_look() -> None:
    cluster, every, of_nodes = Cluster([node("a"), node("b")]), Changes(), Changes(of_nodes=True)

    def look(cluster: Cluster) -> tuple[list[int], list[int]]:
        return every.look(cluster).tolist(), of_nodes.look(cluster).tolist()

    assert look(cluster) == ([0, 1], [0, 1])
    assert look(cluster) == ([], [])
    cluster.take(HALF, Placement("b", ((Share(0, 500),),)))
    assert look(cluster) == ([1], [])
    cluster.put_node(node("c"))
    cluster.take(HALF, Placement("b", ((Share(1, 500),),)))
    assert look(cluster) == ([1, 2], [2])
    cluster.remove_node("a")
    assert look(cluster) == ([0], [0])
    other = cluster.copy()
    assert look(other) == ([0, 1, 2], [0, 1, 2])
    assert look(cluster) == ([0, 1, 2], [0, 1, 2])


@pytest.mark.parametrize("wanted", [0, 2, 3, 7])
def test_arrays_have_a_row_for_each_node(wanted: int) -> None:
    array = with_rows(np.arange(6).reshape(3, 2), wanted)

    assert array.tolist() == [[0, 1], [2, 3], [4, 5], *[[0, 0]] * 9][:wanted]


@pytest.mark.parametrize("policy", [*POLICIES, "waste-price:1+fgd:0.5"])
def test_a_policy_that_is_used_on_two_clusters_keeps_them_apart(policy: str) -> None:
    """Each time it scores as one that knows that cluster alone."""
    clusters = [
        Cluster([node("a", 1), node("b", 2, zone="x"), node("c", 4, model="T4")]),
        Cluster([node(name, 4, 80, "T4", zone="x") for name in "abcde"]),
    ]
    shared = make_policy(policy, workload())
    engines = [Engine(cluster, shared) for cluster in clusters]
    for turn in range(12):
        cluster, engine = clusters[turn % 2], engines[turn % 2]
        for request in (HALF, WHOLE_ONE, IN_ZONE, BY_MEMORY):
            alone = Engine(cluster.copy(), make_policy(policy, workload()))
            assert engine.scores(request).tolist() == alone.scores(request).tolist()
            engine = Engine(cluster, shared)
        if placement := engine.choose(HALF):
            cluster.take(HALF, placement)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows `Cluster.is_open` was asked about, call by call."""
    found, is_open = list[int](), Cluster.is_open

    def counted(
        self: Cluster, rows: Integers, rules: NodeRules = NO_NODE_RULES, models: frozenset[str] = frozenset()
    ) -> Booleans:
        found.append(len(rows))
        return is_open(self, rows, rules, models)

    monkeypatch.setattr(Cluster, "is_open", counted)
    return found


@pytest.mark.parametrize("policy", ["fgd", "waste-price"])
def test_a_label_makes_no_new_prices(policy: str, asked: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the node that has it is looked at, and no request."""
    cluster = Cluster([node(str(number)) for number in range(40)])
    engine = Engine(cluster, make_policy(policy, workload()))
    pricing = engine.policy.refresh(cluster)
    assert engine.choose(HALF)
    asked.clear()
    monkeypatch.setattr(Workload, "classes", None)
    cluster.put_node(node("7", zone="x"))
    placement = engine.choose(Request(1000, 0, (GpuRequest(milli=300),), ZONE))

    assert placement
    assert placement.node == "7"
    assert engine.policy.refresh(cluster) is pricing
    assert set(asked) == {1}


@pytest.mark.parametrize("policy", ["fgd", "waste-price"])
def test_a_node_more_of_one_kind_than_of_another_makes_no_new_prices(policy: str) -> None:
    """Half of the GPUs have 40 GiB and half 80: which is usual does not turn over with each node that is replaced."""
    cluster = Cluster([node(str(number), memory=80 if number % 2 else 40) for number in range(40)])
    engine = Engine(cluster, make_policy(policy, workload()))
    pricing, seen = engine.policy.refresh(cluster), list[object]()
    for memory in (80, 40) * 4:
        cluster.put_node(node("0", memory=memory))
        seen.append(engine.policy.refresh(cluster))
    assert all(each is pricing for each in seen)

    for number in range(0, 40, 2):
        cluster.put_node(node(str(number), memory=80))
    assert engine.policy.refresh(cluster) is not pricing


def test_the_usual_gpu_stays_usual_until_most_are_others() -> None:
    forty, eighty = (40 * GIB, 1000), (80 * GIB, 1000)
    cluster = Cluster([node(str(number), 1, 40) for number in range(20)])
    assert usual_gpu(cluster) == forty
    for number in range(11):
        cluster.put_node(node(str(number), 1, 80))
    assert usual_gpu(cluster) == eighty
    assert usual_gpu(cluster, forty) == forty
    assert usual_gpu(cluster, eighty) == eighty
    cluster.put_node(node("11", 1, 80))
    assert usual_gpu(cluster, forty) == eighty
    assert usual_gpu(Cluster(), forty) == (0, 1000)
