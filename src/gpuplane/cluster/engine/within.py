"""Whether a pod fits on one node, and where: exact, also for several containers that want GPUs each.

Containers of a pod may have shares of one GPU; the GPUs of one container are different ones. The search tries the
fullest GPUs first, and of those that are alike one. It gives up after `STEPS`: a pod that is not found a place by then
counts as one that does not fit. A node of 16 GPUs needs far fewer.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from gpuplane.cluster.engine.cluster import Cluster
from gpuplane.cluster.model.requests import WHOLE, GpuRequest, Placement, Request, Share

STEPS = 20_000
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
        rows = np.asarray([row])
        self.parts = parts
        self.kinds = list(dict.fromkeys(parts))
        fits = {each: cluster.fits(rows, each)[0].tolist() for each in self.kinds}
        needs = {each: [amount[0].tolist() for amount in cluster.needs(rows, each)] for each in self.kinds}
        self.fits: list[list[bool]] = [fits[each] for each in parts]
        self.needs: list[list[list[int]]] = [needs[each] for each in parts]
        self.alike = list(zip(*fits.values(), *(amount for each in needs.values() for amount in each), strict=True))
        self.milli: list[int] = cluster.milli_free[row].tolist()
        self.memory: list[int] = cluster.gpu_memory_free[row].tolist()
        self.units: list[int] = cluster.units_free[row].tolist()
        self.containers: list[int] = cluster.containers_free[row].tolist()
        self.groups: list[int] = cluster.link_group[row].tolist()
        self.columns = [cluster.profiles.get(each.profile, -1) for each in parts]
        larger = {each.profile: cluster.profiles_from(each.profile) for each in parts if each.profile}
        self.larger = [larger.get(each.profile, ()) for each in parts]  # columns of this and of larger profiles
        self.instances: list[list[int]] = cluster.instances_free[row].tolist()
        self.chosen: list[Sequence[int]] = [()] * len(parts)
        self.steps = STEPS
        self.order = sorted(range(len(parts)), key=self._urgency)
        last = dict[GpuRequest, int]()
        self.twin: dict[int, int | None] = {}  # part → the one like it that is placed last before it
        for part in self.order:
            self.twin[part] = last.get(parts[part])
            last[parts[part]] = part
        self.ranks = {each: self._ranks(last[each]) for each in last}

    def _ranks(self, part: int) -> list[int]:
        """The place of each GPU in the order in which a part tries them at the beginning."""
        order = sorted(range(len(self.milli)), key=self._preference(part))
        return [order.index(gpu) for gpu in range(len(order))]

    def _urgency(self, part: int) -> tuple[int, int, int]:
        """The part with the fewest choices first: how many GPUs it has to spare, then the largest."""
        spare = sum(self.fits[part]) - self.parts[part].count
        return spare, -max(self.needs[part][0], default=0), part

    def run(self) -> tuple[tuple[Share, ...], ...] | None:
        if not self._has_enough() or not self._place_all():
            return None
        return tuple(
            tuple(
                Share(gpu, self.needs[part][0][gpu], self.needs[part][1][gpu], wanted.profile, wanted.units)
                for gpu in sorted(gpus)
            )
            for part, (wanted, gpus) in enumerate(zip(self.parts, self.chosen, strict=True))
        )

    def _has_enough(self) -> bool:
        """Whether there are as many MIG devices, and as much of all GPUs, as all parts want: to find out by trying
        takes all steps."""
        devices, milli, memory, units = Counter[int](), 0, 0, 0
        for place, part in enumerate(self.parts):
            fitting = [gpu for gpu, fits in enumerate(self.fits[place]) if fits]
            if not fitting:
                return False
            if part.profile:
                devices[self.columns[place]] += part.count
                continue
            milli += part.count * min(self.needs[place][0][gpu] for gpu in fitting)
            memory += part.count * min(self.needs[place][1][gpu] for gpu in fitting)
            units += part.count * part.units
        return all(sum(each[column] for each in self.instances) >= count for column, count in devices.items()) and (
            sum(self.milli) >= milli and sum(self.memory) >= memory and sum(self.units) >= units
        )

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
        milli, memory = self.needs[part]
        for gpu in gpus:
            self.milli[gpu] += sign * milli[gpu]
            self.memory[gpu] += sign * memory[gpu]
            self.units[gpu] += sign * self.parts[part].units
            self.containers[gpu] += sign
            if self.columns[part] >= 0:
                self.instances[gpu][self.columns[part]] += sign

    def _sets(self, part: int) -> Iterator[list[int]]:
        """The sets of GPUs that this part could have now; linked ones first, if it wants them so."""
        wanted = self.parts[part]
        fitting = [gpu for gpu in range(len(self.milli)) if self._has_room(part, gpu)]
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

    def _has_room(self, part: int, gpu: int) -> bool:
        if not self.fits[part][gpu]:
            return False
        if self.columns[part] >= 0:
            return self.instances[gpu][self.columns[part]] > 0
        milli, memory = self.needs[part]
        has_units = self.units[gpu] >= self.parts[part].units and self.containers[gpu] > 0
        return bool(has_units and self.milli[gpu] >= milli[gpu] and self.memory[gpu] >= memory[gpu])

    def _choose(self, part: int, gpus: Sequence[int]) -> Iterator[list[int]]:
        """As many of these GPUs as a part wants, of those that are alike always the first ones."""
        alike, ranks = dict[tuple[object, ...], list[int]](), self.ranks[self.parts[part]]
        for gpu in sorted(gpus, key=self._preference(part)):
            key = (
                self.milli[gpu], self.memory[gpu], self.units[gpu], self.containers[gpu], self.groups[gpu],
                *self.instances[gpu], self.alike[gpu],
            )  # fmt: skip
            alike.setdefault(key, []).append(gpu)
        classes = [sorted(each, key=ranks.__getitem__) for each in alike.values()]
        yield from _combine(classes, self.parts[part].count)

    def _preference(self, part: int) -> Callable[[int], tuple[int, int, int, int]]:
        """The order of GPUs: first those with least left of its MIG profile and of larger ones; the fullest; of free
        ones those whose link group loses least."""
        free = Counter(group for group, milli in zip(self.groups, self.milli, strict=True) if group and milli == WHOLE)

        def order(gpu: int) -> tuple[int, int, int, int]:
            left = sum(self.instances[gpu][column] for column in self.larger[part])
            mates = free[self.groups[gpu]] if self.milli[gpu] == WHOLE else 0
            return left, self.milli[gpu], mates, gpu

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
