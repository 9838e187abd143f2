"""Why a pod goes where it goes, why not to each of the other nodes, and what would have to end for it to fit. Pure.

Each node has one reason, and each GPU: the first that holds in the order of `REASONS`.
"""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from gpuplane.base.value import Value
from gpuplane.cluster.engine.arrays import Booleans
from gpuplane.cluster.engine.candidates import candidates
from gpuplane.cluster.engine.cluster import Cluster
from gpuplane.cluster.engine.dimensions import NODE_DIMENSIONS, OTHERS_IN_USE, fits
from gpuplane.cluster.engine.engine import Engine
from gpuplane.cluster.engine.preemption import NO_BUDGETS, Preemption, find_preemption, preempts
from gpuplane.cluster.engine.reasons import TEXTS_OF_GPUS, TEXTS_OF_NODES
from gpuplane.cluster.model.pods import Pod
from gpuplane.cluster.model.requests import GpuRequest, Placement, Request, Share
from gpuplane.kubernetes.resourcenames import MIG_RESOURCE_PREFIX

GPU_ORDER = [*TEXTS_OF_GPUS].index
NODE_ORDER = [*TEXTS_OF_NODES].index


class GpuReason(Value, omit_defaults=False):
    """Why a pod gets a GPU of a node, or does not. `gpu`: its place there. `free`: milli-GPU, and `left` after this
    pod; None where it is given out as MIG devices. `pods`: "namespace/name" of those that have some of it. `code`: of
    `TEXTS_OF_GPUS`."""

    gpu: int
    id: str
    code: str
    free: int | None = None
    left: int | None = None
    pods: tuple[str, ...] = ()


class NodeReason(Value, omit_defaults=False):
    """Why a node was chosen, or was not. `score`: by the policy, where the pod fits; the more, the better. `code`: of
    `TEXTS_OF_NODES`."""

    node: str
    code: str
    score: float | None = None


class Explanation(Value):
    """`placement`: None where the pod fits nowhere. `gpus`: all of that node. `nodes`: a reason for each node; those
    where it fits come first, the best of them before the others. `preemption`: which pods of lower priority have to end
    for it to fit; `ending`: which pods of any priority. Both are None where it fits, or nothing helps."""

    placement: Placement | None
    gpus: tuple[GpuReason, ...]
    nodes: tuple[NodeReason, ...]
    preemption: Preemption | None = None
    ending: Preemption | None = None

    def counts(self) -> dict[str, int]:
        """How many nodes have each reason; in the order of the codes."""
        codes = [each.code for each in self.nodes]
        return {code: codes.count(code) for code in TEXTS_OF_NODES if code in codes}


def emptied(cluster: Cluster) -> Cluster:
    """The same nodes with nothing taken, open to all pods."""
    nodes = [node for row in cluster.rows.values() if (node := cluster.nodes[row]) is not None]
    return Cluster(each.but(is_schedulable=True, taints=()) for each in nodes)


def explain(
    engine: Engine,
    pod: Pod,
    placed: Iterable[Pod] = (),
    empty: Cluster | None = None,
    budgets: Mapping[str, int] = NO_BUDGETS,
) -> Explanation:
    """The decision about a pod as an engine makes it now. `placed`: who has what of its cluster; `empty`: that cluster
    emptied, if it is there already. `budgets`: name of each budget of disruption → how many of its pods may end."""
    cluster = engine.cluster
    scores, placement = engine.scores(pod.request), engine.choose(pod.request)
    chosen = -1 if placement is None else cluster.rows[placement.node]
    codes = _node_codes(cluster, emptied(cluster) if empty is None else empty, pod.request)
    nodes = list[NodeReason]()
    for name, row in cluster.rows.items():
        if scores[row] > -np.inf:
            nodes.append(NodeReason(name, "chosen" if row == chosen else "worse", float(scores[row])))
        else:
            nodes.append(NodeReason(name, codes[name]))
    nodes.sort(key=lambda each: (NODE_ORDER(each.code), -(each.score or 0.0), each.node))
    if placement is not None:
        gpus = explain_gpus(cluster, pod.request, placement.node, placed, placement)
        return Explanation(placement, gpus, tuple(nodes))
    there = list(placed)
    allowed = find_preemption(cluster, pod.request, there, preempts(pod), budgets)
    ending = find_preemption(cluster, pod.request, there, lambda other: not other.comes_back, budgets)
    return Explanation(None, (), tuple(nodes), allowed, ending)


def explain_gpus(
    cluster: Cluster, request: Request, node: str, placed: Iterable[Pod] = (), placement: Placement | None = None
) -> tuple[GpuReason, ...]:
    """Of each GPU of a node, why a pod gets it there or does not. `placement`: where the pod goes. Raises KeyError."""
    row = cluster.rows[node]
    described = cluster.nodes[row]
    assert described is not None
    taken = dict[int, list[Share]]()
    for part in placement.shares if placement is not None and placement.node == node else ():
        for share in part:
            taken.setdefault(share.gpu, []).append(share)
    holders = dict[int, dict[str, None]]()
    for pod in placed:
        if pod.placement is not None and pod.placement.node == node:
            for share in pod.placement.all_shares:
                holders.setdefault(share.gpu, {})[pod.name] = None
    empty, found = Cluster([described]), list[GpuReason]()
    codes = [_gpu_codes(cluster, empty, row, wanted) for wanted in request.kinds_of_gpus]
    for place, gpu in enumerate(described.gpus):
        code = max((each[place] for each in codes), key=GPU_ORDER, default="fits")
        if any(each[place] == "fits" for each in codes):
            code = "fits"
        is_shared = bool(cluster.is_usable[row, place])
        found.append(
            GpuReason(
                place,
                gpu.id,
                "chosen" if place in taken else code,
                int(cluster.room[row, place]) if is_shared else None,
                cluster.room_after(row, place, taken[place]) if is_shared and place in taken else None,
                tuple(holders.get(place, ())),
            )
        )
    return tuple(found)


def _gpu_codes(cluster: Cluster, empty: Cluster, row: int, wanted: GpuRequest) -> list[str]:
    """The code of each GPU for one part of a request. `empty`: the node with nothing taken."""
    codes = np.full(empty.is_usable.shape[1], "in-use", object)
    is_open = np.ones(len(codes), np.bool_)
    for code, suits in (*_gpu_checks(empty, wanted), ("in-use", cluster.fits(np.array([row]), wanted))):
        suits = suits[0, : len(codes)]
        codes[is_open & ~suits] = code
        is_open &= suits
    codes[is_open] = "fits"
    return codes.tolist()


def _node_codes(cluster: Cluster, empty: Cluster, request: Request) -> dict[str, str]:
    """Node → why the pod would not fit there."""
    rows = np.array([*cluster.rows.values()], np.int64)
    found = np.full(len(rows), "gpus-in-use", object)
    is_open = np.ones(len(rows), np.bool_)  # no reason yet

    def keep(suits: Booleans, code: str) -> None:
        nonlocal is_open
        found[is_open & ~suits] = code
        is_open &= suits

    keep(cluster.is_schedulable[rows], "closed")
    keep(empty.is_allowed(np.arange(len(rows)), request.nodes), "labels")
    keep(cluster.is_allowed(rows, request.nodes), "taint")
    number = np.array([len(node.gpus) for node in empty.nodes if node is not None], np.int64)
    for wanted in request.kinds_of_gpus:
        there = np.arange(empty.is_usable.shape[1]) < number[:, None]
        keep(there.sum(axis=1) >= wanted.count, "no-gpus")
        for code, suits in _gpu_checks(empty, wanted):
            there &= suits
            keep(there.sum(axis=1) >= wanted.count, code)
    if any(each.linked == "required" for each in request.gpus):
        unlinked = request.but(gpus=tuple(each.but(linked="any") for each in request.gpus))
        keep(_fits_on_nodes(empty, request) | ~_fits_on_nodes(empty, unlinked), "not-linked")
    no_others = request.but(others=())
    keep(_fits_on_nodes(empty, request) | ~_fits_on_nodes(empty, no_others), "no-others")
    keep(_fits_on_nodes(empty, request), "too-small")
    of_gpus = {name for name, _ in request.others if name in cluster.resources or name.startswith(MIG_RESOURCE_PREFIX)}
    others = tuple(each for each in request.others if each[0] not in of_gpus)
    for need in cluster.node_needs(request.but(others=others)):
        in_use = NODE_DIMENSIONS[need[0]].in_use if need[0] < len(NODE_DIMENSIONS) else OTHERS_IN_USE
        keep(fits(cluster.node_free, rows, [need], np.True_), in_use)
    return dict(zip(cluster.rows, found.tolist(), strict=True))


def _fits_on_nodes(cluster: Cluster, request: Request) -> Booleans:
    """On which nodes a request fits."""
    rows = np.arange(len(cluster.rows))
    return np.isin(rows, candidates(cluster, request, rows).rows)


def _gpu_checks(empty: Cluster, wanted: GpuRequest) -> Iterator[tuple[str, Booleans]]:
    """What each GPU has to be for one part of a request, with nothing taken: nodes × GPUs, one code after the other."""
    rows = np.arange(len(empty.rows))
    yield from empty.gpu_choices(rows, wanted)
    usable, partitioned = empty.is_usable[rows], empty.is_partitioned[rows]
    yield "sick", usable | partitioned
    if wanted.profile:
        yield "profile", empty.fits(rows, wanted)
    else:
        yield "partitioned", usable
    yield "too-small", empty.fits(rows, wanted)
