"""How often each request is made: as a configuration or a trace says it, and as requests arrive.

A real cluster has no trace beforehand. So what is said counts as so many arrivals, and arrivals add to it. Policies
ask for the classes of requests: those that differ in what matters to packing.
"""

from collections.abc import Mapping
from typing import NamedTuple

from gpuplane.cluster.model.requests import MILLI_PER_GPU, NO_NODE_RULES, GpuRequest, NodeRules, Request

USUAL_REQUESTS: Mapping[Request, float] = {
    Request(8000, 0, (GpuRequest(count=count, milli=MILLI_PER_GPU),)): 1.0 for count in (1, 2, 4, 8)
}
"""What is expected where nothing is known: whole GPUs, so that room for the large is kept from the beginning."""
MIN_PART_OF_RULES = 0.01
"""The part of all requests that have the same rules for nodes, from which on these make a class of their own: the name
of one node in each pod would make as many classes."""
GROWTH_OF_ARRIVALS = 1.25
"""Arrivals since the last look, as a factor, after which frequencies count as changed."""
MAX_REQUESTS = 2048
"""Different requests that are remembered."""


class RequestClass(NamedTuple):
    """Requests that are alike: CPU, so many GPUs (0: none), milli-GPU of each, the models of GPUs (empty: any), and the
    nodes that they may go to."""

    cpu_milli: int
    gpus: int
    milli: int
    models: frozenset[str]
    nodes: NodeRules = NO_NODE_RULES


class Workload:
    """Requests and their weights. `version` changes when frequencies have."""

    def __init__(self, expected: Mapping[Request, float] = USUAL_REQUESTS, weight: float = 0.0) -> None:
        """`weight`: as how many arrivals what is expected counts; 0: as the sum of its numbers."""
        total = sum(expected.values())
        factor = weight / total if weight and total else 1.0
        self._weights = dict[Request, float]()
        self._total = 0.0  # of all that was ever told or has come
        for request, number in expected.items():
            if number > 0:
                self._add(request, number * factor)
        self._told = self._total
        self.version = 0

    def arrive(self, request: Request, times: float = 1.0) -> None:
        """Count a request: once for each pod, however often it is tried; or as so many."""
        self._add(request, times)
        if self._total >= GROWTH_OF_ARRIVALS * self._told:
            self._told = self._total
            self.version += 1

    def classes(self, memory_mib: int = 0, unit_milli: int = MILLI_PER_GPU) -> dict[RequestClass, float]:
        """Class → its frequency; together 1. `memory_mib`, `unit_milli`: of a usual GPU, for what is asked by these.
        MIG devices count as none."""
        total, by_rules = sum(self._weights.values()), self._by_rules()
        found = dict[RequestClass, float]()
        for request, weight in self._weights.items():
            key = request_class(request, memory_mib, unit_milli)
            if by_rules[request.nodes] < MIN_PART_OF_RULES * total:
                key = key._replace(nodes=NO_NODE_RULES)
            found[key] = found.get(key, 0.0) + weight / total
        return found

    def _add(self, request: Request, weight: float) -> None:
        self._weights[request] = self._weights.get(request, 0.0) + weight
        self._total += weight
        if len(self._weights) > MAX_REQUESTS:
            self._forget()

    def _forget(self) -> None:
        """Half of them stay at most: memory makes no class, what has rare rules counts as if it had none, and of what
        differs then the most frequent stay, of equals those that came last."""
        by_rules, total = self._by_rules(), sum(self._weights.values())
        found = dict[Request, float]()
        for request, weight in self._weights.items():
            rules = request.nodes if by_rules[request.nodes] >= MIN_PART_OF_RULES * total else NO_NODE_RULES
            request = request.but(memory_bytes=0, nodes=rules)
            found[request] = found.get(request, 0.0) + weight
        self._weights = dict(sorted(found.items(), key=lambda item: item[1])[-MAX_REQUESTS // 2 :])

    def _by_rules(self) -> dict[NodeRules, float]:
        """Rules → the weight of all requests that have them."""
        found = dict[NodeRules, float]()
        for request, weight in self._weights.items():
            found[request.nodes] = found.get(request.nodes, 0.0) + weight
        return found


def request_class(request: Request, memory_mib: int, unit_milli: int) -> RequestClass:
    """What a request is to packing, on GPUs of so much memory and milli-GPU of a unit. Of several containers: as many
    GPUs as all together, each as large as the largest."""
    wanted = [each for each in request.gpus if not each.profile]
    milli = max((_milli(each, memory_mib, unit_milli) for each in wanted), default=0)
    models = frozenset[str]().union(*(each.models for each in wanted))
    count = sum(each.count for each in wanted)
    return RequestClass(request.cpu_milli, count, milli if count else 0, models, request.nodes)


def _milli(wanted: GpuRequest, memory_mib: int, unit_milli: int) -> int:
    """Milli-GPU of one GPU, by its time or its memory, whichever is more; 1 at least."""
    by_memory = wanted.memory_percent * MILLI_PER_GPU // 100
    if wanted.memory_mib and memory_mib:
        by_memory = max(by_memory, -(-wanted.memory_mib * MILLI_PER_GPU // memory_mib))
    return max(1, min(MILLI_PER_GPU, max(wanted.milli, by_memory, wanted.units * unit_milli)))
