"""A small cluster and its pods."""

from random import Random

from gpuplane.cluster.model.nodes import Gpu, Node
from gpuplane.cluster.model.requests import MILLI_PER_GPU, GpuRequest, Request
from gpuplane.cluster.simulation.pods import TracePod

SHARES = ((810, 1), (470, 1), (320, 1), (MILLI_PER_GPU, 1), (MILLI_PER_GPU, 2), (MILLI_PER_GPU, 4), (0, 0))


def node(name: str, gpus: int, model: str = "A", cpu: int = 64_000) -> Node:
    return Node(name, cpu, 256_000, tuple(Gpu(f"{name}/{index}", model) for index in range(gpus)))


def pod(name: str, milli: int, count: int = 1, lifetime: float | None = None, cpu: int = 1000) -> TracePod:
    gpus = (GpuRequest(count=count, milli=milli),) if milli else ()
    return TracePod(name, Request(cpu, 1000, gpus), milli * count, lifetime)


def some_nodes(seed: int, count: int = 6) -> list[Node]:
    random = Random(seed)
    return [node(f"n{each}", random.choice([0, 1, 2, 4, 8]) if each else 4) for each in range(count)]


def some_pods(seed: int, count: int = 40) -> list[TracePod]:
    """The first asks for a share, and for a time."""
    random = Random(seed)
    return [
        pod(f"p{each}", milli, gpus, float(random.randrange(100) if each else 50), random.choice([1000, 8000]))
        for each in range(count)
        for milli, gpus in [random.choice(SHARES) if each else SHARES[0]]
    ]
