"""Which GPUs of a node its pods have: as its annotation says, else as HAMi or gpushare has written on the pod, and
where nobody says it, as they would fit best.

A real node may have more held than it has: a GPU died, a pod was bound by hand, a resource was not counted. That is
described and never refused: each pod counts with what is left when its turn comes (those that say what they have
first, then the largest), and the node is named among the notes. So the arrays of a cluster stay within what there is.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Literal

import numpy as np

from gpuplane.core.reports.nodeannotation import GIVEN_OUT_STATES
from gpuplane.model.nodegpus import Holding
from gpuplane.model.value import Value
from gpuplane.placement.cluster import Cluster, Node
from gpuplane.placement.kubernetes.nodes import SeenNode
from gpuplane.placement.kubernetes.peers import HeldGpu
from gpuplane.placement.pods import Pod
from gpuplane.placement.requests import WHOLE, Placement, Request, Share
from gpuplane.placement.within import place_within

NoteCode = Literal[
    "object-unreadable",
    "annotation-unreadable",
    "held-assumed",
    "over-held",
    "device-gone",
    "node-unknown",
    "duplicate-name",
]
"""`object-unreadable`: a Node or Pod is not as the API has it, and is left out. `annotation-unreadable`: the node is
described by its labels. `held-assumed`: nobody says which GPUs some of its pods have. `over-held`: its pods ask for
more than there is. `device-gone`: a container holds a device that the node does not have. `node-unknown`: a pod is
bound to a node that was not listed. `duplicate-name`: two nodes have one name."""
Shares = tuple[tuple[Share, ...], ...]


class Note(Value, omit_defaults=False):
    """What is not as it should be, of a node, or of a pod "namespace/name"."""

    code: NoteCode
    subject: str
    detail: str = ""


def settle(
    seen: SeenNode, pods: Iterable[Pod], by_peers: Mapping[str, Sequence[HeldGpu]] | None = None
) -> tuple[list[Pod], list[Note]]:
    """The pods of a node with their places, and what is to be noted. What nobody known holds is a pod without UID.

    `by_peers`: pod "namespace/name" → what other systems have written on it.
    """
    told, nameless, notes = _told_shares(seen)
    known = list(pods)
    placed = [
        each.but(placement=_placement(seen.node, each, told.pop(each.name))) for each in known if each.name in told
    ]
    placed += [_stranger(seen.node, name, shares) for name, shares in told.items()]
    others = sorted((each for each in known if each.name not in {pod.name for pod in placed}), key=_turn)
    for index, each in enumerate(others):
        if (held := (by_peers or {}).get(each.name)) and (placement := _placement_by_peers(seen.node, each, held)):
            others[index] = each.but(placement=placement)
    for index, each in enumerate(others):
        if each.placement is None and each.request.gpus and (matching := _take_nameless(each, nameless)):
            others[index] = each.but(placement=_placement(seen.node, each, matching), is_assumed=True)
    placed += [_stranger(seen.node, "", [("", share)]) for _, share in nameless]
    return fill(seen.node, [*placed, *others], notes)


def fill(node: Node, pods: Iterable[Pod], notes: Iterable[Note] = ()) -> tuple[list[Pod], list[Note]]:
    """The pods with all their places, each with what is left when its turn comes. Those with GPUs that are known
    first."""
    cluster, found, said = Cluster([node.but(is_schedulable=True, taints=())]), list[Pod](), list(notes)
    assumed = over = False
    for each in sorted(pods, key=lambda pod: pod.placement is None):
        placement = each.placement
        if placement is None:
            assumed |= bool(each.request.gpus)
            placement = _assume(cluster, node, each.request)
            each = each.but(is_assumed=bool(each.request.gpus))
        request, clipped, is_over = _clip(cluster, each.request, placement)
        over |= is_over
        cluster.take(request, clipped)
        found.append(each.but(placement=clipped, taken=None if request == each.request else request))
    if assumed:
        said.append(Note("held-assumed", node.name))
    if over:
        said.append(Note("over-held", node.name))
    return found, said


def _turn(pod: Pod) -> tuple[int, int, int, str]:
    """The largest first: so all fit that could."""
    size = sum(
        each.count * max(each.milli, each.memory_percent * 10, WHOLE if each.units else 0) for each in pod.request.gpus
    )
    memory = sum(each.count * each.memory_mib for each in pod.request.gpus)
    return -size, -memory, -pod.request.cpu_milli, pod.name


def _assume(cluster: Cluster, node: Node, request: Request) -> Placement:
    """Where the request fits, though the node's CPU may be full; else what is left of its GPUs."""
    free = Request(gpus=request.gpus)
    if found := place_within(cluster, 0, free):
        return found
    shares = list[tuple[Share, ...]]()
    for wanted in request.gpus:
        order = np.argsort(-cluster.milli_free[0][: len(node.gpus)], kind="stable")[: wanted.count]
        shares.append(tuple(cluster.share_of(0, int(gpu), wanted) for gpu in order))
    return Placement(node.name, tuple(shares))


def _clip(cluster: Cluster, request: Request, placement: Placement) -> tuple[Request, Placement, bool]:
    """What is left of what a pod has: (what it takes of its node, its place, whether that is less than it asks for)."""
    row = np.zeros(1, np.int64)
    taken = request.but(
        cpu_milli=min(request.cpu_milli, int(cluster.cpu_free[0])),
        memory_mib=min(request.memory_mib, int(cluster.memory_free[0])),
        others=tuple((name, min(amount, int(cluster.other_free(row, name)[0]))) for name, amount in request.others),
    )
    milli, memory = cluster.milli_free[0].tolist(), cluster.gpu_memory_free[0].tolist()
    units = cluster.units_free[0].tolist()
    instances = cluster.instances_free[0].tolist()
    is_over, parts = taken != request, list[tuple[Share, ...]]()
    for part in placement.shares:
        kept = list[Share]()
        for share in part:
            if share.profile:
                column = cluster.profiles.get(share.profile, -1)
                if column < 0 or instances[share.gpu][column] <= 0:
                    is_over = True
                    continue
                instances[share.gpu][column] -= 1
            fitting = share.but(
                milli=min(share.milli, milli[share.gpu]),
                memory_mib=min(share.memory_mib, memory[share.gpu]),
                units=min(share.units, units[share.gpu]),
            )
            milli[share.gpu] -= fitting.milli
            memory[share.gpu] -= fitting.memory_mib
            units[share.gpu] -= fitting.units
            is_over |= fitting != share
            kept.append(fitting)
        parts.append(tuple(kept))
    return taken, placement.but(shares=tuple(parts)), is_over


def _told_shares(
    seen: SeenNode,
) -> tuple[dict[str, list[tuple[str, Share]]], list[tuple[Holding, Share]], list[Note]]:
    """Pod "namespace/name" → (container, share) of each that it holds; what is held by nobody that is named; notes."""
    told, nameless = dict[str, list[tuple[str, Share]]](), list[tuple[Holding, Share]]()
    notes = [Note("annotation-unreadable", seen.node.name, seen.problem)] if seen.problem else []
    for holding in seen.told.holdings if seen.told is not None else ():
        place = seen.devices.get(holding.device)
        if place is None:
            notes.append(Note("device-gone", seen.node.name, holding.device))
            continue
        shares = _shares_of(seen, holding, place)
        if holding.holder.name:
            name = f"{holding.holder.namespace}/{holding.holder.name}"
            told.setdefault(name, []).extend((holding.holder.container, share) for share in shares)
        else:
            nameless.extend((holding, share) for share in shares)
    return told, nameless, notes


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


def _placement_by_peers(node: Node, pod: Pod, held: Sequence[HeldGpu]) -> Placement | None:
    """The parts of the pod's request on these GPUs, one after the other; None where they are not as many, or others."""
    places = {gpu.id: place for place, gpu in enumerate(node.gpus)}
    if not held[0].id and all(each.count == 1 for each in pod.request.gpus):
        held = [*held] * len(pod.request.gpus)  # gpushare gives all containers of a pod parts of one GPU
    found = [each.place if not each.id else places.get(each.id, -1) for each in held]
    if len(held) != sum(each.count for each in pod.request.gpus) or any(not 0 <= at < len(node.gpus) for at in found):
        return None
    cluster, left, parts = Cluster([node]), iter(zip(found, held, strict=True)), list[tuple[Share, ...]]()
    for wanted in pod.request.gpus:
        shares = list[Share]()
        for place, gpu in islice(left, wanted.count):
            share = cluster.share_of(0, place, wanted)
            if not wanted.units:
                share = share.but(milli=gpu.milli or share.milli, memory_mib=gpu.memory_mib or share.memory_mib)
            shares.append(share)
        parts.append(tuple(shares))
    return Placement(node.name, tuple(parts))


def _stranger(node: Node, name: str, shares: Iterable[tuple[str, Share]]) -> Pod:
    """Who holds GPUs and is not among the pods, as one that has ended meanwhile."""
    return Pod(
        "", name, Request(), placement=Placement(node.name, (tuple(share for _, share in shares),)), can_move=False
    )


def _take_nameless(pod: Pod, nameless: list[tuple[Holding, Share]]) -> list[tuple[str, Share]]:
    """Takes from what is held by nobody that is named what this pod could hold; all that it asks for, or nothing."""
    found = list[int]()
    for wanted in pod.request.gpus:
        mine = [
            place
            for place, each in enumerate(nameless)
            if place not in found and _could_be(wanted.resource, wanted.profile, wanted.memory_mib, *each)
        ][: wanted.count]
        if len(mine) < wanted.count:
            return []
        found += mine
    taken = [("", nameless[place][1]) for place in found]
    nameless[:] = [each for place, each in enumerate(nameless) if place not in found]
    return taken


def _could_be(resource: str, profile: str, memory_mib: int, holding: Holding, share: Share) -> bool:
    if profile:
        return share.profile == profile
    return holding.resource.name == resource and memory_mib == holding.memory_mib


def unknown_nodes(pods: Mapping[str, Sequence[Pod]], nodes: Iterable[str]) -> list[Note]:
    """A note for each pod of a node that was not listed."""
    there = set(nodes)
    return [Note("node-unknown", pod.name, node) for node, all in pods.items() if node not in there for pod in all]
