"""Fragmentation gradient descent: take the place after which the least GPU is out of reach of the usual requests.

Source: "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent" (USENIX
ATC'23) and its simulator (pkg/utils/frag.go, pkg/simulator/plugin/fgd_score.go). A node's fragmentation is, over the
typical requests by their frequency: all that is free of its GPUs where the request cannot run there (one that wants no
GPU never uses one); else what is free of the GPUs that have too little for it.

The paper's score is a whole number from 0 to 100, and ties decide a great deal: its simulator takes the first name.
Here the node and the GPU with the least left win them, and what ties still may be broken at random.
"""

import numpy as np
import numpy.typing as npt

from gpuplane.cluster.engine.arrays import Floats, Integers, with_rows
from gpuplane.cluster.engine.candidates import Candidates
from gpuplane.cluster.engine.changes import Changes
from gpuplane.cluster.engine.cluster import Cluster
from gpuplane.cluster.engine.policies.expected import Expected, fewest
from gpuplane.cluster.engine.workload import RequestClass, Workload
from gpuplane.cluster.model.requests import MILLI_PER_GPU, Request

TYPICAL_PART = 0.95
"""The most frequent requests that make up so much of all are the typical ones."""
GPU_COUNT_SHIFT = 20
"""Where the number of GPUs begins in a word whose lower bits have their milli-GPU."""

Words = npt.NDArray[np.int32]


class Fgd:
    """The fragmentation of the workload that is expected, and anew as it changes."""

    prefers_free_gpus = False

    def __init__(self, workload: Workload | None = None) -> None:
        self.workload = Workload() if workload is None else workload
        self._expected = Expected(self.workload)
        self._classes: dict[RequestClass, float] | None = None
        self._typical: dict[RequestClass, float] = {}
        self._pricing: Fragmentation | None = None

    def refresh(self, cluster: Cluster) -> "Fragmentation":
        """The gradient, for the requests that are typical now on the nodes that there are."""
        classes = self._expected.classes(cluster)
        if classes is not self._classes:
            self._classes, self._typical = classes, typical(classes)
        gpus, cpu_milli = cluster.room.shape[1], int(cluster.cpu_milli.max(initial=0))
        if self._pricing is None or self._pricing.of != (self._typical, gpus, cpu_milli):
            self._pricing = Fragmentation(self._typical, gpus, cpu_milli)
        return self._pricing


def typical(classes: dict[RequestClass, float]) -> dict[RequestClass, float]:
    """The most frequent, until they are 95 % of all; together 1 again. Of very many, not each (`fewest`)."""
    found, total = dict[RequestClass, float](), 0.0
    for each, frequency in sorted(classes.items(), key=lambda item: -item[1]):
        if total >= TYPICAL_PART:
            break
        found[each] = frequency
        total += frequency
    return {each: frequency / total for each, frequency in fewest(found).items()}


class Fragmentation:
    """The gradient for fixed typical requests, on nodes that have so many GPUs and so much CPU at most. Of each node it
    keeps how many GPUs suffice for each request, and what is free of these."""

    gpu_points = 25.0  # how steep the score is where nothing is gained or lost

    def __init__(self, requests: dict[RequestClass, float], gpus: int, cpu_milli: int) -> None:
        self.of = requests, gpus, cpu_milli
        self._most_idle, self._largest_cpu = MILLI_PER_GPU * max(gpus, 1), max(cpu_milli, 1)
        kinds = [each for each in requests if each.gpus]
        self._kinds = kinds
        self._cpu = np.array([each.cpu_milli for each in kinds], np.int32)
        self._frequency = np.array([requests[each] for each in kinds])
        self._enough = np.array([each.gpus for each in kinds], np.int32) << GPU_COUNT_SHIFT
        milli, room = np.array([each.milli for each in kinds]), np.arange(MILLI_PER_GPU + 2)[:, None]
        word = np.where(room >= milli, room + (1 << GPU_COUNT_SHIFT), 0).astype(np.int32)
        word[-1] = 0  # room −1: of a GPU that is not usable
        self._word = word
        self._words: Words = np.zeros((0, len(kinds)), np.int32)
        self._may_run = np.zeros((0, len(kinds)), np.bool_)
        self._may_run_all = np.zeros(0, np.bool_)
        self._all_may_run = True
        self._before = np.zeros(0)
        self._idle: Integers = np.zeros(0, np.int64)
        self._changes, self._described = Changes(), Changes(of_nodes=True)

    def follow(self, cluster: Cluster) -> None:
        """Look at the nodes that have changed."""
        rows, described = self._changes.look(cluster), self._described.look(cluster)
        if not len(rows):
            return
        if len(self._words) != len(cluster.nodes):
            for name in ("_words", "_may_run", "_may_run_all", "_before", "_idle"):
                setattr(self, name, with_rows(getattr(self, name), len(cluster.nodes)))
        if len(described):
            for index, each in enumerate(self._kinds):
                self._may_run[described, index] = cluster.is_open(described, each.nodes, each.models)
            self._may_run_all[described] = self._may_run[described].all(axis=1)
            self._all_may_run = bool(self._may_run_all.all())
        room = cluster.room[rows]
        self._words[rows] = words = self._word[room].sum(axis=1, dtype=np.int32)
        self._idle[rows] = idle = np.maximum(room, 0).sum(axis=1)
        self._before[rows] = self._fragmentation(rows, words, idle, cluster.cpu_free[rows])

    def score(self, cluster: Cluster, request: Request, found: Candidates) -> Floats:
        """The paper's 0 to 100, and behind the point how well the place is used up."""
        self.follow(cluster)
        rows, words, idle = found.rows, self._words[found.rows], self._idle[found.rows]
        for column in range(found.before.shape[1]):
            before, after = found.before[:, column], found.after[:, column]
            words += self._word[after]
            words -= self._word[before]
            idle += after
            idle -= before
        left = self._fragmentation(rows, words, idle, found.cpu_after)
        gain = self._before[rows] - left
        scores: Floats = np.floor(100 / (1 + np.exp(gain / -1000)))
        return scores + self._tie(found, idle)

    def _tie(self, found: Candidates, idle: Integers) -> Floats:
        """From 0 to below 1: best fit, of what is left of the node's GPUs and of its CPU together."""
        if found.instances_left is not None:
            idle = found.instances_left
        left = idle / self._most_idle + found.cpu_after / self._largest_cpu
        tie: Floats = 0.999 / (1 + left)
        return tie

    def _fragmentation(self, rows: Integers, words: Words, idle: Integers, cpu: Integers) -> Floats:
        """Milli-GPU of each of these nodes, were it in that state."""
        runs = words >= self._enough
        runs &= cpu[:, None] >= self._cpu
        if not self._all_may_run:
            runs &= self._may_run[rows]
        used = (words & ((1 << GPU_COUNT_SHIFT) - 1)) * runs
        fragmentation: Floats = idle - used @ self._frequency
        return fragmentation
