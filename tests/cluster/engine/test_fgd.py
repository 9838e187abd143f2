"""Fragmentation is the paper's, and the score and its ties are as described."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.cluster.engine.candidates import candidates
from gpuplane.cluster.engine.cluster import Cluster
from gpuplane.cluster.engine.engine import Engine
from gpuplane.cluster.engine.policies.fgd import Fgd, typical
from gpuplane.cluster.engine.workload import RequestClass, Workload
from gpuplane.cluster.model.nodes import Gpu, Node
from gpuplane.cluster.model.requests import GpuRequest, Request

MODELS = ("A100", "T4")


def request(cpu: int, milli: int = 0, count: int = 1, model: str = "") -> Request:
    models = frozenset([model] if model else [])
    return Request(cpu, 0, (GpuRequest(count=count, milli=milli, models=models),) if milli else ())


def reference(kinds: dict[RequestClass, float], cpu: int, model: str, gpus: list[int]) -> float:
    """Fragmentation of a node, as frag.go computes it."""
    total = 0.0
    for kind, frequency in kinds.items():
        runs = (
            kind.gpus > 0
            and cpu >= kind.cpu_milli
            and (not kind.models or model in kind.models)
            and sum(free >= kind.milli for free in gpus) >= kind.gpus
        )
        total += frequency * sum(free for free in gpus if not runs or free < kind.milli)
    return total


REQUESTS = st.builds(
    request,
    cpu=st.sampled_from([0, 1000, 3000]),
    milli=st.sampled_from([0, 100, 300, 470, 500, 1000]),
    count=st.integers(1, 3),
    model=st.sampled_from(["", *MODELS]),
)


@given(st.dictionaries(REQUESTS, st.integers(1, 5), min_size=1, max_size=6), st.lists(REQUESTS, max_size=8))
def test_fragmentation_is_that_of_the_reference(expected: dict[Request, float], pods: list[Request]) -> None:
    """Before and after each placement, of every node and every GPU that could be taken."""
    workload = Workload(expected)
    kinds = typical(workload.classes())
    cluster = Cluster(
        [Node(f"{size}-{model}", 9000, 0, (Gpu("", model),) * size) for size in (1, 2, 4) for model in MODELS]
    )
    policy = Fgd(workload)
    engine = Engine(cluster, policy)
    for pod in pods:
        found = candidates(cluster, pod, np.arange(len(cluster.nodes)))
        scores = policy.refresh(cluster).score(cluster, pod, found)
        for index, row in enumerate(found.rows):
            node = cluster.nodes[row]
            assert node
            free = [int(cluster.milli_free[row, gpu]) for gpu in range(len(node.gpus))]
            before = reference(kinds, int(cluster.cpu_free[row]), node.gpus[0].model, free)
            for gpu in found.gpus[index]:
                free[gpu] -= pod.gpus[0].milli
            after = reference(kinds, int(cluster.cpu_free[row]) - pod.cpu_milli, node.gpus[0].model, free)
            exact = 100 / (1 + math.exp((after - before) / 1000))
            assert math.isclose(exact, round(exact), abs_tol=1e-6) or math.floor(scores[index]) == math.floor(exact)
        if placement := engine.choose(pod):
            cluster.take(pod, placement)


def test_typical_requests_are_the_most_popular() -> None:
    workload = Workload({request(1000, milli): weight for milli, weight in ((1000, 80), (500, 16), (100, 4))})

    assert {kind.milli: round(frequency, 3) for kind, frequency in typical(workload.classes()).items()} == {
        1000: round(80 / 96, 3),
        500: round(16 / 96, 3),
    }


def test_a_tie_is_won_by_the_best_fit() -> None:
    cluster = Cluster([Node("large", 64000, 0, (Gpu("a"),) * 8), Node("small", 8000, 0, (Gpu("b"),))])
    found = Engine(cluster, Fgd(Workload({request(1000, 1000): 1.0}))).choose(request(1000, 1000))

    assert found and found.node == "small"


def test_what_arrives_becomes_typical() -> None:
    """A policy that is told nothing learns that halves are usual, and keeps them together."""
    policy = Fgd(Workload({}))
    cluster = Cluster([Node("a", 64000, 0, (Gpu("a"), Gpu("b")))])
    engine, half = Engine(cluster, policy), request(1000, 500)
    for _ in range(2):
        policy.workload.arrive(half)
        placement = engine.choose(half)
        assert placement
        cluster.take(half, placement)

    assert cluster.milli_free[0].tolist() == [0, 1000]
