"""What is free of all nodes, what fits there, and what pods take. What is taken is given back, never more.

Pods may hold more of a node than it has (`hold`): a GPU died under one, or nobody counted it. Then less than nothing is
free, and what they give back is of no use to others until that is made up for.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Self

import numpy as np

from gpuplane.cluster.engine.allowed import Allowed
from gpuplane.cluster.engine.arrays import Booleans, Integers
from gpuplane.cluster.engine.dimensions import (
    ABSENT_RESOURCE,
    GPU_DIMENSIONS,
    GPU_MEMORY,
    GPU_UNITS,
    NODE_DIMENSIONS,
    Needs,
    fits,
    largest_milli,
)
from gpuplane.cluster.engine.inventory import Inventory
from gpuplane.cluster.model.nodes import Node
from gpuplane.cluster.model.requests import (
    NO_NODE_RULES,
    GpuRequest,
    NodeRules,
    Placement,
    Request,
    Share,
    TakenOfGpu,
    needed_of_gpu,
)

_Move = tuple[int, Integers, Integers, int | tuple[int, int], int]
"""Of one dimension, of nodes or of GPUs: what is free and what there is, the place in both arrays, and the amount."""

MIN_FREE = -(1 << 62)
"""That is free of anything, however much pods hold."""
_NODE_FIELDS = [(place, attrgetter(each.field)) for place, each in enumerate(NODE_DIMENSIONS)]


class OverCommitted(ValueError):
    """More was to be taken than is free, or given back than was taken: nothing was."""


class Cluster(Inventory):
    """All nodes and what is free of them. Versions count from the one that is given."""

    def __init__(self, nodes: Iterable[Node] = (), version: int = 0) -> None:
        super().__init__(version)
        self._allowed = Allowed()
        for each in nodes:
            self.put_node(each)

    def put_node(self, node: Node, taken: Sequence[tuple[Request, Placement]] = ()) -> None:
        """Add a node, or describe it anew; `taken` is all that pods have of it now. Raises OverCommitted, and
        OverflowError for an amount of more than 63 bits; then all is as it was."""
        if strange := next((each.node for _, each in taken if each.node != node.name), ""):
            raise OverCommitted(f"node {strange} is not {node.name}")
        self.make_room_for(node)
        row = self.rows.get(node.name)
        before = None
        if row is None:
            row = self.rows[node.name] = self.append_row()
        else:
            before = self.nodes[row], [(each, each[row].copy()) for _, _, each in self.arrays()]
        try:
            self.describe(row, node)
            self.log(row, is_described=True)
            for request, placement in taken:
                self.take(request, placement)
        except (OverCommitted, OverflowError):
            if before is None:
                self.remove_node(node.name)
            else:
                self.nodes[row] = before[0]
                for array, values in before[1]:
                    array[row] = values
                self.log(row, is_described=True)
            raise

    def remove_node(self, name: str) -> None:
        """Forget a node and all that pods have of it."""
        row = self.rows.pop(name)
        self.free_row(row)
        self.log(row, is_described=True)

    def take(self, request: Request, placement: Placement) -> None:
        """Give a pod what it was placed on. Raises OverCommitted."""
        self._move(request, placement, -1)

    def hold(self, request: Request, placement: Placement) -> None:
        """A pod has that already, whether there is room for it or not. Raises OverCommitted for what the node does not
        have at all."""
        self.count_others(name for name, _ in request.others)
        self._move(request, placement, -1, is_held=True)

    def is_over_held(self, name: str) -> bool:
        """Whether pods hold more of a node than it has."""
        row = self.rows[name]
        return any((each[row] < 0).any() for each in (*self.node_free, *self.gpu_free))

    def give_back(self, request: Request, placement: Placement) -> None:
        """What a pod had is free again. Raises OverCommitted."""
        self._move(request, placement, 1)

    def copy(self) -> "Self":
        """Another cluster that is as this one is now."""
        other = type(self)()
        other.__dict__.update({
            name: each.copy() if isinstance(each, np.ndarray | list | dict) else each
            for name, each in self.__dict__.items()
        })  # fmt: skip
        for holder, key, each in [*other.arrays()]:
            holder[key] = each.copy()
        other._allowed = Allowed()  # it follows one cluster
        return other

    def needed_of_each_gpu(self, rows: Integers, wanted: GpuRequest) -> TakenOfGpu:
        """What a request takes of each GPU of these rows."""
        return needed_of_gpu(wanted, self.gpu_has[GPU_MEMORY][rows], np.maximum(self.gpu_has[GPU_UNITS][rows], 1))

    def gpu_needs(self, taken: TakenOfGpu | Share) -> Needs:
        """The same by dimension: numbers, or arrays of rows × GPUs. Or what a share takes of its GPU."""
        needs = [
            (place, amount)
            for place, each in enumerate(GPU_DIMENSIONS)
            if self.is_limited[place] and (not isinstance(amount := each.takes(taken), int) or amount)
        ]
        return [*needs, (self.profiles[taken.profile], 1)] if taken.profile in self.profiles else needs

    def node_needs(self, request: Request) -> Needs:
        """What a request takes of a node by dimension. What it asks nothing of may be held beyond what there is
        (kube-scheduler, noderesources/fit.go)."""
        needs = [(place, amount) for place, field in _NODE_FIELDS if (amount := field(request))]
        if request.others:
            needs += [(self.others.get(name, ABSENT_RESOURCE), amount) for name, amount in request.others if amount]
        return needs

    def fits(self, rows: Integers, wanted: GpuRequest) -> Booleans:
        """Which GPUs of these rows have what a request asks of one GPU: rows × GPUs. Models and ids count, too."""
        found: Booleans
        if wanted.asks_milli_alone:
            found = self.room[rows] >= wanted.milli  # which says the same
        elif wanted.profile and wanted.profile not in self.profiles:
            return np.zeros((len(rows), self.is_usable.shape[1]), np.bool_)
        else:
            taken = self.needed_of_each_gpu(rows, wanted)
            found = (self.is_partitioned if wanted.profile else self.is_usable)[rows]
            found = fits(self.gpu_free, rows, self.gpu_needs(taken), found)
            if wanted.units and (wanted.milli or wanted.memory_mib):  # of so many ids, where they are so much
                found = found & (taken.milli >= wanted.milli) & (taken.memory_mib >= wanted.memory_mib)
        if wanted.models or wanted.ids or wanted.resource:
            for _, matches in self.gpu_choices(rows, wanted):
                found = found & matches
        return found

    def gpu_choices(self, rows: Integers, wanted: GpuRequest) -> list[tuple[str, Booleans]]:
        """What a request chooses GPUs by: the code of those that are not it, and which of these rows are it."""
        found = list[tuple[str, Booleans]]()
        if wanted.models:
            found.append(("model", self.has_model(rows, wanted.models)))
        if wanted.ids:
            found.append(("id", self.has_id(rows, wanted.ids)))
        if wanted.resource and not wanted.profile:
            found.append(("resource", self.has_resource(rows, wanted.resource)))
        return found

    def has_room(self, rows: Integers, request: Request) -> Booleans:
        """Which of these rows take pods, and have what a request takes of a node; by its rules, too."""
        found: Booleans = fits(self.node_free, rows, self.node_needs(request), self.is_schedulable[rows])
        if self.has_taints or request.nodes != NO_NODE_RULES:
            found = found & self.is_allowed(rows, request.nodes)
        return found

    def rows_with_enough(self, rows: Integers, request: Request) -> Integers:
        """Those of these rows that have room, and by itself each part of the request has as many GPUs as it wants."""
        rows = rows[self.has_room(rows, request)]
        for wanted in request.kinds_of_gpus:
            rows = rows[self.fits(rows, wanted).sum(axis=1) >= wanted.count]
        return rows

    def is_open(self, rows: Integers, rules: NodeRules, models: frozenset[str] = frozenset()) -> Booleans:
        """Which of these rows take pods with such rules; and have a GPU of one of these models, if there are any."""
        found = self.is_schedulable[rows] & self.is_allowed(rows, rules)
        return found & self.has_model(rows, models).any(axis=1) if models else found

    def is_allowed(self, rows: Integers, rules: NodeRules) -> Booleans:
        """To which of these rows a pod with such rules may go. Only nodes that were described anew are looked at."""
        return self._allowed.rows(self, rules)[rows]

    def room_after(self, row: int, gpu: int, shares: Sequence[Share] = ()) -> int:
        """The largest milli-GPU that fits on a GPU when these shares of it are taken, too. 0: none; -1: it is not
        usable."""
        if not self.is_usable[row, gpu]:
            return -1

        def amounts(dimension: int) -> tuple[int, int]:
            taken = sum(map(GPU_DIMENSIONS[dimension].takes, shares))
            return int(self.gpu_free[dimension][row, gpu]) - taken, int(self.gpu_has[dimension][row, gpu])

        return max(int(largest_milli(amounts)), 0)

    def _move(self, request: Request, placement: Placement, sign: int, *, is_held: bool = False) -> None:
        row = self.rows.get(placement.node)
        if row is None:
            raise OverCommitted(f"node {placement.node} is not there")
        moves = self._moves(row, request, placement)
        after = [int(free[place]) + sign * amount for _, free, _, place, amount in moves]
        for left, (dimension, free, has, place, amount) in zip(after, moves, strict=True):
            if amount < 0 or (left > has[place] if sign > 0 else left < 0 and not is_held):
                unit = self._unit(dimension, of_gpu=isinstance(place, tuple))
                verb = "taken" if sign < 0 else "given back"
                raise OverCommitted(f"node {placement.node}: {amount} {unit} cannot be {verb}, {free[place]} are free")
        for left, (_, free, _, place, _) in zip(after, moves, strict=True):
            free[place] = max(left, MIN_FREE)
        for gpu in {share.gpu for share in placement.all_shares}:
            self.room[row, gpu] = self.room_after(row, gpu)
        self.log(row)

    def _moves(self, row: int, request: Request, placement: Placement) -> list[_Move]:
        """What a pod takes of which array. Raises OverCommitted for what the node does not have."""
        node = self.nodes[row]
        assert node is not None
        taken = Counter[tuple[int, int]]()  # (dimension, GPU) → amount
        for share in placement.all_shares:
            amounts = [each.takes(share) for each in GPU_DIMENSIONS]
            is_there = 0 <= share.gpu < len(node.gpus) and (not share.profile or share.profile in self.profiles)
            if not is_there or min(amounts) < 0:
                raise OverCommitted(f"node {node.name}: there is nothing such as {share}")
            for dimension, amount in enumerate(amounts):
                if amount:
                    taken[dimension, share.gpu] += amount
            if share.profile:
                taken[self.profiles[share.profile], share.gpu] += 1
        if missing := [name for name, amount in request.others if amount and name not in self.others]:
            raise OverCommitted(f"node {node.name} has no {missing[0]}")
        of_node: list[_Move] = [
            (dimension, self.node_free[dimension], self.node_has[dimension], row, amount)
            for dimension, amount in self.node_needs(request)
        ]
        return of_node + [
            (dimension, self.gpu_free[dimension], self.gpu_has[dimension], (row, gpu), amount)
            for (dimension, gpu), amount in taken.items()
        ]

    def _unit(self, dimension: int, *, of_gpu: bool) -> str:
        """What is counted."""
        table = GPU_DIMENSIONS if of_gpu else NODE_DIMENSIONS
        if dimension < len(table):
            return table[dimension].unit
        return "MIG devices" if of_gpu else next(name for name, each in self.others.items() if each == dimension)
