"""What pods have been promised of the cluster: reserved by a decision, then bound. Pure: the time is handed in.

A decision is made of a picture of the cluster. `reserve` takes it only if its node has not changed since that picture
(compare and swap by the row's version), so two that decide at once, or one that was slow, never give a thing out twice.
Who decides again after a refusal sees the node as it is. What is reserved and never bound is free again after a time.

Nothing else takes from the cluster: what is free is always what nodes have, less what pods are promised here.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from gpuplane.base.value import Value
from gpuplane.cluster.engine.cluster import Cluster, OverCommitted
from gpuplane.cluster.model.nodes import Node
from gpuplane.cluster.model.requests import Placement, Request

RESERVATION_SECONDS = 60.0
"""For which a reservation holds that is not bound."""

RefusalCode = Literal["node-gone", "node-changed", "no-room", "pod-known", "pod-unknown", "expired"]


class Refused(Exception):
    """Nothing was changed, but that what had expired is free again. Programs compare `code`."""

    def __init__(self, code: RefusalCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class Reservation(Value):
    """What a pod is promised. `pod`: its UID. `expires`: when it is free again, in the seconds of whoever asks; None:
    it is bound, and ends with the pod. `decided`: the placement of the decision, where the node's GPUs have other
    places since."""

    pod: str
    request: Request
    placement: Placement
    expires: float | None
    decided: Placement | None = None

    def is_of(self, request: Request, placement: Placement) -> bool:
        """Whether it is the promise of this decision."""
        return self.request == request and placement in (self.placement, self.decided)


class Reservations:
    """All promises of one cluster, which nobody else may change."""

    def __init__(self, cluster: Cluster, seconds: float = RESERVATION_SECONDS) -> None:
        self.cluster, self._seconds = cluster, seconds
        self._by_pod: dict[str, Reservation] = {}
        self._by_node: dict[str, dict[str, None]] = {}
        self._deadlines: list[tuple[float, str]] = []

    @property
    def by_pod(self) -> Mapping[str, Reservation]:
        """Pod's UID → what it is promised."""
        return self._by_pod

    def reserve(self, pod: str, request: Request, placement: Placement, seen: int, now: float) -> Reservation:
        """Promise a decision to a pod. `seen`: `Cluster.version` of the picture that it was made of.

        The same again is the same promise, for as long as it held. Raises Refused: `pod-known` for another promise to
        the same pod, `node-gone`, `node-changed`, `no-room`.
        """
        return self.reserve_group([(pod, request, placement)], seen, now)[0]

    def reserve_group(
        self, decisions: Sequence[tuple[str, Request, Placement]], seen: int, now: float
    ) -> tuple[Reservation, ...]:
        """Promise decisions to pods that start together: all of them, or none. `decisions`: (pod, request, placement);
        they were made of one picture, each with those before it taken. Raises Refused, as `reserve` does."""
        self.expire(now)
        found = dict[str, Reservation]()
        for pod, request, placement in decisions:
            known = self._by_pod.get(pod) or found.get(pod)
            if known is not None and not known.is_of(request, placement):
                raise Refused("pod-known", f"pod {pod} is promised GPUs of node {known.placement.node} already")
            if known is None:
                row = self.cluster.rows.get(placement.node)
                if row is None:
                    raise Refused("node-gone", f"node {placement.node} is not there: decide again")
                if not self.cluster.changed_at[row] <= seen <= self.cluster.version:
                    raise Refused("node-changed", f"node {placement.node} has changed since the decision: decide again")
            found[pod] = known or Reservation(pod, request, placement, now + self._seconds)
        taken = list[str]()
        try:
            for pod, each in found.items():
                if pod not in self._by_pod:
                    self._take(each)
                    taken.append(pod)
        except Refused:
            for pod in taken:
                self.release(pod)
            raise
        for pod in taken:
            heapq.heappush(self._deadlines, (now + self._seconds, pod))
        return tuple(found[pod] for pod, _, _ in decisions)

    def bind(self, pod: str, now: float) -> Reservation:
        """The pod is on its node: the promise ends with the pod. Raises Refused: `expired`, `pod-unknown`."""
        known = self._by_pod.get(pod)
        if known is not None and known.expires is not None and known.expires <= now:
            self.expire(now)
            raise Refused("expired", f"what was reserved for pod {pod} is free again since {now - known.expires:.1f} s")
        if known is None:
            raise Refused("pod-unknown", f"nothing is reserved for pod {pod}: decide again")
        self._by_pod[pod] = bound = known.but(expires=None)
        return bound

    def release(self, pod: str) -> bool:
        """The pod has ended, or is given up: what it was promised is free. Whether there was anything."""
        known = self._by_pod.pop(pod, None)
        if known is None:
            return False
        self._forget(known)
        self.cluster.give_back(known.request, known.placement)
        return True

    def expire(self, now: float) -> list[Reservation]:
        """Free what was not bound in time, and say what that was."""
        ended = []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, pod = heapq.heappop(self._deadlines)
            known = self._by_pod.get(pod)
            if known is not None and known.expires is not None and known.expires <= now:
                self.release(pod)
                ended.append(known)
        return ended

    def adopt(self, pod: str, request: Request, placement: Placement) -> Reservation:
        """Take over what a pod has already, as after a restart. Raises Refused: `pod-known`, `node-gone`, `no-room`."""
        if pod in self._by_pod:
            raise Refused("pod-known", f"pod {pod} is known already")
        reservation = Reservation(pod, request, placement, None)
        self._take(reservation)
        return reservation

    def put_node(self, node: Node) -> list[Reservation]:
        """A node has come, or is described anew: GPUs are known again by their ids. Gives the promises that it cannot
        hold any more: a GPU of theirs is gone, smaller, or partitioned; or sick, if they are not bound. They are ended;
        bound ones stay before reserved ones."""
        held = self._of_node(node.name)
        row = self.cluster.rows.get(node.name)
        before = None if row is None else self.cluster.nodes[row]
        places = {gpu.id: index for index, gpu in enumerate(node.gpus)}
        moved = {each.pod: _moved(each, before, places) for each in held}
        self.cluster.put_node(node)
        ended = []
        for each in sorted(held, key=lambda each: each.expires is not None):
            self._forget(self._by_pod.pop(each.pod))
            placement = moved[each.pod]
            try:
                if placement is None or not _is_given_out(each, placement, node):
                    raise Refused("no-room", "")
                self._take(each.but(placement=placement, decided=each.decided or each.placement))
            except Refused:
                ended.append(each)
        return ended

    def remove_node(self, name: str) -> list[Reservation]:
        """A node has gone, and all that was promised of it. Raises KeyError where there is no such node."""
        ended = self._of_node(name)
        self.cluster.remove_node(name)
        for each in ended:
            self._forget(self._by_pod.pop(each.pod))
        return ended

    def _of_node(self, name: str) -> list[Reservation]:
        return [self._by_pod[pod] for pod in self._by_node.get(name, ())]

    def _take(self, reservation: Reservation) -> None:
        """Raises Refused."""
        try:
            self.cluster.take(reservation.request, reservation.placement)
        except OverCommitted as error:
            is_there = reservation.placement.node in self.cluster.rows
            raise Refused("no-room" if is_there else "node-gone", str(error)) from None
        self._by_pod[reservation.pod] = reservation
        self._by_node.setdefault(reservation.placement.node, {})[reservation.pod] = None

    def _forget(self, reservation: Reservation) -> None:
        """It is of its node no more."""
        pods = self._by_node[reservation.placement.node]
        del pods[reservation.pod]
        if not pods:
            del self._by_node[reservation.placement.node]


def restored(
    nodes: Iterable[Node],
    pods: Iterable[tuple[str, Request, Placement]],
    version: int,
    seconds: float = RESERVATION_SECONDS,
) -> tuple[Reservations, dict[str, Refused]]:
    """The promises after a restart, from the nodes and from what their pods have; and the pods that do not fit, with
    the reason. What was reserved and not bound is lost, which is as if it had expired.

    `version`: from which on the cluster counts its versions. With one that no life before has reached, as milliseconds
    since 1970, a decision that was made of their pictures is refused with `node-changed`.
    """
    reservations, refused = Reservations(Cluster(nodes, version), seconds), dict[str, Refused]()
    for pod, request, placement in pods:
        try:
            reservations.adopt(pod, request, placement)
        except Refused as error:
            refused[pod] = error
    return reservations, refused


def _is_given_out(reservation: Reservation, placement: Placement, node: Node) -> bool:
    """Whether its GPUs are still given out as they were promised: whole or as MIG devices; and to who is not bound yet,
    only while they are well."""
    for share in placement.all_shares:
        gpu = node.gpus[share.gpu]
        if bool(share.profile) != gpu.is_partitioned or (gpu.code and reservation.expires is not None):
            return False
    return True


def _moved(reservation: Reservation, before: Node | None, places: Mapping[str, int]) -> Placement | None:
    """The placement by the new places of its GPUs; None where one is gone."""
    if before is None:
        return None
    shares = []
    for part in reservation.placement.shares:
        known = [(share, places.get(before.gpus[share.gpu].id)) for share in part]
        if any(place is None for _, place in known):
            return None
        shares.append(tuple(share.but(gpu=place) for share, place in known))
    return reservation.placement.but(shares=tuple(shares))
