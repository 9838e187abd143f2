"""The cluster as arrays: nodes × GPUs, what they have and what is free. What is taken is given back, never more.

A row is a node; the columns of the two-dimensional arrays are its GPUs, in the node's order. Where a node has fewer
GPUs than the widest, `is_usable` is false and all else 0. Arrays are read by everybody and written here alone.

Pods may hold more of a node than it has (`hold`): a GPU died under one, or nobody counted it. Then less than nothing is
free, and what they give back is of no use to others until that is made up for.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from gpuplane.cluster.engine.allowed import Allowed
from gpuplane.cluster.engine.arrays import Booleans, Integers
from gpuplane.cluster.engine.changes import Rows
from gpuplane.cluster.model.nodes import Node
from gpuplane.cluster.model.requests import (
    ANYWHERE,
    WHOLE,
    GpuRequest,
    NodeRules,
    Placement,
    Request,
    Share,
    taken_of_gpu,
)

_Move = tuple[str, Integers, int | tuple[int, ...], int, int]
"""Of one array: the unit, the array, the place in it, the amount, and the most that may be free there."""


ANY = 1 << 40
"""As many containers may share a GPU as like to."""


LEAST = -(1 << 62)
"""That is free of anything, however much pods hold."""


class OverCommitted(ValueError):
    """More was to be taken than is free, or given back than was taken: nothing was."""


class Cluster(Rows):
    """All nodes and what is free of them. Versions count from the one that is given."""

    def __init__(self, nodes: Iterable[Node] = (), version: int = 0) -> None:
        super().__init__(version)
        self.rows: dict[str, int] = {}
        self.models: dict[str, int] = {"": 0}  # model → its number
        self.resources: dict[str, int] = {"": 0}  # resource → its number
        self.profiles: dict[str, int] = {}  # MIG profile → its column in `instances_free`
        self.others: dict[str, int] = {}  # another resource → its column in `others_free`
        self.cpu_milli = np.zeros(0, np.int64)
        self.cpu_free = np.zeros(0, np.int64)
        self.memory_bytes = np.zeros(0, np.int64)
        self.memory_free = np.zeros(0, np.int64)
        self.others_free = np.zeros((0, 0), np.int64)  # nodes × other resources
        self.is_schedulable = np.zeros(0, np.bool_)
        self.milli_free = np.zeros((0, 0), np.int64)  # of each GPU
        self.room = np.zeros((0, 0), np.int64)  # the largest `milli` that fits, time and memory; -1: not usable
        self.gpu_memory_mib = np.zeros((0, 0), np.int64)
        self.gpu_memory_free = np.zeros((0, 0), np.int64)
        self.units = np.zeros((0, 0), np.int64)  # ids that stand for each GPU
        self.units_free = np.zeros((0, 0), np.int64)
        self.containers_free = np.zeros((0, 0), np.int64)  # how many more may share each GPU
        self.unit_milli = np.zeros((0, 0), np.int64)  # of one id, rounded down; so all ids fit
        self.model = np.zeros((0, 0), np.int64)
        self.resource = np.zeros((0, 0), np.int64)
        self.link_group = np.zeros((0, 0), np.int64)
        self.is_usable = np.zeros((0, 0), np.bool_)  # there, well, and not partitioned
        self.is_partitioned = np.zeros((0, 0), np.bool_)  # there, well, and offered as MIG devices
        self.instances_free = np.zeros((0, 0, 0), np.int64)  # nodes × GPUs × profiles
        self.has_links = False  # whether any GPU has a link group
        self.has_splits = False  # whether not any number of containers may share each GPU
        self._has_taints = False  # whether any node has one
        self._allowed = Allowed()
        self._free_rows: list[int] = []
        for each in nodes:
            self.put_node(each)

    def put_node(self, node: Node, taken: Sequence[tuple[Request, Placement]] = ()) -> None:
        """Add a node, or describe it anew; `taken` is all that pods have of it now. Raises OverCommitted, and
        OverflowError for an amount of more than 63 bits; then all is as it was."""
        if strange := next((each.node for _, each in taken if each.node != node.name), ""):
            raise OverCommitted(f"node {strange} is not {node.name}")
        self._widen(node)
        row = self.rows.get(node.name)
        before = None
        if row is None:
            row = self._free_rows.pop() if self._free_rows else self._append_row()
            self.rows[node.name] = row
        else:
            before = self.nodes[row], {name: each[row].copy() for name, each in self._arrays()}
        try:
            self._describe(row, node)
            self.log(row, is_described=True)
            for request, placement in taken:
                self.take(request, placement)
        except (OverCommitted, OverflowError):
            if before is None:
                self.remove_node(node.name)
            else:
                self.nodes[row] = before[0]
                for name, values in before[1].items():
                    getattr(self, name)[row] = values
                self.log(row, is_described=True)
            raise

    def remove_node(self, name: str) -> None:
        """Forget a node and all that pods have of it."""
        row = self.rows.pop(name)
        self._describe(row, None)
        self._free_rows.append(row)
        self.log(row, is_described=True)

    def take(self, request: Request, placement: Placement) -> None:
        """Give a pod what it was placed on. Raises OverCommitted."""
        self._move(request, placement, -1)

    def hold(self, request: Request, placement: Placement) -> None:
        """A pod has that already, whether there is room for it or not. Raises OverCommitted for what the node does not
        have at all."""
        self._count_others(name for name, _ in request.others)
        self._move(request, placement, -1, is_held=True)

    def is_over_held(self, name: str) -> bool:
        """Whether pods hold more of a node than it has."""
        row = self.rows[name]
        free = (each[row] for key, each in self._arrays() if key.endswith("_free"))
        return any((each < 0).any() for each in free)

    def give_back(self, request: Request, placement: Placement) -> None:
        """What a pod had is free again. Raises OverCommitted."""
        self._move(request, placement, 1)

    def copy(self) -> "Cluster":
        """Another cluster that is as this one is now."""
        other = Cluster()
        other.__dict__.update({
            name: each.copy() if isinstance(each, np.ndarray | list | dict) else each
            for name, each in self.__dict__.items()
        })  # fmt: skip
        other._allowed = Allowed()  # it follows one cluster
        return other

    def needs(self, rows: Integers, wanted: GpuRequest) -> tuple[Integers, Integers]:
        """(milli-GPU, MiB) that a request takes of each GPU of these rows: two arrays, rows × GPUs."""
        return taken_of_gpu(wanted, self.gpu_memory_mib[rows], np.maximum(self.units[rows], 1))

    def fits(self, rows: Integers, wanted: GpuRequest) -> Booleans:
        """Which GPUs of these rows have what a request asks of one GPU: rows × GPUs. Models and ids count, too."""
        if wanted.profile:
            column = self.profiles.get(wanted.profile)
            if column is None:
                return np.zeros((len(rows), self.is_usable.shape[1]), np.bool_)
            found = self.is_partitioned[rows] & (self.instances_free[rows, :, column] > 0)
        elif wanted.asks_milli_alone:
            found = self.room[rows] >= wanted.milli
        else:
            milli, memory = self.needs(rows, wanted)
            found = self.is_usable[rows] & (self.milli_free[rows] >= milli) & (self.gpu_memory_free[rows] >= memory)
            if self.has_splits:
                found &= self.containers_free[rows] > 0
            if wanted.units:
                found &= (self.units_free[rows] >= wanted.units) & (milli >= wanted.milli)
                found &= memory >= wanted.memory_mib
        if wanted.models:
            found &= self.has_model(rows, wanted.models)
        if wanted.resource and not wanted.profile:
            found &= self.has_resource(rows, wanted.resource)
        if wanted.ids:
            found &= self.has_id(rows, wanted.ids)
        return found

    def profiles_from(self, profile: str) -> list[int]:
        """The columns of `instances_free` of this MIG profile and of larger ones."""
        least = _profile_size(profile)
        return [column for name, column in self.profiles.items() if _profile_size(name) >= least]

    def has_model(self, rows: Integers, models: frozenset[str]) -> Booleans:
        """Which GPUs of these rows are of one of these models: rows × GPUs."""
        numbers, found = self.model[rows], np.zeros((len(rows), self.model.shape[1]), np.bool_)
        for each in models:
            found |= numbers == self.models.get(each, -1)
        return found

    def has_id(self, rows: Integers, ids: frozenset[str]) -> Booleans:
        """Which GPUs of these rows have one of these ids: rows × GPUs."""
        found = np.zeros((len(rows), self.is_usable.shape[1]), np.bool_)
        for index, row in enumerate(rows):
            node = self.nodes[row]
            for gpu, each in enumerate(node.gpus if node else ()):
                found[index, gpu] = each.id in ids
        return found

    def has_resource(self, rows: Integers, resource: str) -> Booleans:
        """Which GPUs of these rows are offered by this name: rows × GPUs."""
        found: Booleans = self.resource[rows] == self.resources.get(resource, -1)
        return found

    def has_room(self, rows: Integers, request: Request) -> Booleans:
        """Which of these rows take pods, and have the CPU and the memory of a request; by its rules, too. What it asks
        nothing of may be held beyond what there is (kube-scheduler, noderesources/fit.go)."""
        room = self.is_schedulable[rows]
        if request.cpu_milli:
            room = room & (self.cpu_free[rows] >= request.cpu_milli)
        if request.memory_bytes:
            room = room & (self.memory_free[rows] >= request.memory_bytes)
        for name, amount in request.others:
            if amount:
                room = room & (self.other_free(rows, name) >= amount)
        if self._has_taints or request.nodes != ANYWHERE:
            room = room & self.is_allowed(rows, request.nodes)
        return room

    def other_free(self, rows: Integers, name: str) -> Integers:
        """How much of another resource is free on each of these rows; 0 where no node has it."""
        column = self.others.get(name)
        found: Integers = np.zeros(len(rows), np.int64) if column is None else self.others_free[rows, column]
        return found

    def is_open(self, rows: Integers, rules: NodeRules, models: frozenset[str] = frozenset()) -> Booleans:
        """Which of these rows take pods with such rules; and have a GPU of one of these models, if there are any."""
        found = self.is_schedulable[rows] & self.is_allowed(rows, rules)
        return found & self.has_model(rows, models).any(axis=1) if models else found

    def is_allowed(self, rows: Integers, rules: NodeRules) -> Booleans:
        """To which of these rows a pod with such rules may go. Only nodes that were described anew are looked at."""
        return self._allowed.rows(self, rules)[rows]

    def _move(self, request: Request, placement: Placement, sign: int, *, is_held: bool = False) -> None:
        row = self.rows.get(placement.node)
        if row is None:
            raise OverCommitted(f"node {placement.node} is not there")
        moves = self._moves(row, request, placement)
        for unit, free, place, amount, whole in moves:
            after = int(free[place]) + sign * amount
            is_there = after <= whole if sign > 0 else after >= 0 or is_held
            if amount < 0 or (amount and not is_there):
                verb = "taken" if sign < 0 else "given back"
                raise OverCommitted(f"node {placement.node}: {amount} {unit} cannot be {verb}, {free[place]} are free")
        for _, free, place, amount, _ in moves:
            free[place] = max(int(free[place]) + sign * amount, LEAST)
        for share in placement.all_shares:
            self._measure_room(row, share.gpu)
        self.log(row)

    def _moves(self, row: int, request: Request, placement: Placement) -> list["_Move"]:
        """What a pod takes of which array. Raises OverCommitted for what the node does not have."""
        node = self.nodes[row]
        assert node is not None
        for each in placement.all_shares:
            is_there = 0 <= each.gpu < len(node.gpus) and (not each.profile or each.profile in self.profiles)
            if not is_there or min(each.milli, each.memory_mib, each.units) < 0:
                raise OverCommitted(f"node {node.name}: there is nothing such as {each}")
        if missing := [name for name, amount in request.others if amount and name not in self.others]:
            raise OverCommitted(f"node {node.name} has no {missing[0]}")
        moves: list[_Move] = [
            ("milli-CPU", self.cpu_free, row, request.cpu_milli, node.cpu_milli),
            ("bytes of memory", self.memory_free, row, request.memory_bytes, node.memory_bytes),
            *(
                (name, self.others_free, (row, self.others[name]), amount, node.others.get(name, 0))
                for name, amount in request.others
                if amount
            ),
        ]
        milli, memory, units, containers = Counter[int](), Counter[int](), Counter[int](), Counter[int]()
        instances = dict[tuple[int, str], int]()
        for each in placement.all_shares:
            milli[each.gpu] += each.milli
            memory[each.gpu] += each.memory_mib
            units[each.gpu] += each.units
            containers[each.gpu] += 1
            if each.profile:
                instances[each.gpu, each.profile] = instances.get((each.gpu, each.profile), 0) + 1
        for gpu, amount in milli.items():
            whole = node.gpus[gpu].memory_mib
            moves.append(("milli-GPU", self.milli_free, (row, gpu), amount, WHOLE))
            moves.append(("MiB of a GPU", self.gpu_memory_free, (row, gpu), memory[gpu], whole))
            moves.append(("ids of a GPU", self.units_free, (row, gpu), units[gpu], node.gpus[gpu].units))
            most = node.gpus[gpu].containers or ANY
            moves.append(("shares of a GPU", self.containers_free, (row, gpu), containers[gpu], most))
        for (gpu, profile), amount in instances.items():
            place, whole = (row, gpu, self.profiles[profile]), node.gpus[gpu].profiles.get(profile, 0)
            moves.append(("MIG devices", self.instances_free, place, amount, whole))
        return moves

    def room_after(self, row: int, gpu: int, shares: Iterable[Share] = ()) -> int:
        """The largest `milli` that fits on a GPU when these shares of it are taken, too: its time is free, and its
        memory, rounded down as `needs` does it. 0: none; -1: it is not usable."""
        if not self.is_usable[row, gpu]:
            return -1
        taken = [*shares]
        room = int(self.milli_free[row, gpu]) - sum(each.milli for each in taken)
        if total := int(self.gpu_memory_mib[row, gpu]):
            memory = int(self.gpu_memory_free[row, gpu]) - sum(each.memory_mib for each in taken)
            room = min(room, ((memory + 1) * WHOLE - 1) // total)
        return max(room, 0) if self.containers_free[row, gpu] > len(taken) else 0

    def _measure_room(self, row: int, gpu: int) -> None:
        self.room[row, gpu] = self.room_after(row, gpu)

    def _append_row(self) -> int:
        self.nodes.append(None)
        row = len(self.nodes) - 1
        if row >= len(self.cpu_milli):
            self._grow(0, max(16, row // 2))
        return row

    def _widen(self, node: Node) -> None:
        """Make room for its GPUs, models, profiles and other resources."""
        self._count_others(node.others)
        for gpu in node.gpus:
            self.models.setdefault(gpu.model, len(self.models))
            self.resources.setdefault(gpu.resource, len(self.resources))
            for profile in gpu.profiles:
                self.profiles.setdefault(profile, len(self.profiles))
        self._grow(1, len(node.gpus) - self.milli_free.shape[1])
        self._grow(2, len(self.profiles) - self.instances_free.shape[2])

    def _count_others(self, names: Iterable[str]) -> None:
        """Make room for these other resources; a node that does not name one has none of it."""
        for name in names:
            self.others.setdefault(name, len(self.others))
        if more := len(self.others) - self.others_free.shape[1]:
            self.others_free = np.pad(self.others_free, [(0, 0), (0, more)])

    def _arrays(self) -> list[tuple[str, Integers]]:
        return [(name, each) for name, each in self.__dict__.items() if isinstance(each, np.ndarray)]

    def _grow(self, axis: int, more: int) -> None:
        """Append so many rows, columns or profiles to every array that has that dimension."""
        if more <= 0:
            return
        for name, each in self._arrays():
            if each.ndim > axis and (axis == 0 or name != "others_free"):
                widths = [(0, more if dimension == axis else 0) for dimension in range(each.ndim)]
                setattr(self, name, np.pad(each, widths, constant_values=-1 if name == "room" else 0))

    def _describe(self, row: int, node: Node | None) -> None:
        """Write what a node has, all of it free."""
        self.nodes[row] = node
        for _, each in self._arrays():
            each[row] = 0
        self.room[row] = -1
        if node is None:
            return
        self.cpu_milli[row] = self.cpu_free[row] = node.cpu_milli
        self.memory_bytes[row] = self.memory_free[row] = node.memory_bytes
        for name, amount in node.others.items():
            self.others_free[row, self.others[name]] = amount
        self.is_schedulable[row] = node.is_schedulable
        for index, gpu in enumerate(node.gpus):
            self.milli_free[row, index] = WHOLE
            self.gpu_memory_mib[row, index] = self.gpu_memory_free[row, index] = gpu.memory_mib
            self.units[row, index] = self.units_free[row, index] = gpu.units
            self.containers_free[row, index] = gpu.containers or ANY
            self.has_splits |= bool(gpu.containers)
            self.unit_milli[row, index] = WHOLE // max(gpu.units, 1)
            self.model[row, index] = self.models[gpu.model]
            self.resource[row, index] = self.resources[gpu.resource]
            self.link_group[row, index] = gpu.link_group
            self.is_usable[row, index] = not gpu.code and not gpu.is_partitioned
            self.is_partitioned[row, index] = not gpu.code and gpu.is_partitioned
            self._measure_room(row, index)
            self.has_links |= bool(gpu.link_group)
        self._has_taints |= bool(node.taints)
        self.instances_free[row] = self._instances(node)

    def _instances(self, node: Node) -> Integers:
        found = np.zeros(self.instances_free.shape[1:], np.int64)
        for index, gpu in enumerate(node.gpus):
            for profile, count in gpu.profiles.items():
                found[index, self.profiles[profile]] = count
        return found


def _profile_size(profile: str) -> tuple[int, int]:
    """(compute slices, GB) of "3g.40gb"; (0, 0) of another name."""
    slices, _, rest = profile.partition("g.")
    memory = rest.split("gb")[0].split("+")[0]
    return (int(slices), int(memory)) if slices.isdecimal() and memory.isdecimal() else (0, 0)
