"""Why a pod goes where it goes, why not to each of the other nodes, and what would have to end for it to fit. Pure.

Each node has one reason, the first that holds in the order of `NodeCode`: what never changes comes before what is taken
now. So `in-use` says that waiting helps, and `too-small` that it does not.
"""

from collections.abc import Iterable, Iterator
from typing import Literal, get_args

import numpy as np

from gpuplane.model.value import Value
from gpuplane.placement.candidates import candidates
from gpuplane.placement.cluster import Booleans, Cluster
from gpuplane.placement.engine import Engine
from gpuplane.placement.pods import Pod
from gpuplane.placement.policies.policy import Policy
from gpuplane.placement.preemption import Preemption, find_preemption, preempts
from gpuplane.placement.requests import GpuRequest, Placement, Request

NodeCode = Literal[
    "chosen",
    "worse",
    "closed",
    "labels",
    "taint",
    "no-gpus",
    "model",
    "id",
    "resource",
    "sick",
    "partitioned",
    "profile",
    "too-small",
    "not-linked",
    "cpu-in-use",
    "memory-in-use",
    "gpus-in-use",
]
"""`chosen`; `worse`: it fits there, and the policy likes it less. As the node is: `closed` (cordoned, or not ready),
`labels`, `taint` (one that it does not tolerate), `no-gpus` (fewer than it asks for), `model`, `id`, `resource` (too
few of these), `sick` (too few can be given out), `partitioned` (only as MIG devices), `profile` (no such MIG devices),
`too-small` (even when empty), `not-linked`. As it is now: `cpu-in-use`, `memory-in-use`, `gpus-in-use`."""
FITS = ("chosen", "worse")


class GpuUse(Value):
    """A GPU that the pod would have: its place on the node, its id, and milli-GPU free there before and after; None
    where nothing of the GPU is free by parts."""

    gpu: int
    id: str
    free: int | None
    left: int | None


class NodeReason(Value):
    """Why a node was chosen, or was not. `score`: by the policy, where the pod fits; the more, the better."""

    node: str
    code: NodeCode
    score: float | None = None


class Explanation(Value):
    """`placement`: None where the pod fits nowhere. `gpus`: what it has there. `nodes`: a reason for each node; those
    where it fits come first, the best of them before the others. `preemption`: which pods of lower priority have to end
    for it to fit; `ending`: which pods of any priority. Both are None where it fits, or nothing helps."""

    placement: Placement | None
    gpus: tuple[GpuUse, ...]
    nodes: tuple[NodeReason, ...]
    preemption: Preemption | None = None
    ending: Preemption | None = None

    def counts(self) -> dict[str, int]:
        """How many nodes have each reason; in the order of the codes."""
        codes = [each.code for each in self.nodes]
        return {code: codes.count(code) for code in get_args(NodeCode) if code in codes}


def explain(cluster: Cluster, policy: Policy, pod: Pod, placed: Iterable[Pod] = ()) -> Explanation:
    """The decision about a pod as the cluster is now. `placed`: who has what of it."""
    engine = Engine(cluster, policy)
    placement, scores = engine.choose(pod.request), engine.scores(pod.request)
    chosen = -1 if placement is None else cluster.rows[placement.node]
    codes = _codes(cluster, pod.request)
    nodes = list[NodeReason]()
    for name, row in cluster.rows.items():
        if scores[row] > -np.inf:
            nodes.append(NodeReason(name, "chosen" if row == chosen else "worse", float(scores[row])))
        else:
            nodes.append(NodeReason(name, codes[name]))
    order = get_args(NodeCode).index
    nodes.sort(key=lambda each: (order(each.code), -(each.score or 0.0), each.node))
    if placement is not None:
        return Explanation(placement, _uses(cluster, pod.request, placement), tuple(nodes))
    there = list(placed)
    allowed = find_preemption(cluster, pod.request, there, preempts(pod))
    return Explanation(None, (), tuple(nodes), allowed, find_preemption(cluster, pod.request, there, lambda _: True))


def _uses(cluster: Cluster, request: Request, placement: Placement) -> tuple[GpuUse, ...]:
    row = cluster.rows[placement.node]
    node = cluster.nodes[row]
    assert node is not None
    found = list[GpuUse]()
    shares = [share for part in placement.shares for share in part]
    for gpu in dict.fromkeys(share.gpu for share in shares):
        if cluster.is_usable[row, gpu]:
            left = cluster.room_after(row, gpu, [share for share in shares if share.gpu == gpu])
            found.append(GpuUse(gpu, node.gpus[gpu].id, int(cluster.room[row, gpu]), left))
        else:
            found.append(GpuUse(gpu, node.gpus[gpu].id, None, None))
    return tuple(found)


def _codes(cluster: Cluster, request: Request) -> dict[str, NodeCode]:
    """Node → why the pod would not fit there."""
    rows = np.array([*cluster.rows.values()], np.int64)
    found = np.full(len(rows), "gpus-in-use", object)
    is_open = np.ones(len(rows), np.bool_)  # no reason yet

    def keep(fits: Booleans, code: NodeCode) -> None:
        nonlocal is_open
        found[is_open & ~fits] = code
        is_open &= fits

    nodes = [node for row in rows if (node := cluster.nodes[row]) is not None]
    empty = Cluster(each.but(is_schedulable=True, taints=()) for each in nodes)
    keep(cluster.is_schedulable[rows], "closed")
    keep(empty.is_allowed(np.arange(len(rows)), request.nodes), "labels")
    keep(cluster.is_allowed(rows, request.nodes), "taint")
    for wanted in request.gpus:
        for code, fits in _gpu_checks(empty, wanted):
            keep(fits, code)
    if any(each.linked == "required" for each in request.gpus):
        unlinked = request.but(gpus=tuple(each.but(linked="any") for each in request.gpus))
        keep(_fits(empty, request) | ~_fits(empty, unlinked), "not-linked")
    keep(_fits(empty, request), "too-small")
    keep(cluster.cpu_free[rows] >= request.cpu_milli, "cpu-in-use")
    keep(cluster.memory_free[rows] >= request.memory_mib, "memory-in-use")
    return dict(zip(cluster.rows, found.tolist(), strict=True))


def _fits(cluster: Cluster, request: Request) -> Booleans:
    """On which nodes a request fits."""
    rows = np.arange(len(cluster.rows))
    return np.isin(rows, candidates(cluster, request, rows).rows)


def _gpu_checks(empty: Cluster, wanted: GpuRequest) -> Iterator[tuple[NodeCode, Booleans]]:
    """Which nodes with nothing taken have enough GPUs for one part of a request: first in number, then of each kind."""
    rows = np.arange(len(empty.rows))
    number = np.array([len(node.gpus) if node else 0 for node in empty.nodes], np.int64)
    there = np.arange(empty.is_usable.shape[1]) < number[:, None]
    checks: list[tuple[NodeCode, Booleans]] = [("no-gpus", there)]
    if wanted.models:
        checks.append(("model", empty.has_model(rows, wanted.models)))
    if wanted.ids:
        checks.append(("id", empty.has_id(rows, wanted.ids)))
    if wanted.resource and not wanted.profile:
        checks.append(("resource", empty.has_resource(rows, wanted.resource)))
    usable, partitioned = empty.is_usable[rows], empty.is_partitioned[rows]
    checks.append(("sick", usable | partitioned))
    checks.append(("profile", empty.fits(rows, wanted)) if wanted.profile else ("partitioned", usable))
    checks.append(("too-small", empty.fits(rows, wanted)))
    for code, have in checks:
        there = there & have
        yield code, there.sum(axis=1) >= wanted.count
