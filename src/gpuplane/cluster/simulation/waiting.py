"""Pods that wait for room, in the order of their arrival. Those with equal requests wait in one line.

Whatever was refused fits nowhere until something is given back. So after a departure only lines are tried whose request
could fit the node that has more room now, each until it is refused.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterator

import numpy as np

from gpuplane.cluster.engine.cluster import Cluster
from gpuplane.cluster.model.requests import Request
from gpuplane.cluster.simulation.pods import TracePod


class Waiting:
    """Who waits. `demand_milli`: what all of them ask for. `first_only`: whether the first holds up all others."""

    def __init__(self, cluster: Cluster, *, first_only: bool) -> None:
        self.demand_milli = 0
        self._cluster, self._first_only = cluster, first_only
        self._lines: dict[Request, deque[tuple[int, TracePod]]] = {}

    def __bool__(self) -> bool:
        return bool(self._lines)

    @property
    def admits_nobody(self) -> bool:
        """Whether a pod that arrives has to wait, though it may fit."""
        return self._first_only and bool(self._lines)

    def append(self, index: int, pod: TracePod) -> None:
        """Have a pod wait; `index`: its place among all that arrive."""
        self._lines.setdefault(pod.request, deque()).append((index, pod))
        self.demand_milli += pod.demand_milli

    def place(self, row: int, try_to_place: Callable[[int, TracePod], bool]) -> None:
        """Place who fits, now that this node has more room; `try_to_place` does it, and says whether it could."""
        heads = [(line[0][0], request) for request, line in self._lines.items()]
        if self._first_only:
            heads = [min(heads, key=lambda each: each[0])] if heads else []
        order = [(index, place, request) for place, (index, request) in enumerate(heads) if self._may_fit(row, request)]
        heapq.heapify(order)
        while order:
            _, place, request = heapq.heappop(order)
            line = self._lines[request]
            index, pod = line[0]
            if not try_to_place(index, pod):
                continue
            self.demand_milli -= pod.demand_milli
            line.popleft()
            if line:
                heapq.heappush(order, (line[0][0], place, request))
            else:
                del self._lines[request]
            if self._first_only and self._lines:
                following = min(self._lines, key=lambda each: self._lines[each][0][0])
                order = [(self._lines[following][0][0], 0, following)]

    def __iter__(self) -> Iterator[tuple[int, TracePod]]:
        for line in self._lines.values():
            yield from line

    def _may_fit(self, row: int, request: Request) -> bool:
        """Whether a request could fit a node."""
        return len(self._cluster.rows_with_enough(np.array([row]), request)) > 0
