"""Waste prices: waste no part of a GPU that no share fits into, and keep slots for the classes that run short.

A place is as good as what it leaves: 100,000 times the worth of the node's free GPU parts (prices.py), and for each
class of requests what its slots are worth (slots.py): the more frequent it is, the smaller it is, and the scarcer its
slots are in the whole cluster, the more. Scarcity is looked at again when 15 % of the free GPUs, or enough pods, have
come or gone.
"""

import numpy as np

from gpuplane.cluster.engine.arrays import Floats, with_rows
from gpuplane.cluster.engine.candidates import Candidates
from gpuplane.cluster.engine.changes import Changes
from gpuplane.cluster.engine.cluster import Cluster
from gpuplane.cluster.engine.policies.expected import Expected, fewest
from gpuplane.cluster.engine.policies.wasteprice.prices import waste_prices
from gpuplane.cluster.engine.policies.wasteprice.slots import FIFTHS_PER_SLOT, MAX_SLOTS, Fifths, Slots
from gpuplane.cluster.engine.workload import RequestClass, Workload
from gpuplane.cluster.model.requests import MILLI_PER_GPU, Request

POINTS_PER_WASTED_GPU = 1e5
"""A whole GPU, in points."""
SLOTS_EXPONENT = 0.8
"""The second slot on a node is worth less than the first."""
MIN_PART_OF_SEVERAL_GPUS = 0.015
"""Requests for as many GPUs, two or more, count as this part of all at least: where shares are many they are rare, and
without that their room is gone first."""
USUAL_CPU = 12_000
"""Milli-CPU of a request without GPUs that counts as much as a GPU."""
MAX_CPU_RATIO_OF_CLASS = 1.1
"""Requests that differ by their CPU alone, and by no more than this factor, are one class."""
MAX_SCARCITY = 1000.0
"""The most that scarcity counts."""
FREE_GPUS_CHANGE = 0.15
"""The part of the free GPUs that has to go or come before scarcity is looked at again."""
CHANGES_PER_NODE = 0.5
"""Changes for each node after which it is looked at again, too: pods come and go, and as much stays free."""
POWERS_OF_SLOTS: Floats = (np.arange(MAX_SLOTS * FIFTHS_PER_SLOT + 1) / FIFTHS_PER_SLOT) ** SLOTS_EXPONENT
"""What so many fifths of slots are worth, beside one."""


class WastePrice:
    """The prices of the workload that is expected, and anew as it or the cluster changes."""

    prefers_free_gpus = False

    def __init__(self, workload: Workload | None = None) -> None:
        self.workload = Workload() if workload is None else workload
        self.frequency: dict[RequestClass, float] = {}
        self._expected = Expected(self.workload)
        self._classes: dict[RequestClass, float] | None = None
        self._cluster: Cluster | None = None  # the one that the numbers below are of
        self._free_milli = 0
        self._count_at = 0  # the version of the cluster when it has to be counted again
        self._seen = 0  # the version of the cluster when scarcity was last looked at
        self._pricing: Potential | None = None

    def refresh(self, cluster: Cluster) -> "Potential":
        """The potential, by how scarce slots were when last looked at."""
        self._expect(self._expected.classes(cluster))
        if cluster is not self._cluster:
            self._cluster, self._pricing = cluster, None
        has_churned = cluster.version - self._seen > CHANGES_PER_NODE * len(cluster.rows)
        if self._pricing is None or has_churned or self._has_moved(cluster):
            self._free_milli, self._seen, self._count_at = cluster_free_milli(cluster), cluster.version, 0
            self._pricing = Potential(self._worth, self._slots, weights(cluster, self._slots, self.frequency))
        return self._pricing

    def _expect(self, classes: dict[RequestClass, float]) -> None:
        """Price anew, if these are not what was expected before."""
        if classes is self._classes:
            return
        self._classes = classes
        self._worth = waste_prices(_share_demand(classes))
        self.frequency = fewest(merge_alike(with_large(classes)))
        self._slots = Slots(list(self.frequency))
        self._pricing = None

    def _has_moved(self, cluster: Cluster) -> bool:
        """Whether that part of the free GPUs has come or gone. One change moves no more than a node's GPUs; so they are
        not counted after each."""
        if cluster.version < self._count_at:
            return False
        spare = FREE_GPUS_CHANGE * self._free_milli - abs(cluster_free_milli(cluster) - self._free_milli)
        self._count_at = cluster.version + max(1, int(spare / (MILLI_PER_GPU * max(cluster.room.shape[1], 1))))
        return spare < 0


def cluster_free_milli(cluster: Cluster) -> int:
    """Milli-GPU of all GPUs that are free."""
    return int(np.maximum(cluster.room, 0).sum())


def _share_demand(frequency: dict[RequestClass, float]) -> dict[int, float]:
    demand = dict[int, float]()
    for each, often in frequency.items():
        if 0 < each.milli < MILLI_PER_GPU:
            demand[each.milli] = demand.get(each.milli, 0.0) + often * each.gpus
    return demand


def with_large(frequency: dict[RequestClass, float]) -> dict[RequestClass, float]:
    """The frequencies, those of rare large requests raised: of all that ask for as many GPUs by the same factor."""
    total = dict[int, float]()
    for each, often in frequency.items():
        total[each.gpus] = total.get(each.gpus, 0.0) + often
    return {
        each: often * max(1.0, MIN_PART_OF_SEVERAL_GPUS / total[each.gpus]) if each.gpus > 1 else often
        for each, often in frequency.items()
    }


def merge_alike(frequency: dict[RequestClass, float]) -> dict[RequestClass, float]:
    """Fewer classes: of those that differ little in CPU one is made, with their mean CPU."""
    found, group = dict[RequestClass, float](), list[RequestClass]()
    for each in [*sorted(frequency, key=_order), None]:
        if group and (
            each is None or each[1:] != group[0][1:] or each.cpu_milli > MAX_CPU_RATIO_OF_CLASS * group[0].cpu_milli
        ):
            often = sum(frequency[alike] for alike in group)
            mean = sum(frequency[alike] * alike.cpu_milli for alike in group) / often
            found[group[0]._replace(cpu_milli=round(mean))] = often
            group.clear()
        if each is not None:
            group.append(each)
    return found


def _order(each: RequestClass) -> tuple[object, ...]:
    """The same in every process; the CPU last."""
    return each.gpus, each.milli, sorted(each.models), repr(each.nodes), each.cpu_milli


def weights(cluster: Cluster, slots: Slots, frequency: dict[RequestClass, float]) -> Floats:
    """What a slot of each class counts: 0 where there is none left, so that what cannot run does not decide."""
    found, totals = np.zeros(len(slots.classes)), slots.totals(cluster)
    milli, cpu = cluster_free_milli(cluster), int(np.maximum(cluster.cpu_free, 0).sum())
    for index, each in enumerate(slots.classes):
        count = float(totals[index]) / FIFTHS_PER_SLOT
        if not count:
            continue
        use = each.gpus * each.milli * count if each.gpus else each.cpu_milli * count * milli / max(cpu, 1)
        scarcity = min(MAX_SCARCITY, max(1.0, milli / max(use, 1e-9)) ** 2)
        found[index] = frequency[each] * (MILLI_PER_GPU / each.milli if each.gpus else 0.5) * scarcity
    return found


class Potential:
    """What nodes in a state are worth, for fixed weights of the classes."""

    gpu_points = POINTS_PER_WASTED_GPU

    def __init__(self, worth: Floats, slots: Slots, weights: Floats) -> None:
        self.worth, self.slots, self.weights = worth, slots, weights
        sizes = [
            each.gpus * each.milli / MILLI_PER_GPU if each.gpus else each.cpu_milli / USUAL_CPU
            for each in slots.classes
        ]
        self._of_slot: Floats = weights * 1000 * np.array(sizes) ** SLOTS_EXPONENT
        self._before = np.zeros(0)  # of each node
        self._is_known = np.zeros(0, np.bool_)  # whether that is of its state now
        self._changes = Changes()

    def score(self, cluster: Cluster, request: Request, found: Candidates) -> Floats:
        """The potential after less the potential before."""
        self._follow(cluster)
        is_first = np.ones(len(found.rows), np.bool_)  # of its row
        np.not_equal(found.rows[1:], found.rows[:-1], out=is_first[1:])
        rows, row_of = found.rows[is_first], is_first.cumsum() - 1
        is_unknown = ~self._is_known[rows]
        unknown = rows[is_unknown]
        worth = self._slots_worth(self.slots.before_and_after(cluster, found, rows, row_of, is_unknown))
        self._before[unknown], after = worth[: len(unknown)], worth[len(unknown) :]
        self._is_known[unknown] = True
        scores: Floats = after - self._before[found.rows]
        if found.before.shape[1]:
            scores += POINTS_PER_WASTED_GPU * (self.worth[found.after] - self.worth[found.before]).sum(axis=1)
        if found.instances_left is not None:
            scores -= found.instances_left
        return scores

    def _follow(self, cluster: Cluster) -> None:
        """Forget what nodes were worth that have changed."""
        changed = self._changes.look(cluster)
        if len(self._before) != len(cluster.nodes):
            self._before = with_rows(self._before, len(cluster.nodes))
            self._is_known = with_rows(self._is_known, len(cluster.nodes))
        self._is_known[changed] = False

    def _slots_worth(self, fifths: Fifths) -> Floats:
        worth: Floats = (POWERS_OF_SLOTS.take(fifths) * self._of_slot).sum(axis=1)
        return worth
