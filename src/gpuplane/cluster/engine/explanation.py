"""Why a pod goes where it goes, why not to each of the other nodes, and what would have to end for it to fit. Pure.

Each node has one reason, the first that holds in the order of `NodeCode`: what never changes comes before what is taken
now. So `in-use` says that waiting helps, and `too-small` that it does not.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, get_args

import numpy as np

from gpuplane.base.value import Value
from gpuplane.cluster.engine.arrays import Booleans
from gpuplane.cluster.engine.candidates import candidates
from gpuplane.cluster.engine.cluster import Cluster
from gpuplane.cluster.engine.engine import Engine
from gpuplane.cluster.engine.preemption import NO_BUDGETS, Preemption, find_preemption, preempts
from gpuplane.cluster.model.pods import Pod
from gpuplane.cluster.model.requests import GpuRequest, Placement, Request, Share
from gpuplane.kubernetes.resourcenames import MIG_RESOURCE_PREFIX

Unfit = Literal["model", "id", "resource", "sick", "partitioned", "profile", "too-small"]
"""What is said of GPUs, and of a node that has too few others."""
NodeCode = Literal[
    "chosen",
    "worse",
    "closed",
    "labels",
    "taint",
    "no-gpus",
    Unfit,
    "not-linked",
    "no-others",
    "cpu-in-use",
    "memory-in-use",
    "others-in-use",
    "gpus-in-use",
]
"""`chosen`; `worse`: it fits there, and the policy likes it less. As the node is: `closed` (cordoned, or not ready),
`labels`, `taint` (one that it does not tolerate), `no-gpus` (fewer than it asks for), `model`, `id`, `resource` (too
few of these), `sick` (too few can be given out), `partitioned` (only as MIG devices), `profile` (no such MIG devices),
`no-others` (less of another resource than it asks for), `too-small` (even when empty), `not-linked`. As it is now:
`cpu-in-use`, `memory-in-use`, `others-in-use`, `gpus-in-use` (a pod may hold a GPU that is sick, and counts)."""
GpuCode = Literal["chosen", "fits", Unfit, "in-use"]
"""Of one GPU, for the part of the request that it suits best: `chosen`; `fits`, but another one is taken, or its node
is not. As it is: `model`, `id`, `resource`, `sick`, `partitioned`, `profile` (it has no MIG device of it), `too-small`.
As it is now: `in-use`, too much of it."""


class GpuReason(Value, omit_defaults=False):
    """Why a pod gets a GPU of a node, or does not. `gpu`: its place there. `free`: milli-GPU, and `left` after this
    pod; None where it is given out as MIG devices. `pods`: "namespace/name" of those that have some of it."""

    gpu: int
    id: str
    code: GpuCode
    free: int | None = None
    left: int | None = None
    pods: tuple[str, ...] = ()


class NodeReason(Value, omit_defaults=False):
    """Why a node was chosen, or was not. `score`: by the policy, where the pod fits; the more, the better."""

    node: str
    code: NodeCode
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
        return {code: codes.count(code) for code in get_args(NodeCode) if code in codes}


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
    codes = _codes(cluster, emptied(cluster) if empty is None else empty, pod.request)
    nodes = list[NodeReason]()
    for name, row in cluster.rows.items():
        if scores[row] > -np.inf:
            nodes.append(NodeReason(name, "chosen" if row == chosen else "worse", float(scores[row])))
        else:
            nodes.append(NodeReason(name, codes[name]))
    order = get_args(NodeCode).index
    nodes.sort(key=lambda each: (order(each.code), -(each.score or 0.0), each.node))
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
        code: GpuCode = max((each[place] for each in codes), key=get_args(GpuCode).index, default="fits")
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


def _gpu_codes(cluster: Cluster, empty: Cluster, row: int, wanted: GpuRequest) -> list[GpuCode]:
    """The code of each GPU for one part of a request. `empty`: the node with nothing taken."""
    codes = np.full(empty.is_usable.shape[1], "in-use", object)
    is_open = np.ones(len(codes), np.bool_)
    for code, fits in (*_gpu_checks(empty, wanted), ("in-use", cluster.fits(np.array([row]), wanted))):
        fits = fits[0, : len(codes)]
        codes[is_open & ~fits] = code
        is_open &= fits
    codes[is_open] = "fits"
    return codes.tolist()


def _codes(cluster: Cluster, empty: Cluster, request: Request) -> dict[str, NodeCode]:
    """Node → why the pod would not fit there."""
    rows = np.array([*cluster.rows.values()], np.int64)
    found = np.full(len(rows), "gpus-in-use", object)
    is_open = np.ones(len(rows), np.bool_)  # no reason yet

    def keep(fits: Booleans, code: NodeCode) -> None:
        nonlocal is_open
        found[is_open & ~fits] = code
        is_open &= fits

    keep(cluster.is_schedulable[rows], "closed")
    keep(empty.is_allowed(np.arange(len(rows)), request.nodes), "labels")
    keep(cluster.is_allowed(rows, request.nodes), "taint")
    number = np.array([len(node.gpus) for node in empty.nodes if node is not None], np.int64)
    for wanted in request.kinds_of_gpus:
        there = np.arange(empty.is_usable.shape[1]) < number[:, None]
        keep(there.sum(axis=1) >= wanted.count, "no-gpus")
        for code, fits in _gpu_checks(empty, wanted):
            there &= fits
            keep(there.sum(axis=1) >= wanted.count, code)
    if any(each.linked == "required" for each in request.gpus):
        unlinked = request.but(gpus=tuple(each.but(linked="any") for each in request.gpus))
        keep(_fits(empty, request) | ~_fits(empty, unlinked), "not-linked")
    no_others = request.but(others=())
    keep(_fits(empty, request) | ~_fits(empty, no_others), "no-others")
    keep(_fits(empty, request), "too-small")
    keep(np.maximum(cluster.cpu_free[rows], 0) >= request.cpu_milli, "cpu-in-use")
    keep(np.maximum(cluster.memory_free[rows], 0) >= request.memory_bytes, "memory-in-use")
    for name, amount in request.others:
        if name not in cluster.resources and not name.startswith(MIG_RESOURCE_PREFIX):
            keep(np.maximum(cluster.other_free(rows, name), 0) >= amount, "others-in-use")
    return dict(zip(cluster.rows, found.tolist(), strict=True))


def _fits(cluster: Cluster, request: Request) -> Booleans:
    """On which nodes a request fits."""
    rows = np.arange(len(cluster.rows))
    return np.isin(rows, candidates(cluster, request, rows).rows)


def _gpu_checks(empty: Cluster, wanted: GpuRequest) -> Iterator[tuple[Unfit, Booleans]]:
    """What each GPU has to be for one part of a request, with nothing taken: nodes × GPUs, one code after the other."""
    rows = np.arange(len(empty.rows))
    if wanted.models:
        yield "model", empty.has_model(rows, wanted.models)
    if wanted.ids:
        yield "id", empty.has_id(rows, wanted.ids)
    if wanted.resource and not wanted.profile:
        yield "resource", empty.has_resource(rows, wanted.resource)
    usable, partitioned = empty.is_usable[rows], empty.is_partitioned[rows]
    yield "sick", usable | partitioned
    if wanted.profile:
        yield "profile", empty.fits(rows, wanted)
    else:
        yield "partitioned", usable
    yield "too-small", empty.fits(rows, wanted)
