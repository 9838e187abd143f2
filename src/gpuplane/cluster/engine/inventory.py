"""Nodes × GPUs as arrays: what they are, what they have, and what is free.

A row is a node; the columns of the two-dimensional arrays are its GPUs, in the node's order. Where a node has fewer
GPUs than the widest, `is_usable` is false and all else 0. Lists of arrays have one for each dimension (dimensions.py):
those of the tables first, then those with names, MIG profiles and other resources. Arrays are read by everybody and
written by the cluster alone.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from gpuplane.cluster.engine.arrays import Booleans, Integers
from gpuplane.cluster.engine.changes import Rows
from gpuplane.cluster.engine.dimensions import (
    ABSENT_RESOURCE,
    CPU,
    GPU_DIMENSIONS,
    GPU_MEMORY,
    GPU_MILLI,
    GPU_UNITS,
    MEMORY,
    NODE_DIMENSIONS,
    UNLIMITED_AMOUNT,
    largest_milli,
)
from gpuplane.cluster.model.nodes import Node
from gpuplane.cluster.model.requests import MILLI_PER_GPU


class Inventory(Rows):
    """All nodes. Of one that is described, all that it has is free."""

    def __init__(self, version: int = 0) -> None:
        super().__init__(version)
        self.rows: dict[str, int] = {}
        self.models: dict[str, int] = {"": 0}  # model → its number
        self.resources: dict[str, int] = {"": 0}  # resource → its number
        self.profiles: dict[str, int] = {}  # MIG profile → its dimension of GPUs
        self.others: dict[str, int] = {}  # another resource → its dimension of nodes
        self.node_has, self.node_free = ([np.zeros(0, np.int64) for _ in range(ABSENT_RESOURCE + 1)] for _ in range(2))
        self.gpu_has, self.gpu_free = ([np.zeros((0, 0), np.int64) for _ in GPU_DIMENSIONS] for _ in range(2))
        self.is_limited = [False for _ in GPU_DIMENSIONS]  # whether any GPU has less of it than anybody likes
        self.is_schedulable = np.zeros(0, np.bool_)
        self.room = np.zeros((0, 0), np.int64)  # the largest milli-GPU that fits; -1: not usable
        self.model = np.zeros((0, 0), np.int64)
        self.resource = np.zeros((0, 0), np.int64)
        self.link_group = np.zeros((0, 0), np.int64)
        self.is_usable = np.zeros((0, 0), np.bool_)  # there, well, and not partitioned
        self.is_partitioned = np.zeros((0, 0), np.bool_)  # there, well, and offered as MIG devices
        self.has_links = False  # whether any GPU has a link group
        self.has_taints = False  # whether any node has one
        self._free_rows: list[int] = []

    @property
    def cpu_milli(self) -> Integers:
        """The CPU of each node."""
        return self.node_has[CPU]

    @property
    def cpu_free(self) -> Integers:
        """What is free of it."""
        return self.node_free[CPU]

    @property
    def memory_free(self) -> Integers:
        """The memory of each node that is free."""
        return self.node_free[MEMORY]

    @property
    def milli_free(self) -> Integers:
        """What is free of each GPU's time."""
        return self.gpu_free[GPU_MILLI]

    @property
    def gpu_memory_mib(self) -> Integers:
        """The memory of each GPU."""
        return self.gpu_has[GPU_MEMORY]

    @property
    def gpu_memory_free(self) -> Integers:
        """What is free of it."""
        return self.gpu_free[GPU_MEMORY]

    @property
    def units_free(self) -> Integers:
        """The ids of each GPU that are free."""
        return self.gpu_free[GPU_UNITS]

    @property
    def unit_milli(self) -> Integers:
        """The part of each GPU that one of its ids is, rounded down; so all ids fit."""
        found: Integers = MILLI_PER_GPU // np.maximum(self.gpu_has[GPU_UNITS], 1)
        return found

    def mig_free(self, profile: str) -> Integers:
        """The MIG devices of a profile that are free on each GPU."""
        dimension = self.profiles.get(profile)
        return np.zeros_like(self.room) if dimension is None else self.gpu_free[dimension]

    def profiles_from(self, profile: str) -> list[int]:
        """The dimensions of this MIG profile and of larger ones."""
        least = _profile_size(profile)
        return [dimension for name, dimension in self.profiles.items() if _profile_size(name) >= least]

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

    def append_row(self) -> int:
        """A row for one more node."""
        if self._free_rows:
            return self._free_rows.pop()
        self.nodes.append(None)
        row = len(self.nodes) - 1
        if row >= len(self.is_schedulable):
            self._grow(0, max(16, row // 2))
        return row

    def free_row(self, row: int) -> None:
        """The node of this row has gone."""
        self.describe(row, None)
        self._free_rows.append(row)

    def make_room_for(self, node: Node) -> None:
        """Make room for its GPUs, models, profiles and other resources."""
        self.count_others(node.others)
        for gpu in node.gpus:
            self.models.setdefault(gpu.model, len(self.models))
            self.resources.setdefault(gpu.resource, len(self.resources))
            for profile in gpu.profiles:
                _count(self.profiles, profile, self.gpu_has, self.gpu_free)
        self._grow(1, len(node.gpus) - self.room.shape[1])

    def count_others(self, names: Iterable[str]) -> None:
        """Make room for these other resources; a node that does not name one has none of it."""
        for name in names:
            _count(self.others, name, self.node_has, self.node_free)

    def describe(self, row: int, node: Node | None) -> None:
        """Write what a node has, all of it free."""
        self.nodes[row] = node
        for _, _, each in self.arrays():
            each[row] = 0
        self.room[row] = -1
        if node is None:
            return
        for dimension, amount in enumerate(getattr(node, each.field) for each in NODE_DIMENSIONS):
            self.node_has[dimension][row] = self.node_free[dimension][row] = amount
        for name, amount in node.others.items():
            self.node_has[self.others[name]][row] = self.node_free[self.others[name]][row] = amount
        self.is_schedulable[row] = node.is_schedulable
        self.has_taints |= bool(node.taints)
        gpus = slice(len(node.gpus))
        for dimension, of_gpu in enumerate(GPU_DIMENSIONS):
            amounts = [of_gpu.has(gpu) for gpu in node.gpus]
            self.gpu_has[dimension][row, gpus] = self.gpu_free[dimension][row, gpus] = amounts
            self.is_limited[dimension] |= any(amount < UNLIMITED_AMOUNT for amount in amounts)
        for place, gpu in enumerate(node.gpus):
            for profile, count in gpu.profiles.items():
                dimension = self.profiles[profile]
                self.gpu_has[dimension][row, place] = self.gpu_free[dimension][row, place] = count
            self.model[row, place] = self.models[gpu.model]
            self.resource[row, place] = self.resources[gpu.resource]
            self.link_group[row, place] = gpu.link_group
            self.has_links |= bool(gpu.link_group)
            self.is_usable[row, place] = not gpu.code and not gpu.is_partitioned
            self.is_partitioned[row, place] = not gpu.code and gpu.is_partitioned
        room = largest_milli(
            lambda dimension: (self.gpu_free[dimension][row, gpus], self.gpu_has[dimension][row, gpus]), np.minimum
        )
        self.room[row, gpus] = np.where(self.is_usable[row, gpus], np.maximum(room, 0), -1)

    def arrays(self) -> Iterator[tuple[Any, Any, Integers]]:
        """All arrays: what has each of them, its key there, and the array."""
        yield from [(self.__dict__, name, each) for name, each in self.__dict__.items() if isinstance(each, np.ndarray)]
        for arrays in (self.node_has, self.node_free, self.gpu_has, self.gpu_free):
            yield from [(arrays, place, each) for place, each in enumerate(arrays)]

    def _grow(self, axis: int, more: int) -> None:
        """Append so many rows or columns to every array that has these."""
        if more <= 0:
            return
        for holder, key, each in self.arrays():
            if each.ndim > axis:
                widths = [(0, more if dimension == axis else 0) for dimension in range(each.ndim)]
                holder[key] = np.pad(each, widths, constant_values=-1 if key == "room" else 0)


def _count(names: dict[str, int], name: str, *by_dimension: list[Integers]) -> None:
    """Make this name a dimension, if it is none."""
    if name not in names:
        names[name] = len(by_dimension[0])
        for arrays in by_dimension:
            arrays.append(np.zeros_like(arrays[0]))


def _profile_size(profile: str) -> tuple[int, int]:
    """(compute slices, GB) of "3g.40gb"; (0, 0) of another name."""
    slices, _, rest = profile.partition("g.")
    memory = rest.split("gb")[0].split("+")[0]
    return (int(slices), int(memory)) if slices.isdecimal() and memory.isdecimal() else (0, 0)
