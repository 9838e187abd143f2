"""How often each class of requests still fits on each node: its slots.

Of GPUs alone: c, all that fits on the node's GPUs side by side. CPU for κ of them: k = c where that suffices for all, 0
where it suffices for none, else ⌊κ⌋ and 0.8 of the rest, because CPU comes back and other requests need less of it.
Numbers are kept as whole fifths.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gpuplane.cluster.engine.arrays import Booleans, Integers, with_rows
from gpuplane.cluster.engine.candidates import Candidates
from gpuplane.cluster.engine.changes import Changes
from gpuplane.cluster.engine.cluster import Cluster
from gpuplane.cluster.engine.workload import RequestClass
from gpuplane.cluster.model.requests import MILLI_PER_GPU

FIFTHS_PER_SLOT = 5
MAX_SLOTS = 4000
"""Slots of one class on one node that are counted."""
NODES_PER_BATCH = 4096
"""Nodes whose slots are counted at once: the numbers take memory for each class."""

Numbers = npt.NDArray[np.int32]
Fifths = npt.NDArray[np.int16]


class Slots:
    """Of fixed classes: `classes`, those with GPUs first. All arrays that it gives are in that order."""

    def __init__(self, classes: Sequence[RequestClass]) -> None:
        self.classes = tuple(sorted(classes, key=lambda each: each.gpus == 0))
        self._with_gpus = sum(each.gpus > 0 for each in self.classes)
        kinds = self.classes[: self._with_gpus]
        sizes = sorted({each.milli for each in kinds})
        groups = sorted({(each.gpus, each.milli) for each in kinds})  # few, beside the classes
        self._group_of = np.array([groups.index((each.gpus, each.milli)) for each in kinds], np.int64)
        self._size_of = np.array([sizes.index(milli) for _, milli in groups], np.int64)
        self._of_one = sum(gpus == 1 for gpus, _ in groups)
        self._per_request = np.array([gpus for gpus, _ in groups[self._of_one :]], np.int32)
        self._per_milli_cpu = 1 / np.array([max(each.cpu_milli, 1) for each in self.classes], np.float32)
        self._cpu_of_most = MAX_SLOTS * min((max(each.cpu_milli, 1) for each in self.classes), default=1)
        self._fitting = np.zeros(
            (MILLI_PER_GPU + 2, len(sizes)), np.int16
        )  # by room; the last: −1, of a GPU not usable
        if sizes:
            self._fitting[:-1] = np.arange(MILLI_PER_GPU + 1)[:, None] // np.array(sizes)
        self._accepts = np.zeros((0, len(self.classes)), np.int16)
        self._accepts_all = False
        self._row_accepts_all = np.zeros(0, np.bool_)
        self._fits: Numbers = np.zeros((0, len(sizes)), np.int32)  # of each node: how many of each size it has room for
        self._changes, self._described = Changes(), Changes(of_nodes=True)

    def totals(self, cluster: Cluster) -> Integers:
        """Fifths of slots of the whole cluster."""
        self.follow(cluster)
        totals: Integers = np.zeros(len(self.classes), np.int64)
        for first in range(0, len(cluster.nodes), NODES_PER_BATCH):
            rows = np.arange(first, min(first + NODES_PER_BATCH, len(cluster.nodes)))
            totals += self._count(rows, self._fits[rows], cluster.cpu_free[rows]).sum(axis=0, dtype=np.int64)
        return totals

    def before_and_after(
        self, cluster: Cluster, found: Candidates, rows: Integers, row_of: Integers, unknown: Booleans
    ) -> Fifths:
        """Fifths of slots of those of the rows that are `unknown`, as they are, and then of what each candidate leaves
        on its node. `rows`: those of the candidates, each once; `row_of`: where each candidate's is among them."""
        self.follow(cluster)
        now = self._fits[rows]
        after = now[row_of]
        for column in range(found.before.shape[1]):
            after += self._fitting[found.after[:, column]]
            after -= self._fitting[found.before[:, column]]
        states = np.concatenate([now[unknown], after])
        cpu = np.concatenate([cluster.cpu_free[rows[unknown]], found.cpu_after])
        return self._count(np.concatenate([rows[unknown], found.rows]), states, cpu)

    def follow(self, cluster: Cluster) -> None:
        """Look at the nodes that have changed."""
        rows, described = self._changes.look(cluster), self._described.look(cluster)
        if not len(rows):
            return
        if len(self._fits) != len(cluster.nodes):
            for name in ("_fits", "_accepts", "_row_accepts_all"):
                setattr(self, name, with_rows(getattr(self, name), len(cluster.nodes)))
        if len(described):
            self._look_at_nodes(cluster, described)
        self._fits[rows] = self._fitting[cluster.room[rows]].sum(axis=1, dtype=np.int32)

    def _count(self, rows: Integers, fitting: Numbers, cpu: Integers) -> Fifths:
        """Of nodes in this state: how many GPU requests of each size fit, and free CPU."""
        of_gpus = fitting.take(self._size_of, axis=1)
        of_gpus[:, self._of_one :] //= self._per_request
        slots = np.minimum(of_gpus, MAX_SLOTS).astype(np.int16)[:, self._group_of]
        by_cpu = (np.maximum(cpu, 0).astype(np.float32) + np.float32(0.5))[:, None] * self._per_milli_cpu
        if cpu.max(initial=0) >= self._cpu_of_most:
            np.minimum(by_cpu, MAX_SLOTS, out=by_cpu)
        fifths = by_cpu.astype(np.int16)
        fifths[:, self._with_gpus :] *= FIFTHS_PER_SLOT
        by_cpu_alone = fifths[:, : self._with_gpus]
        has_cpu = np.minimum(by_cpu_alone, 1)
        np.minimum(by_cpu_alone, slots, out=by_cpu_alone)
        slots *= FIFTHS_PER_SLOT - 1
        by_cpu_alone += slots
        by_cpu_alone *= has_cpu
        if not self._accepts_all:
            fifths *= self._accepts[rows]
        return fifths

    def _look_at_nodes(self, cluster: Cluster, rows: Integers) -> None:
        """Of nodes that came or were described anew: which classes may go there, and accept their GPUs. What fits says
        that of all GPUs but of those of some models, and of shares for several GPUs, which may fit on fewer."""
        usable = cluster.is_usable[rows]
        number = {models: usable.sum(axis=1) for models in {each.models for each in self.classes}}
        for models in number:
            if models:
                number[models] = (usable & cluster.has_model(rows, models)).sum(axis=1)
        is_open = {rules: cluster.is_open(rows, rules) for rules in {each.nodes for each in self.classes}}
        for index, each in enumerate(self.classes):
            is_said = not each.models and (each.gpus <= 1 or each.milli > MILLI_PER_GPU // 2)
            has_gpus = is_said or number[each.models] >= each.gpus
            self._accepts[rows, index] = is_open[each.nodes] & has_gpus
        self._row_accepts_all[rows] = self._accepts[rows].all(axis=1)
        self._accepts_all = bool(self._row_accepts_all.all())
