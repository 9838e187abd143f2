"""Which pods to move where, so that what is free is of more use. Pure: it moves nothing but in the cluster it is given.

What a cluster is worth is what the policy's pricing says of its nodes. A move is worth what the pod's best place adds,
less what its present one does, with the pod taken away from there. One move alone often gives nothing: a GPU with two
shares is free only when both have left it. So the pods of one GPU are tried together, too, and of all that is tried the
step with the most gain for each move is taken, until so many moves are made or nothing gains.
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from gpuplane.model.value import Value
from gpuplane.placement.candidates import Candidates
from gpuplane.placement.cluster import Cluster
from gpuplane.placement.engine import Engine
from gpuplane.placement.policies.wasteprice import WastePrice
from gpuplane.placement.policies.wasteprice.policy import WASTE, Potential, pricing_to_make_room
from gpuplane.placement.requests import Placement, Request

MOST_TOGETHER = 4
"""Pods of one GPU that are tried as one step."""
LEAST = 0.01
"""Of a GPU's worth: what a move has to gain."""


class Placed(Value):
    """A pod that runs, and what it has."""

    pod: str
    request: Request
    placement: Placement


class Move(Value):
    """One pod, from where to where. `gain`: what the step that it is a part of adds, for each of its moves, by the
    policy; 1 is what a whole GPU is worth that nobody has. `step`: counts steps, whose moves belong together."""

    pod: str
    request: Request
    before: Placement
    after: Placement
    gain: float
    step: int


class Plan(Value):
    """Moves in the order in which they can be made: each fits when those before it are done. `gain`: of all."""

    moves: tuple[Move, ...]
    gain: float


def plan_moves(cluster: Cluster, policy: WastePrice, placed: Iterable[Placed], most: int) -> Plan:
    """At most so many moves; the cluster is as after them. `placed`: the pods that may be moved."""
    return _Planner(cluster, policy, placed).plan(most)


class _Planner:
    def __init__(self, cluster: Cluster, policy: WastePrice, placed: Iterable[Placed]) -> None:
        self.cluster, self.pricing = cluster, pricing_to_make_room(policy, cluster)
        self.engine = Engine(cluster, _Fixed(self.pricing))
        self.placed = {each.pod: each for each in placed if each.request.gpus and not _has_profile(each.request)}

    def plan(self, most: int) -> Plan:
        moves = list[Move]()
        queue = [(-gain, pods) for pods in self._steps() if (gain := self._gain(pods)) > LEAST]
        heapq.heapify(queue)
        seen = {pods: self.cluster.version for _, pods in queue}
        while queue and len(moves) < most:
            _, pods = heapq.heappop(queue)
            if len(pods) > most - len(moves):
                continue
            if seen[pods] != self.cluster.version:  # something has moved since: what is it worth now?
                gain, seen[pods] = self._gain(pods), self.cluster.version
                if gain > LEAST:
                    heapq.heappush(queue, (-gain, pods))
                continue
            moves += self._make(pods, 1 + (moves[-1].step if moves else 0))
        return Plan(tuple(moves), sum(each.gain for each in moves))

    def _steps(self) -> Iterator[tuple[str, ...]]:
        """Each pod, and all pods of a GPU that have no other."""
        of_gpu = dict[tuple[str, int], list[str]]()
        for pod, each in self.placed.items():
            yield (pod,)
            if len(gpus := _gpus(each.placement)) == 1:
                of_gpu.setdefault((each.placement.node, gpus[0]), []).append(pod)
        yield from (tuple(pods) for pods in of_gpu.values() if 2 <= len(pods) <= MOST_TOGETHER)

    def _gain(self, pods: Sequence[str]) -> float:
        """What moving them adds, for each of them; the cluster is left as it was."""
        found = self._try(pods)
        for pod, placement in reversed(found):
            self.cluster.give_back(self.placed[pod].request, placement)
        if len(found) < len(pods):
            self._gained = 0.0
        for pod in pods:
            self.cluster.take(self.placed[pod].request, self.placed[pod].placement)
        return self._gained / len(pods)

    def _make(self, pods: Sequence[str], step: int) -> Iterator[Move]:
        """Move them."""
        found = self._try(pods)
        gain = self._gained / len(pods)
        for pod, placement in found:
            before = self.placed[pod]
            self.placed[pod] = before.but(placement=placement)
            yield Move(pod, before.request, before.placement, placement, gain, step)

    def _try(self, pods: Sequence[str]) -> list[tuple[str, Placement]]:
        """Take them away and place each where it is best now, the largest first; fewer where one finds no place.
        `_gained`: by the pricing, in the worth of a GPU."""
        self._gained = 0.0
        for pod in pods:
            self._gained -= self._give_back(self.placed[pod])
        found = list[tuple[str, Placement]]()
        for pod in sorted(pods, key=lambda pod: -_milli(self.placed[pod].placement)):
            request = self.placed[pod].request
            best = self.engine.best(request)
            if best is None:
                break
            placement, score = best
            self._gained += score / WASTE
            self.cluster.take(request, placement)
            found.append((pod, placement))
        return found

    def _give_back(self, each: Placed) -> float:
        """Take a pod away from its place, and say what it adds there, in the worth of a GPU."""
        cluster, row = self.cluster, self.cluster.rows[each.placement.node]
        gpus = np.array([_gpus(each.placement)])
        rows, after, cpu_after = np.array([row]), cluster.room[row, gpus], cluster.cpu_free[[row]].copy()
        cluster.give_back(each.request, each.placement)
        found = Candidates(rows, gpus, cluster.room[row, gpus], after, cpu_after)
        return float(self.pricing.score(cluster, each.request, found)[0]) / WASTE


class _Fixed:
    """The same pricing for the whole plan."""

    prefers_free_gpus = False

    def __init__(self, pricing: Potential) -> None:
        self._pricing = pricing

    def refresh(self, cluster: Cluster) -> Potential:
        """As it was at the beginning."""
        return self._pricing


def _gpus(placement: Placement) -> list[int]:
    return [share.gpu for part in placement.shares for share in part]


def _milli(placement: Placement) -> int:
    return sum(share.milli for part in placement.shares for share in part)


def _has_profile(request: Request) -> bool:
    return any(each.profile for each in request.gpus)
