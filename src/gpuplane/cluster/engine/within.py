"""Whether a pod fits on one node, and where: exact, also for several containers that want GPUs each.

Containers of a pod may have shares of one GPU; the GPUs of one container are different ones. The search tries the
fullest GPUs first, and of those that are alike one. It gives up after `MAX_TRIES`: a pod that is not found a place by
then counts as one that does not fit. A node of 16 GPUs needs far fewer.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from gpuplane.cluster.engine.cluster import Cluster
from gpuplane.cluster.engine.dimensions import GPU_MILLI, fits
from gpuplane.cluster.model.requests import MILLI_PER_GPU, GpuRequest, Placement, Request, Share, share_of

MAX_TRIES = 20_000
"""Sets of GPUs that are tried for one pod on one node."""


def place_within(cluster: Cluster, row: int, request: Request) -> Placement | None:
    """A place on the node of this row; None where the request does not fit there."""
    node = cluster.nodes[row]
    if node is None or not cluster.has_room(np.asarray([row]), request)[0]:
        return None
    found = place_parts(cluster, row, request.gpus)
    return None if found is None else Placement(node.name, found)


def place_parts(cluster: Cluster, row: int, parts: Sequence[GpuRequest]) -> tuple[tuple[Share, ...], ...] | None:
    """The GPUs of a node for parts of a request, whatever else the node has; None where they do not fit."""
    return _Search(cluster, row, parts).run() if parts else ()


class _Search:
    """The GPUs of one node while parts of a request are tried on them."""

    def __init__(self, cluster: Cluster, row: int, parts: Sequence[GpuRequest]) -> None:
        rows, node = np.asarray([row]), cluster.nodes[row]
        assert node is not None
        self.parts = parts
        count, kinds = len(node.gpus), dict.fromkeys(parts)
        self.shares = {each: [share_of(gpu, place, each) for place, gpu in enumerate(node.gpus)] for each in kinds}
        suits: dict[GpuRequest, list[bool]] = {each: cluster.fits(rows, each)[0, :count].tolist() for each in kinds}
        needs = {each: [tuple(cluster.gpu_needs(share)) for share in self.shares[each]] for each in kinds}
        self.fits = [suits[each] for each in parts]
        self.needs = [needs[each] for each in parts]  # of each GPU
        self.free: list[list[int]] = [each[row, :count].tolist() for each in cluster.gpu_free]  # by dimension
        self.groups: list[int] = cluster.link_group[row, :count].tolist()
        self.used = sorted({dimension for each in needs.values() for of_gpu in each for dimension, _ in of_gpu})
        self.alike = list(zip(*suits.values(), *needs.values(), strict=True))
        larger = {each.profile: cluster.profiles_from(each.profile) for each in parts if each.profile}
        self.larger = [larger.get(each.profile, ()) for each in parts]  # dimensions of this and of larger profiles
        self.chosen: list[Sequence[int]] = [()] * len(parts)
        self.steps = MAX_TRIES
        urgency = {each: _urgency(each, suits[each], needs[each]) for each in suits}
        self.order = sorted(range(len(parts)), key=lambda part: (urgency[parts[part]], part))
        last = dict[GpuRequest, int]()
        self.twin: dict[int, int | None] = {}  # part → the one like it that is placed last before it
        for part in self.order:
            self.twin[part] = last.get(parts[part])
            last[parts[part]] = part
        self.ranks = {each: self._ranks(last[each]) for each in last}

    def _ranks(self, part: int) -> list[int]:
        """The place of each GPU in the order in which a part tries them at the beginning."""
        order = sorted(range(len(self.groups)), key=self._preference(part))
        return [order.index(gpu) for gpu in range(len(order))]

    def run(self) -> tuple[tuple[Share, ...], ...] | None:
        if not self._has_enough() or not self._place_all():
            return None
        return tuple(
            tuple(self.shares[wanted][gpu] for gpu in sorted(gpus))
            for wanted, gpus in zip(self.parts, self.chosen, strict=True)
        )

    def _has_enough(self) -> bool:
        """Whether all GPUs together have as much as all parts want: to find out by trying takes all steps. A GPU of
        which pods hold more than there is has nothing."""
        wanted = Counter[int]()
        for part, number in Counter(self.parts).items():
            place, least = self.parts.index(part), dict[int, int]()
            fitting = [needs for suits, needs in zip(self.fits[place], self.needs[place], strict=True) if suits]
            if not fitting:
                return False
            for dimension, amount in (each for needs in fitting for each in needs):
                least[dimension] = min(amount, least.get(dimension, amount))
            for dimension, amount in least.items():
                wanted[dimension] += number * part.count * amount
        return all(sum(max(free, 0) for free in self.free[each]) >= amount for each, amount in wanted.items())

    def _place_all(self) -> bool:
        """Depth first, without recursion: a pod may ask for a thousand MIG devices, each of them a part."""
        tried = [self._sets(self.order[0])]  # of each part that has a set now, and of the one to place: those to come
        while True:
            part = self.order[len(tried) - 1]
            gpus = next(tried[-1], None)
            if gpus is not None:
                self.steps -= 1
                if self.steps < 0:
                    return False
                self._move(part, gpus, -1)
                self.chosen[part] = gpus
                if len(tried) == len(self.order):
                    return True
                tried.append(self._sets(self.order[len(tried)]))
                continue
            tried.pop()
            if not tried:
                return False
            part = self.order[len(tried) - 1]
            self._move(part, self.chosen[part], 1)

    def _move(self, part: int, gpus: Sequence[int], sign: int) -> None:
        for gpu in gpus:
            for dimension, amount in self.needs[part][gpu]:
                self.free[dimension][gpu] += sign * amount

    def _sets(self, part: int) -> Iterator[list[int]]:
        """The sets of GPUs that this part could have now; linked ones first, if it wants them so."""
        wanted = self.parts[part]
        suits = zip(self.fits[part], self.needs[part], strict=True)
        fitting = [gpu for gpu, (suits, needs) in enumerate(suits) if fits(self.free, gpu, needs, suits)]
        if wanted.count == 1 and (twin := self.twin[part]) is not None:  # of two that are alike no order is tried twice
            ranks = self.ranks[wanted]
            fitting = [gpu for gpu in fitting if ranks[gpu] >= ranks[self.chosen[twin][0]]]
        if wanted.wants_links:
            groups = Counter(self.groups[gpu] for gpu in fitting)
            for group in sorted(groups.keys() - {0}, key=lambda group: (groups[group], group)):
                yield from self._choose(part, [gpu for gpu in fitting if self.groups[gpu] == group])
            if wanted.linked == "required":
                return
        yield from self._choose(part, fitting)

    def _choose(self, part: int, gpus: Sequence[int]) -> Iterator[list[int]]:
        """As many of these GPUs as a part wants, of those that are alike always the first ones."""
        alike, ranks = dict[tuple[object, ...], list[int]](), self.ranks[self.parts[part]]
        free = list(zip(*(self.free[dimension] for dimension in self.used), strict=True))
        for gpu in sorted(gpus, key=self._preference(part)):
            alike.setdefault((free[gpu], self.groups[gpu], self.alike[gpu]), []).append(gpu)
        classes = [sorted(each, key=ranks.__getitem__) for each in alike.values()]
        yield from _combine(classes, self.parts[part].count)

    def _preference(self, part: int) -> Callable[[int], tuple[int, int, int, int]]:
        """The order of GPUs: first those with least left of its MIG profile and of larger ones; the fullest; of free
        ones those whose link group loses least."""
        milli, larger = self.free[GPU_MILLI], [self.free[each] for each in self.larger[part]]
        whole = Counter(
            group for group, free in zip(self.groups, milli, strict=True) if group and free == MILLI_PER_GPU
        )

        def order(gpu: int) -> tuple[int, int, int, int]:
            mates = whole[self.groups[gpu]] if milli[gpu] == MILLI_PER_GPU else 0
            return sum(each[gpu] for each in larger), milli[gpu], mates, gpu

        return order


def _combine(classes: Sequence[Sequence[int]], count: int) -> Iterator[list[int]]:
    """`count` members: as many as can be of the first class, then fewer of it."""
    if count == 0:
        yield []
    elif sum(map(len, classes)) >= count:
        first, *others = classes
        for number in range(min(len(first), count), -1, -1):
            for rest in _combine(others, count - number):
                yield [*first[:number], *rest]


def _urgency(wanted: GpuRequest, suits: Sequence[bool], needs: Sequence[Sequence[tuple[int, int]]]) -> tuple[int, int]:
    """The part with the fewest choices first: how many GPUs it has to spare, then the largest."""
    milli = max((amount for each in needs for dimension, amount in each if dimension == GPU_MILLI), default=0)
    return sum(suits) - wanted.count, -milli
