"""Which GPUs of a node its pods have: as its annotation says, else as HAMi or gpushare has written on the pod, and
where nobody says it, as they would fit best.

A real node may have more held than it has: a GPU died, a pod was bound by hand, a resource was not counted. That is
described and never refused, and the node is named among the notes. What nobody says is assumed when all else is known,
of the largest pods first.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np

from gpuplane.base.value import Value
from gpuplane.cluster.engine.cluster import Cluster
from gpuplane.cluster.engine.within import place_within
from gpuplane.cluster.model.nodes import Node
from gpuplane.cluster.model.pods import Pod
from gpuplane.cluster.model.requests import WHOLE, GpuRequest, Placement, Request, Share
from gpuplane.cluster.reading.nodes import ALIYUN_MEMORY, SeenNode
from gpuplane.cluster.reading.peers import HeldGpu
from gpuplane.kubernetes.contracts.nodeannotation import GIVEN_OUT_STATES
from gpuplane.kubernetes.contracts.nodegpus import Holding
from gpuplane.kubernetes.resourcenames import GPU_RESOURCE

NoteCode = Literal[
    "object-unreadable",
    "annotation-unreadable",
    "held-assumed",
    "over-held",
    "device-gone",
    "claims-unread",
    "budgets-unread",
    "gated",
    "model-unknown",
    "node-unknown",
    "duplicate-name",
]
"""`object-unreadable`: a Node, a Pod or a budget of disruption is not as the API has it, and is left out.
`annotation-unreadable`: the node is described by its labels. `held-assumed`: nobody says which GPUs some of its pods
have, or not of all. `over-held`: its pods ask for more than there is. `device-gone`: a container holds a device that
the node does not have. `claims-unread`: a pod has devices by claims (DRA), which are not read. `budgets-unread`: the
user may not list budgets of disruption. `gated`: a pod waits until somebody takes its scheduling gates away, and is
left out. `model-unknown`: nobody says of what model a node's GPUs are, and there are others; all of them count as one.
`node-unknown`: a pod is bound to a node that was not listed. `duplicate-name`: two nodes or two pods have one name, and
the first counts; or two pods one UID."""
Rest = Sequence[tuple[int, GpuRequest]]
"""Of the parts of a pod's request: its place among them, and what is not known of it."""


class Note(Value, omit_defaults=False):
    """What is not as it should be, of a node, of a pod or budget "namespace/name", or of a kind of objects."""

    code: NoteCode
    subject: str
    detail: str = ""


def settle(
    seen: SeenNode, pods: Iterable[Pod], by_peers: Mapping[str, Sequence[HeldGpu]] | None = None
) -> tuple[list[Pod], list[Note]]:
    """The pods of a node with their places, and what is to be noted. What nobody known holds is a pod without UID.

    `by_peers`: pod "namespace/name" → what other systems have written on it.
    """
    told, lost, nameless, notes = _told_shares(seen)
    in_turn = sorted(pods, key=lambda pod: pod.name)
    in_turn.sort(key=lambda pod: pod.request.size, reverse=True)  # the largest first: so all fit that could
    found = list[tuple[Pod, Rest]]()
    for each in in_turn:
        if each.name in told:
            placement = _placement(seen.node, each, told.pop(each.name))
        else:
            placement = _placement_by_peers(seen.node, each, (by_peers or {}).get(each.name, ()))
        found.append((each.but(placement=placement), _rest(seen.node, each.request, placement, lost[each.name])))
    for index, (each, rest) in enumerate(found):
        if rest and (matching := _take_nameless(rest, nameless)):
            assert each.placement is not None
            found[index] = each.but(placement=_joined(each.placement, rest, matching), is_assumed=True), ()
    strangers = [_stranger(seen.node, name, shares) for name, shares in told.items()]
    strangers += [_stranger(seen.node, "", [("", share)]) for _, share in nameless]
    return fill(seen.node, [*((each, ()) for each in strangers), *found], notes)


def fill(node: Node, pods: Sequence[tuple[Pod, Rest]], notes: Iterable[Note] = ()) -> tuple[list[Pod], list[Note]]:
    """The pods with all their places, and with the rest of their GPUs that nobody has told."""
    if not pods:
        return [], list(notes)
    cluster, found, said = Cluster([node.but(is_schedulable=True, taints=())]), list[Pod](), list(notes)
    for each, rest in sorted(pods, key=lambda pod: bool(pod[1]) or not pod[0].has_gpus):
        assert each.placement is not None
        cluster.hold(each.request, each.placement)
        guess = _assume(cluster, node, [wanted for _, wanted in rest]) if rest else []
        placement = _joined(each.placement, rest, guess)
        found.append(each.but(placement=placement, is_assumed=each.is_assumed or bool(rest)))
    if any(rest for _, rest in pods):
        said.append(Note("held-assumed", node.name))
    if cluster.is_over_held(node.name):
        said.append(Note("over-held", node.name))
    return found, said


def _rest(node: Node, request: Request, placement: Placement, lost: int) -> Rest:
    """What a pod asks for and nobody has told: of which parts, and how much, on GPUs that the part does not have yet.
    `lost`: so many ids that it holds are of devices that nobody gets any more."""
    asked = [each.count * max(each.units, 1) for each in request.gpus]
    has = [sum(max(share.units, 1) for share in part) for part in placement.shares]
    spare = lost + sum(max(there - count, 0) for count, there in zip(asked, has, strict=False))
    rest = list[tuple[int, GpuRequest]]()
    for part, (count, there) in enumerate(zip(asked, has, strict=False)):
        missing = max(count - there, 0)
        known = min(missing, spare)
        spare -= known
        if missing > known:
            wanted, mine = request.gpus[part], {share.gpu for share in placement.shares[part]}
            others = frozenset(gpu.id for place, gpu in enumerate(node.gpus) if place not in mine)
            ids = (wanted.ids & others if wanted.ids else others) if mine else wanted.ids
            rest.append((part, wanted.but(count=missing - known, ids=ids)))
    return rest


def _joined(placement: Placement, rest: Rest, shares: Iterable[Sequence[Share]]) -> Placement:
    """A place with the shares of the rest, too."""
    parts = [*placement.shares]
    for (part, _), more in zip(rest, shares, strict=True):
        parts[part] = (*parts[part], *more)
    return placement.but(shares=tuple(parts))


def _assume(cluster: Cluster, node: Node, wanted: Sequence[GpuRequest]) -> list[tuple[Share, ...]]:
    """Takes these GPUs where they fit; else those that have most left, two ids of one GPU as NVIDIA's plugin gives them
    out if it comes to that."""
    if found := place_within(cluster, 0, Request(gpus=tuple(wanted))):
        cluster.take(Request(), found)
        return list(found.shares)
    parts = list[tuple[Share, ...]]()
    for each in wanted:
        shares = list[Share]()
        for _ in range(min(each.count, sum(gpu.units for gpu in node.gpus) + 1) if node.gpus else 0):
            share = cluster.share_of(0, _freest(cluster, len(node.gpus), each), each)
            if share.profile and share.profile not in node.gpus[share.gpu].profiles:
                continue
            cluster.hold(Request(), Placement(node.name, ((share,),)))
            shares.append(share)
        parts.append(tuple(shares))
    return parts


def _freest(cluster: Cluster, gpus: int, wanted: GpuRequest) -> int:
    """The GPU of the only node that has the most left of what is wanted; one where it fits before all others."""
    fits = cluster.fits(np.zeros(1, np.int64), wanted)[0, :gpus]
    left = cluster.milli_free[0, :gpus]
    if wanted.profile in cluster.profiles:
        left = cluster.instances_free[0, :gpus, cluster.profiles[wanted.profile]]
    return int(np.lexsort((left, fits))[-1])


def _told_shares(
    seen: SeenNode,
) -> tuple[dict[str, list[tuple[str, Share]]], Counter[str], list[tuple[Holding, Share]], list[Note]]:
    """Pod "namespace/name" → (container, share) of each that it holds, and → ids that it holds of devices that are
    gone or sick; what is held by nobody that is named; notes."""
    told, lost, nameless = dict[str, list[tuple[str, Share]]](), Counter[str](), list[tuple[Holding, Share]]()
    notes = [Note("annotation-unreadable", seen.node.name, seen.problem)] if seen.problem else []
    for holding in seen.told.holdings if seen.told is not None else ():
        place = seen.devices.get(holding.device)
        shares = [] if place is None else _shares_of(seen, holding, place)
        if place is None:
            notes.append(Note("device-gone", seen.node.name, holding.device))
        if not holding.holder.name:
            nameless.extend((holding, share) for share in shares)
            continue
        name = f"{holding.holder.namespace}/{holding.holder.name}"
        if shares:
            told.setdefault(name, []).extend((holding.holder.container, share) for share in shares)
        else:
            lost[name] += 1 if holding.memory_mib else holding.ids
    return told, lost, nameless, notes


def _shares_of(seen: SeenNode, holding: Holding, place: int) -> list[Share]:
    """What so many ids of one device take of its GPU."""
    gpu = seen.node.gpus[place]
    if gpu.is_partitioned and ":" in holding.device:
        assert seen.told is not None
        device = next((each for all in seen.told.gpus for each in all.mig if each.index == holding.device), None)
        if device is None or device.state not in GIVEN_OUT_STATES:  # a sick one is not among those that are free
            return []
        return [Share(place, 0, 0, device.profile)] * holding.ids
    if mib := holding.memory_mib:
        return [Share(place, mib * WHOLE // gpu.memory_mib if gpu.memory_mib else WHOLE, mib)]
    units = min(holding.ids, gpu.units)
    return [Share(place, WHOLE // gpu.units * units, gpu.memory_mib // gpu.units * units, units=units)]


def _placement(node: Node, pod: Pod, shares: Sequence[tuple[str, Share]]) -> Placement:
    """The shares by the parts of the pod's request; what belongs to no part is with the last one."""
    parts = [list[Share]() for _ in pod.request.gpus] or [[]]
    wanted = [each.count for each in pod.request.gpus] or [0]
    names: Sequence[str] = pod.containers or ("",)
    for container, share in shares:
        mine = [place for place, name in enumerate(names) if not container or name == container]
        open_ = [place for place in mine if len(parts[place]) < wanted[place]] or mine or [len(parts) - 1]
        parts[open_[0]].append(share)
    return Placement(node.name, tuple(map(tuple, parts)))


def _placement_by_peers(node: Node, pod: Pod, held: Sequence[HeldGpu]) -> Placement:
    """What others say that a pod has, by the parts of its request. What they do not say, or not of a GPU that the node
    has, is not there.

    What a container has that runs before the others counts as far as they have less of that GPU: of each GPU the most
    that is used at once (HAMi, pkg/scheduler/score.go, applyPeakUsage).
    """
    if not held:
        return Placement(node.name, ((),) * len(pod.request.gpus))
    cluster, places = Cluster([node]), {gpu.id: place for place, gpu in enumerate(node.gpus)}
    parts = [list[Share]() for _ in pod.request.gpus]
    for gpu in sorted(held, key=lambda each: each.is_before):
        at = places.get(gpu.id, -1) if gpu.id else gpu.place
        mine = [
            part
            for part, wanted in enumerate(pod.request.gpus)
            if wanted.resource == (GPU_RESOURCE if gpu.id else ALIYUN_MEMORY)
            and (gpu.is_before or gpu.container in ("", pod.containers[part]))
        ]
        open_ = [part for part in mine if len(parts[part]) < pod.request.gpus[part].count]
        if not 0 <= at < len(node.gpus) or not (open_ or (mine and gpu.is_before)):
            continue
        part = (open_ or mine)[-1 if gpu.is_before else 0]
        share = _share_by_peers(cluster, at, pod.request.gpus[part], gpu)
        if gpu.is_before:
            there = [each for part in parts for each in part if each.gpu == at]
            share = share.but(
                milli=max(share.milli - sum(each.milli for each in there), 0),
                memory_mib=max(share.memory_mib - sum(each.memory_mib for each in there), 0),
                units=0 if there else share.units,
            )
        if share.milli or share.memory_mib or not gpu.is_before:
            parts[part].append(share)
    return Placement(node.name, tuple(map(tuple, parts)))


def _share_by_peers(cluster: Cluster, place: int, wanted: GpuRequest, gpu: HeldGpu) -> Share:
    """What a pod has of a GPU: as is said, also where it asks for a GPU and HAMi gives so much by default; all of it,
    and what nobody says, as it asks."""
    is_all = wanted.units and gpu.memory_mib >= cluster.gpu_memory_mib[0, place]
    if is_all or not (gpu.memory_mib or gpu.milli):
        return cluster.share_of(0, place, wanted)
    return cluster.share_of(0, place, GpuRequest(milli=gpu.milli, memory_mib=gpu.memory_mib))


def _stranger(node: Node, name: str, shares: Iterable[tuple[str, Share]]) -> Pod:
    """Who holds GPUs and is not among the pods, as one that has ended meanwhile."""
    placement = Placement(node.name, (tuple(share for _, share in shares),))
    return Pod("", name, Request(), placement=placement, can_move=False, can_end=False)


def _take_nameless(rest: Rest, nameless: list[tuple[Holding, Share]]) -> list[list[Share]]:
    """Takes from what is held by nobody that is named what a pod could hold; all the rest of it, or nothing."""
    found, parts = set[int](), list[list[Share]]()
    for _, wanted in rest:
        mine = [
            place
            for place, each in enumerate(nameless)
            if place not in found and _could_be(wanted.resource, wanted.profile, wanted.memory_mib, *each)
        ][: wanted.count]
        if len(mine) < wanted.count:
            return []
        found.update(mine)
        parts.append([nameless[place][1] for place in mine])
    nameless[:] = [each for place, each in enumerate(nameless) if place not in found]
    return parts


def _could_be(resource: str, profile: str, memory_mib: int, holding: Holding, share: Share) -> bool:
    if profile:
        return share.profile == profile
    return holding.resource.name == resource and memory_mib == holding.memory_mib


def unknown_nodes(pods: Mapping[str, Sequence[Pod]], nodes: Iterable[str]) -> list[Note]:
    """A note for each pod of a node that was not listed."""
    there = set(nodes)
    return [Note("node-unknown", pod.name, node) for node, all in pods.items() if node not in there for pod in all]
