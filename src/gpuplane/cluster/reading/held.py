"""Which GPUs of a node its pods have: as its annotation says, else as HAMi or gpushare has written on the pod.

A real node may have more held than it has: a GPU died, a pod was bound by hand, a resource was not counted. That is
described and never refused. Of what GPUs nobody says, the pods keep what they ask for (`Pod.unknown`); the largest come
first.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from gpuplane.cluster.model.nodes import Gpu, Node
from gpuplane.cluster.model.pods import Pod, UnknownParts
from gpuplane.cluster.model.requests import MILLI_PER_GPU, GpuRequest, Placement, Request, Share, share_of
from gpuplane.cluster.reading.nodes import ALIYUN_MEMORY, SeenNode
from gpuplane.cluster.reading.notes import Note
from gpuplane.cluster.reading.peers import HeldGpu
from gpuplane.kubernetes.contracts.nodeannotation import GIVEN_OUT_STATES
from gpuplane.kubernetes.contracts.nodegpus import Holding
from gpuplane.kubernetes.resourcenames import GPU_RESOURCE


def read_held(
    seen: SeenNode, pods: Iterable[Pod], by_peers: Mapping[str, Sequence[HeldGpu]] | None = None
) -> tuple[list[Pod], list[Note]]:
    """The pods of a node with the GPUs that somebody says they have, these pods first, and what is to be noted. What
    nobody known holds is a pod without UID.

    `by_peers`: pod "namespace/name" → what other systems have written on it.
    """
    told, lost, nameless, notes = _told_shares(seen)
    in_turn = sorted(pods, key=lambda pod: pod.name)
    in_turn.sort(key=lambda pod: pod.request.size, reverse=True)  # the largest first: so all fit that could
    found = list[Pod]()
    for each in in_turn:
        if each.name in told:
            placement = _placement(seen.node, each, told.pop(each.name))
        else:
            placement = _placement_by_peers(seen.node, each, (by_peers or {}).get(each.name, ()))
        unknown = _unknown_parts(seen.node, each.request, placement, lost[each.name])
        found.append(_with_nameless(each.but(placement=placement, unknown=unknown), nameless))
    strangers = [_stranger(seen.node, name, shares) for name, shares in told.items()]
    strangers += [_stranger(seen.node, "", [("", share)]) for _, share in nameless]
    if any(each.unknown for each in found):
        notes.append(Note("held-assumed", seen.node.name))
    in_order = sorted([*strangers, *found], key=lambda pod: bool(pod.unknown) or not pod.has_gpus)
    return in_order, notes


def _unknown_parts(node: Node, request: Request, placement: Placement, lost: int) -> UnknownParts:
    """What a pod asks for and nobody has told: of which parts, and how much, on GPUs that the part does not have yet.
    `lost`: so many ids that it holds are of devices that nobody gets any more."""
    asked = [each.count * max(each.units, 1) for each in request.gpus]
    has = [sum(max(share.units, 1) for share in part) for part in placement.shares]
    spare = lost + sum(max(there - count, 0) for count, there in zip(asked, has, strict=False))
    unknown = list[tuple[int, GpuRequest]]()
    for part, (count, there) in enumerate(zip(asked, has, strict=False)):
        missing = max(count - there, 0)
        known = min(missing, spare)
        spare -= known
        if missing > known:
            wanted, mine = request.gpus[part], {share.gpu for share in placement.shares[part]}
            others = frozenset(gpu.id for place, gpu in enumerate(node.gpus) if place not in mine)
            ids = (wanted.ids & others if wanted.ids else others) if mine else wanted.ids
            unknown.append((part, wanted.but(count=missing - known, ids=ids)))
    return tuple(unknown)


def _told_shares(
    seen: SeenNode,
) -> tuple[dict[str, list[tuple[str, Share]]], Counter[str], list[tuple[Holding, Share]], list[Note]]:
    """Pod "namespace/name" → (container, share) of each that it holds, and → ids that it holds of devices that are
    gone or sick; what is held by nobody that is named; notes."""
    told, lost, nameless = dict[str, list[tuple[str, Share]]](), Counter[str](), list[tuple[Holding, Share]]()
    notes = [Note("annotation-unreadable", seen.node.name, seen.problem)] if seen.problem else []
    for holding in seen.annotation.holdings if seen.annotation is not None else ():
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
        assert seen.annotation is not None
        device = next((each for all in seen.annotation.gpus for each in all.mig if each.index == holding.device), None)
        if device is None or device.state not in GIVEN_OUT_STATES:  # a sick one is not among those that are free
            return []
        return [Share(place, 0, 0, device.profile)] * holding.ids
    if mib := holding.memory_mib:
        return [Share(place, mib * MILLI_PER_GPU // gpu.memory_mib if gpu.memory_mib else MILLI_PER_GPU, mib)]
    units = min(holding.ids, gpu.units)
    return [Share(place, MILLI_PER_GPU // gpu.units * units, gpu.memory_mib // gpu.units * units, units=units)]


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
    places = {gpu.id: place for place, gpu in enumerate(node.gpus)}
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
        share = _share_by_peers(node.gpus[at], at, pod.request.gpus[part], gpu)
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


def _share_by_peers(gpu: Gpu, place: int, wanted: GpuRequest, held: HeldGpu) -> Share:
    """What a pod has of a GPU: as is said, also where it asks for a GPU and HAMi gives so much by default; all of it,
    and what nobody says, as it asks."""
    is_all = wanted.units and held.memory_mib >= gpu.memory_mib
    if is_all or not (held.memory_mib or held.milli):
        return share_of(gpu, place, wanted)
    return share_of(gpu, place, GpuRequest(milli=held.milli, memory_mib=held.memory_mib))


def _stranger(node: Node, name: str, shares: Iterable[tuple[str, Share]]) -> Pod:
    """Who holds GPUs and is not among the pods, as one that has ended meanwhile."""
    placement = Placement(node.name, (tuple(share for _, share in shares),))
    return Pod("", name, Request(), placement=placement, can_move=False, can_end=False)


def _with_nameless(pod: Pod, nameless: list[tuple[Holding, Share]]) -> Pod:
    """The pod with what it could hold of what is held by nobody that is named, and taken from there; all that is not
    known of it, or nothing."""
    found, parts = set[int](), list[list[Share]]()
    for _, wanted in pod.unknown:
        mine = [
            place
            for place, each in enumerate(nameless)
            if place not in found and _could_be(wanted.resource, wanted.profile, wanted.memory_mib, *each)
        ][: wanted.count]
        if len(mine) < wanted.count:
            return pod
        found.update(mine)
        parts.append([nameless[place][1] for place in mine])
    if not parts:
        return pod
    nameless[:] = [each for place, each in enumerate(nameless) if place not in found]
    return pod.with_shares(parts)


def _could_be(resource: str, profile: str, memory_mib: int, holding: Holding, share: Share) -> bool:
    if profile:
        return share.profile == profile
    return holding.resource.name == resource and memory_mib == holding.memory_mib


def unknown_nodes(pods: Mapping[str, Sequence[Pod]], nodes: Iterable[str]) -> list[Note]:
    """A note for each pod of a node that was not listed."""
    there = set(nodes)
    return [Note("node-unknown", pod.name, node) for node, all in pods.items() if node not in there for pod in all]
