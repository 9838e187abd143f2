"""The classes of requests that a policy expects on the GPUs of a cluster."""

import numpy as np

from gpuplane.cluster.engine.arrays import Integers
from gpuplane.cluster.engine.changes import Changes
from gpuplane.cluster.engine.cluster import Cluster
from gpuplane.cluster.engine.workload import RequestClass, Workload
from gpuplane.cluster.model.requests import MILLI_PER_GPU

MAX_CLASSES = 256
"""Classes that a policy looks at for each node and place."""
MAX_PART_BEYOND_MEDIAN = 0.55
"""What was usual stays so until more than this part of the GPUs have less than it, or more: where half have, the next
node to be described anew would change the price of everything, and the one after it again."""


class Expected:
    """Of one workload. What a request for memory or ids is to packing depends on the usual GPU."""

    def __init__(self, workload: Workload) -> None:
        self._workload, self._changes = workload, Changes(of_nodes=True)
        self._version = -1
        self._usual: tuple[int, int] | None = None
        self._classes: dict[RequestClass, float] = {}

    def classes(self, cluster: Cluster) -> dict[RequestClass, float]:
        """`Workload.classes`; the same object until frequencies or the usual GPU have changed."""
        usual = self._usual if self._changes.is_of(cluster) else None
        if len(self._changes.look(cluster)) or usual is None:
            usual = usual_gpu(cluster, usual)
        if (self._version, self._usual) != (self._workload.version, usual):
            self._version, self._usual = self._workload.version, usual
            self._classes = self._workload.classes(*usual)
        return self._classes


def usual_gpu(cluster: Cluster, before: tuple[int, int] | None = None) -> tuple[int, int]:
    """(memory in MiB, milli-GPU of a unit): the medians of the cluster's usable GPUs, or nearly so what they were
    `before`."""
    memory, units = cluster.gpu_memory_mib[cluster.is_usable], cluster.unit_milli[cluster.is_usable]
    if not len(memory):
        return 0, MILLI_PER_GPU
    return _median(memory, before and before[0]), _median(units, before and before[1])


def _median(values: Integers, before: int | None) -> int:
    """The smaller one of an even number: there is a GPU that has as much."""
    if before is not None:
        apart = max(np.count_nonzero(values < before), np.count_nonzero(values > before))
        if apart <= MAX_PART_BEYOND_MEDIAN * len(values):
            return before
    middle = (len(values) - 1) // 2
    return int(np.partition(values, middle)[middle])


def fewest(frequency: dict[RequestClass, float]) -> dict[RequestClass, float]:
    """No more than `MAX_CLASSES` of them: the most frequent, and of each number of GPUs one at least. Each other class
    counts as the nearest of these: of as many GPUs, then of the same models and rules; of those by the ratios of
    milli-GPU and CPU."""
    if len(frequency) <= MAX_CLASSES:
        return frequency
    ordered = sorted(frequency, key=lambda each: -frequency[each])
    of_each_number = {each.gpus: each for each in reversed(ordered)}
    kept = [*dict.fromkeys([*of_each_number.values(), *ordered])][:MAX_CLASSES]
    found = {each: frequency[each] for each in kept}
    others = [each for each in ordered if each not in found]
    groups = {each: number for number, each in enumerate(dict.fromkeys(each[3:] for each in ordered))}
    there, here = (
        np.array([(each.gpus, groups[each[3:]], each.milli or 1, each.cpu_milli or 1) for each in part], np.float64)
        for part in (kept, others)
    )
    unlike = (there[:, :2] != here[:, None, :2]) @ np.array([1e6, 1e3])
    distance = unlike + np.abs(np.log(there[:, 2:]) - np.log(here[:, None, 2:])).sum(axis=2)
    for each, nearest in zip(others, distance.argmin(axis=1).tolist(), strict=True):
        found[kept[nearest]] += frequency[each]
    return found
