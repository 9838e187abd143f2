"""Which pods to move where, so that what is free is of more use. Pure: it moves nothing but in the cluster it is given.

A move gains what it makes usable to the expected requests (usable.py): where the pod leaves, less where it goes. Pods
without GPUs move, too: GPUs are idle where others have the CPU. One move alone often gains nothing: a GPU with two
shares is free only when both have left it, and a request for eight GPUs fits when the eighth is free. So the pods of
one GPU are tried together, and those of as many GPUs of a node as a request wants. Of all that is tried the step with
the most gain for each move is taken; when none gains any more, all are tried once again as things are then. It ends
when so many moves are made, or nothing gains. No pod moves twice.
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from gpuplane.base.value import Value
from gpuplane.cluster.engine.cluster import Cluster, OverCommitted
from gpuplane.cluster.engine.engine import Engine
from gpuplane.cluster.engine.policies.wasteprice import WastePrice
from gpuplane.cluster.engine.usable import UsableGpus
from gpuplane.cluster.model.requests import MILLI_PER_GPU, Placement, Request

MAX_PODS_PER_STEP = 8
"""Pods that are tried as one step."""
GAIN_ERROR = 1e-9
"""GPUs by which sums of gains may be wrong."""
MIN_GAIN = 0.1
"""GPUs that a move has to make usable: for less no pod should start again."""


class Placed(Value):
    """A pod that runs, and what it has."""

    pod: str
    request: Request
    placement: Placement


class Move(Value):
    """One pod, from where to where. `gain`: GPUs that the step which it is a part of makes usable, for each of its
    moves. `step`: counts steps, whose moves belong together."""

    pod: str
    request: Request
    before: Placement
    after: Placement
    gain: float
    step: int


class Plan(Value):
    """Moves, step by step in the order in which they can be made: the pods of a step end before they start again.
    `gain`: of all. `least`: where nothing moves, how many moves the smallest step has that would gain, and is not made
    because these are too many; 0: there is none."""

    moves: tuple[Move, ...]
    gain: float
    least: int = 0


def plan_moves(cluster: Cluster, policy: WastePrice, placed: Iterable[Placed], most: int) -> Plan:
    """At most so many moves; the cluster is as after them. `placed`: the pods that may be moved; `policy`: the one
    whose requests are expected."""
    return _Planner(cluster, policy, placed).plan(most)


def usable_to(policy: WastePrice, cluster: Cluster) -> UsableGpus:
    """What is usable to the requests that a policy expects."""
    pricing = policy.refresh(cluster)
    return UsableGpus(cluster, policy.frequency, pricing.worth)


class _Planner:
    def __init__(self, cluster: Cluster, policy: WastePrice, placed: Iterable[Placed]) -> None:
        self.cluster, self.usable = cluster, usable_to(policy, cluster)
        self.counts = sorted({each.gpus for each in policy.frequency if each.gpus > 1})
        self.engine = Engine(cluster, _Fixed(self.usable))
        self.placed = {each.pod: each for each in placed if not each.request.asks_for_mig}  # and has not moved yet
        self.moves = list[Move]()

    def plan(self, most: int) -> Plan:
        while True:
            before = len(self.moves)
            left_out = self._make_steps(most)
            if len(self.moves) in (before, most):
                least = 0 if self.moves else min(left_out, default=0)
                return Plan(tuple(self.moves), sum(each.gain for each in self.moves), least)

    def _make_steps(self, most: int) -> list[int]:
        """Try all steps, and make those that gain, the best first. Gives the moves of each that are too many."""
        queue = [(-gain, pods) for pods in self._steps() if (gain := self._gain(pods)) > MIN_GAIN]
        heapq.heapify(queue)
        seen = dict.fromkeys((pods for _, pods in queue), len(self.moves))  # how many moves were made when it was tried
        left_out = list[int]()
        while queue:
            _, pods = heapq.heappop(queue)
            if not all(pod in self.placed for pod in pods):
                continue
            if len(pods) > most - len(self.moves):
                left_out.append(len(pods))
                continue
            if seen[pods] != len(self.moves):  # something has moved since: what is it worth now?
                gain, seen[pods] = self._gain(pods), len(self.moves)
                if gain > MIN_GAIN:
                    heapq.heappush(queue, (-gain, pods))
                continue
            self._make(pods)
        return left_out

    def _steps(self) -> Iterator[tuple[str, ...]]:
        """Each pod; all pods of a GPU; and of a node, those of as many GPUs as a request for several wants."""
        by_gpu = dict[str, dict[int, set[str]]]()
        for pod, each in self.placed.items():
            yield (pod,)
            for share in each.placement.all_shares:
                by_gpu.setdefault(each.placement.node, {}).setdefault(share.gpu, set()).add(pod)
        found = dict[frozenset[str], None]()
        for node, gpus in by_gpu.items():
            row, together = self.cluster.rows[node], set[str]()
            free = int((self.cluster.room[row] == MILLI_PER_GPU).sum())
            for gpu in sorted(gpus, key=lambda gpu: (len(gpus[gpu]), gpu)):
                together |= gpus[gpu]
                free += 1
                found[frozenset(gpus[gpu])] = None
                if any(free % count == 0 for count in self.counts):
                    found[frozenset(together)] = None
        yield from (tuple(sorted(pods)) for pods in found if 2 <= len(pods) <= MAX_PODS_PER_STEP)

    def _gain(self, pods: Sequence[str]) -> float:
        """What moving them adds, for each that moves; the cluster is left as it was."""
        found, gained = self._try(pods)
        for pod, placement in found:
            self.cluster.give_back(self.placed[pod].request, placement)
        for pod in pods:
            self.cluster.hold(self.placed[pod].request, self.placed[pod].placement)
        moving = sum(placement != self.placed[pod].placement for pod, placement in found)
        return gained / moving if moving and len(found) == len(pods) else 0.0

    def _make(self, pods: Sequence[str]) -> None:
        """Move them."""
        found, gained = self._try(pods)
        moving = [(self.placed[pod], after) for pod, after in found if after != self.placed[pod].placement]
        step = 1 + (self.moves[-1].step if self.moves else 0)
        for each, after in moving:
            del self.placed[each.pod]
            self.moves.append(Move(each.pod, each.request, each.placement, after, gained / len(moving), step))

    def _try(self, pods: Sequence[str]) -> tuple[list[tuple[str, Placement]], float]:
        """Take them away and place each where it is best now, the largest first; fewer where one finds no place. Gives
        the places, and how many GPUs are usable more."""
        rows = np.array([*{self.cluster.rows[self.placed[pod].placement.node] for pod in pods}])
        before = self.usable.of(self.cluster, rows).sum()
        for pod in pods:
            self.cluster.give_back(self.placed[pod].request, self.placed[pod].placement)
        gained = float(self.usable.of(self.cluster, rows).sum() - before)
        found = list[tuple[str, Placement]]()
        for pod in sorted(pods, key=lambda pod: -self.placed[pod].placement.gpu_milli):
            if (place := self._place(self.placed[pod])) is None:
                break
            found.append((pod, place[0]))
            gained -= place[1]
        return found, gained

    def _place(self, pod: Placed) -> tuple[Placement, float] | None:
        """Where a pod takes least, and how much; where it was, if that is no worse. Taken by that; None: nowhere."""
        goes, stays = self.engine.choose(pod.request), self._take(pod.request, pod.placement)
        if goes is None or goes == pod.placement:
            return None if stays is None else (pod.placement, stays)
        if stays is not None:
            self.cluster.give_back(pod.request, pod.placement)
        taken = self._take(pod.request, goes)
        assert taken is not None
        if stays is None or taken < stays - GAIN_ERROR:
            return goes, taken
        self.cluster.give_back(pod.request, goes)
        self.cluster.take(pod.request, pod.placement)
        return pod.placement, stays

    def _take(self, request: Request, placement: Placement) -> float | None:
        """Take a place, and how many GPUs are usable less by that; None: there is no room."""
        row = np.array([self.cluster.rows[placement.node]])
        before = float(self.usable.of(self.cluster, row)[0])
        try:
            self.cluster.take(request, placement)
        except OverCommitted:
            return None
        return before - float(self.usable.of(self.cluster, row)[0])


class _Fixed:
    """The same pricing for the whole plan."""

    prefers_free_gpus = False

    def __init__(self, pricing: UsableGpus) -> None:
        self._pricing = pricing

    def refresh(self, cluster: Cluster) -> UsableGpus:
        """As it was at the beginning."""
        return self._pricing
