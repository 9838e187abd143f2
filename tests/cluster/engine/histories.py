"""Random histories of reservations, held to an account of its own: nothing is given out twice, and nothing is lost."""

from collections import Counter
from random import Random

import numpy as np

from gpuplane.cluster.engine.cluster import Cluster
from gpuplane.cluster.engine.engine import Engine
from gpuplane.cluster.engine.groups import choose_group
from gpuplane.cluster.engine.policies import make_policy
from gpuplane.cluster.engine.reservations import Refused, Reservations, restored
from gpuplane.cluster.model.nodes import Gpu, Node
from gpuplane.cluster.model.requests import MILLI_PER_GPU, GpuRequest, Placement, Request

EVENTS = 24
KINDS = (
    "decide",
    "decide",
    "decide",
    "reserve",
    "reserve",
    "reserve",
    "bind",
    "bind",
    "delete",
    "time",
    "later",
    "again",
)
RARE = ("restart", "node gone", "node comes", "node changes")
SECONDS = 60.0
REQUESTS = (
    Request(1000, 1024, (GpuRequest(milli=500),)),
    Request(1000, 1024, (GpuRequest(milli=300),)),
    Request(1000, 1024, (GpuRequest(milli=MILLI_PER_GPU, count=2),)),
    Request(1000, 1024, (GpuRequest(memory_mib=30 * 1024),)),
    Request(0, 0, (GpuRequest(profile="1g.10gb", count=2),)),
    Request(2500, 1024),
)


class History:
    """What happens, and what each pod was promised by that: a second account, of the answers alone."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.nodes = {name: self.node(name) for name in "abc"}
        self.reservations = Reservations(Cluster(self.nodes.values()), SECONDS)
        self.now = 0.0
        self.decided: list[tuple[list[tuple[str, Request, Placement]], int]] = []
        self.held: dict[str, tuple[Request, Placement, float | None]] = {}
        self.asked: dict[str, Placement] = {}  # as each was decided
        self.pods = 0
        self.stale: set[str] = set()

    def node(self, name: str) -> Node:
        """Of one of a few kinds, its GPUs in any order."""
        gpus = [
            Gpu(f"{name}-{index}", "A100", 80 * 1024, is_partitioned=is_mig, profiles={"1g.10gb": 2} if is_mig else {})
            for index in range(self.random.choice((1, 2, 4)))
            for is_mig in [self.random.random() < 0.1]
        ]
        if self.random.random() < 0.3:
            gpus.append(Gpu(f"{name}-m", "A100", 80 * 1024, is_partitioned=True, profiles={"1g.10gb": 3}))
        self.random.shuffle(gpus)
        return Node(name, self.random.choice((4000, 8000)), 64 * 1024, tuple(gpus))

    def play(self) -> Counter[str]:
        """All of it, checked after each event; gives how often each answer was given. Raises AssertionError."""
        answers = Counter[str]()
        for _ in range(EVENTS):
            kind = self.random.choice(RARE) if self.random.random() < 0.12 else self.random.choice(KINDS)
            try:
                getattr(self, kind.replace(" ", "_"))()
                answers[kind] += 1
            except Refused as error:
                answers[error.code] += 1
            self.forget_expired()
            self.check()
        for pod in list(self.held):
            assert self.reservations.release(pod)
            del self.held[pod]
        self.check()
        return answers

    def decide(self) -> None:
        """About a pod, or a group of pods that start together."""
        cluster = self.reservations.cluster
        requests = self.random.choices(REQUESTS, k=self.random.choice((1, 1, 2, 3)))
        engine = Engine(cluster, make_policy("binpack"), self.random)
        free = [each.copy() for each in cluster.gpu_free]
        placements = choose_group(engine, requests).placements
        assert all(map(np.array_equal, free, cluster.gpu_free))
        assert len(placements) in (0, len(requests))
        if placements:
            names = [f"pod-{self.pods + index}" for index in range(len(requests))]
            self.decided.append(([*zip(names, requests, placements, strict=True)], cluster.version))
            self.pods += len(requests)

    def reserve(self) -> None:
        if self.decided:
            group, seen = self.decided.pop(self.random.randrange(len(self.decided)))
            found = self.reservations.reserve_group(group, seen, self.now)
            assert not self.stale.intersection(pod for pod, *_ in group)
            for (pod, request, placement), reservation in zip(group, found, strict=True):
                assert reservation.expires is not None
                self.held[pod] = request, placement, reservation.expires
                self.asked[pod] = placement

    def again(self) -> None:
        """Who did not hear the answer asks again, with the picture of then."""
        if pod := self.any_pod():
            request, placement, expires = self.held[pod]
            said = self.random.choice((placement, self.asked[pod]))
            found = self.reservations.reserve(pod, request, said, 0, self.now)
            assert (found.placement, found.expires) == (placement, expires)

    def bind(self) -> None:
        pod = self.any_pod() or "pod-none"
        self.reservations.bind(pod, self.now)
        request, placement, expires = self.held[pod]
        assert expires is None or expires > self.now
        self.held[pod] = request, placement, None

    def delete(self) -> None:
        if pod := self.any_pod():
            assert self.reservations.release(pod)
            del self.held[pod]
        assert not self.reservations.release("pod-none")

    def time(self) -> None:
        self.now += self.random.choice((1.0, 30.0, 60.0))
        ended = {each.pod for each in self.reservations.expire(self.now)}
        assert ended == {pod for pod, (*_, expires) in self.held.items() if expires is not None and expires <= self.now}

    def later(self) -> None:
        """Time passes, and nobody looks for what has expired."""
        self.now += 45.0

    def restart(self) -> None:
        """What was not bound is lost; what was is taken over, in any order."""
        bound = [(pod, *held[:2]) for pod, held in self.held.items() if held[2] is None]
        self.random.shuffle(bound)
        version = self.reservations.cluster.version
        self.reservations, refused = restored(self.nodes.values(), bound, version, SECONDS)
        assert not refused
        self.held = {pod: held for pod, held in self.held.items() if held[2] is None}
        self.asked |= {pod: held[1] for pod, held in self.held.items()}  # as they are told now
        self.stale = {pod for group, _ in self.decided for pod, *_ in group}  # their pictures are of another life

    def node_gone(self) -> None:
        if self.nodes:
            name = self.random.choice(sorted(self.nodes))
            del self.nodes[name]
            ended = {each.pod for each in self.reservations.remove_node(name)}
            assert ended == {pod for pod, (_, placement, _) in self.held.items() if placement.node == name}
            self.held = {pod: held for pod, held in self.held.items() if pod not in ended}

    def node_comes(self) -> None:
        name = self.random.choice("abcd")
        if name not in self.nodes:
            self.nodes[name] = self.node(name)
            assert not self.reservations.put_node(self.nodes[name])

    def node_changes(self) -> None:
        """Its GPUs are others, or in another order. Whoever loses one is told; the others have what they had, by id."""
        if self.nodes:
            name = self.random.choice(sorted(self.nodes))
            before, after = self.nodes[name], self.node(name)
            self.nodes[name] = after
            ended = {each.pod for each in self.reservations.put_node(after)}
            for pod, (request, placement, expires) in [*self.held.items()]:
                if placement.node == name and pod in ended:
                    del self.held[pod]
                elif placement.node == name:
                    now = self.reservations.by_pod[pod].placement
                    assert ids(now, after) == ids(placement, before)
                    self.held[pod] = request, now, expires

    def any_pod(self) -> str:
        return self.random.choice(sorted(self.held)) if self.held else ""

    def forget_expired(self) -> None:
        """Every call may have freed what had expired; nothing else."""
        gone = self.held.keys() - self.reservations.by_pod.keys()
        for pod in gone:
            expires = self.held.pop(pod)[2]
            assert expires is not None
            assert expires <= self.now

    def check(self) -> None:
        """What is free is what nodes have, less what is held; and nobody holds what is not there."""
        cluster = self.reservations.cluster
        assert self.reservations.by_pod.keys() == self.held.keys()
        assert cluster.rows.keys() == self.nodes.keys()
        for name, node in self.nodes.items():
            row, used, milli, memory, devices = cluster.rows[name], [0, 0], [0] * 8, [0] * 8, [0] * 8
            for request, placement, _ in self.held.values():
                if placement.node == name:
                    used[0] += request.cpu_milli
                    used[1] += request.memory_bytes
                    for share in (share for part in placement.shares for share in part):
                        milli[share.gpu] += share.milli
                        memory[share.gpu] += share.memory_mib
                        devices[share.gpu] += share.profile != ""
            assert (cluster.cpu_free[row], cluster.memory_free[row]) == (
                node.cpu_milli - used[0],
                node.memory_bytes - used[1],
            )
            assert min(cluster.cpu_free[row], cluster.memory_free[row]) >= 0
            for index, gpu in enumerate(node.gpus):
                assert 0 <= cluster.milli_free[row, index] == MILLI_PER_GPU - milli[index]
                assert 0 <= cluster.gpu_memory_free[row, index] == gpu.memory_mib - memory[index]
                if gpu.profiles:
                    left = cluster.mig_free("1g.10gb")[row, index]
                    assert 0 <= left == gpu.profiles["1g.10gb"] - devices[index]


def ids(placement: Placement, node: Node) -> list[str]:
    return [node.gpus[share.gpu].id for part in placement.shares for share in part]
