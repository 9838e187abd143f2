"""How often each class of requests still fits on each node: its slots.

Of GPUs alone: c, all that fits on the node's GPUs side by side. CPU for κ of them: k = c where that suffices for all, 0
where it suffices for none, else ⌊κ⌋ and 0.8 of the rest, because CPU comes back and other requests need less of it.
Numbers are kept as whole fifths. The tables follow the cluster: only nodes that have changed are counted anew.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gpuplane.placement.candidates import Candidates
from gpuplane.placement.cluster import Cluster, Integers
from gpuplane.placement.requests import WHOLE
from gpuplane.placement.workload import RequestClass

FIFTHS = 5
MOST = 4000
"""Slots of one class on one node that are counted."""

Numbers = npt.NDArray[np.int32]


class Slots:
    """Of fixed classes. `free_milli`, `free_cpu`: of the whole cluster. `total`: fifths of slots by class."""

    def __init__(self, classes: Sequence[RequestClass]) -> None:
        """Classes with GPUs come first."""
        self.classes = tuple(sorted(classes, key=lambda each: each.gpus == 0))
        self._with_gpus = sum(each.gpus > 0 for each in self.classes)
        kinds = self.classes[: self._with_gpus]
        sizes = sorted({each.milli for each in kinds})
        self._size_of = np.array([sizes.index(each.milli) for each in kinds], np.int64)
        self._per_request = np.array([each.gpus for each in kinds], np.int32)
        self._is_single = bool((self._per_request == 1).all())
        self._per_milli_cpu = 1 / np.array([max(each.cpu_milli, 1) for each in self.classes], np.float32)
        room = np.arange(WHOLE + 2)[:, None]
        self._fitting = (
            (room // np.array(sizes, np.int64)).astype(np.int32) if sizes else np.zeros((WHOLE + 2, 0), np.int32)
        )
        self._fitting[-1] = 0  # room −1: of a GPU that is not usable
        self._fitting_before: Numbers = np.zeros((0, len(sizes)), np.int32)
        self._accepts = np.zeros((0, self._with_gpus), np.int32)
        self._accepts_all = False
        self.fifths: Numbers = np.zeros((0, len(self.classes)), np.int32)
        self.total = np.zeros(len(self.classes), np.int64)
        self._free = np.zeros((0, 2), np.int64)
        self.free_milli = self.free_cpu = 0
        self._version = self._described = -1

    def follow(self, cluster: Cluster) -> None:
        """Look at the nodes that have changed."""
        if cluster.version == self._version:
            return
        if more := len(cluster.nodes) - len(self._free):
            for name in ("_fitting_before", "_accepts", "fifths", "_free"):
                setattr(self, name, np.pad(getattr(self, name), [(0, more), (0, 0)]))
        if cluster.inventory_version > self._described:
            self._look_at_models(cluster, cluster.rows_described_since(self._described))
            self._described = cluster.version
        rows = cluster.rows_changed_since(self._version)
        self._version = cluster.version
        room = cluster.room[rows]
        self._fitting_before[rows] = fitting = self._fitting[room].sum(axis=1, dtype=np.int32)
        fifths = self._count(rows, fitting, cluster.cpu_free[rows])
        self.total += fifths.sum(axis=0) - self.fifths[rows].sum(axis=0)
        self.fifths[rows] = fifths
        free = np.stack([np.maximum(room, 0).sum(axis=1), cluster.cpu_free[rows]], axis=1)
        milli, cpu = (free.sum(axis=0) - self._free[rows].sum(axis=0)).tolist()
        self.free_milli, self.free_cpu = self.free_milli + milli, self.free_cpu + cpu
        self._free[rows] = free

    def after(self, found: Candidates) -> Numbers:
        """Fifths of slots that each candidate leaves on its node: c × classes."""
        fitting = self._fitting_before[found.rows]
        for column in range(found.before.shape[1]):
            fitting += self._fitting[found.after[:, column]]
            fitting -= self._fitting[found.before[:, column]]
        return self._count(found.rows, fitting, found.cpu_after)

    def _count(self, rows: Integers, fitting: Numbers, cpu: Integers) -> Numbers:
        """Of nodes in this state: how many GPU requests of each size fit, and free CPU."""
        by_cpu = ((cpu.astype(np.float32) + np.float32(0.5))[:, None] * self._per_milli_cpu).astype(np.int32)
        np.minimum(by_cpu, MOST, out=by_cpu)
        of_gpus, slots = by_cpu[:, : self._with_gpus], fitting[:, self._size_of]
        if not self._is_single:
            slots //= self._per_request
        if not self._accepts_all:
            slots *= self._accepts[rows]
        fifths = np.minimum(of_gpus, slots)
        slots *= FIFTHS - 1
        fifths += slots
        fifths *= of_gpus > 0
        by_cpu[:, : self._with_gpus] = fifths
        by_cpu[:, self._with_gpus :] *= FIFTHS
        return by_cpu

    def _look_at_models(self, cluster: Cluster, rows: Integers) -> None:
        usable = cluster.is_usable[rows]
        for index, each in enumerate(self.classes[: self._with_gpus]):
            fits = usable & cluster.has_model(rows, each.models) if each.models else usable
            self._accepts[rows, index] = fits.sum(axis=1) >= each.gpus
        self._accepts_all = bool(self._accepts.all())
