"""The annotation `gpuplane.io/gpus` of our Node: its GPUs as a cluster has to know them, in at most 8 KiB of JSON.

Cluster views and placement read Nodes by this page alone: `encode_node_gpus` and `decode_node_gpus` are inverse.

- It has no times and one order, so that the same state is the same text.
- It is never longer than `MAX_BYTES`. What does not fit is left out in one order (`CUTS`), and `cut` says what.
- What is over in a moment is not said: an agent that starts again writes what the one before it wrote.
- A reader ignores keys that it does not know; another meaning of a key is another version.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, TypeVar, get_args

import msgspec

from gpuplane.core.advertising import missing_information_reason, offer
from gpuplane.core.allocations import held_allocations
from gpuplane.core.availability import availability
from gpuplane.core.devicenames import index_sort_key
from gpuplane.core.health.devicehealth import health_with_parents
from gpuplane.core.kinds.nvidia.gpu import GPU
from gpuplane.core.kinds.table import kind_of
from gpuplane.core.serving import standby_reason
from gpuplane.core.shares import unit_of
from gpuplane.core.text import clip
from gpuplane.core.view import part_view
from gpuplane.model import sharelayout
from gpuplane.model.health import NODE_RECORD_KEY, DeviceHealth, State
from gpuplane.model.machine import Gpu, Machine
from gpuplane.model.nodegpus import (
    CutPart,
    Holding,
    NodeGpu,
    NodeGpus,
    NodeMigDevice,
    OfferedResource,
    SharingStrategy,
)
from gpuplane.model.pod import PodRef
from gpuplane.model.snapshot import Allocation, Snapshot
from gpuplane.model.views import Availability, Resource

ANNOTATION = "gpuplane.io/gpus"
VERSION = 2
MAX_BYTES = 8192
LONGEST_NAME = 96  # characters of a model, a profile or a code; NVML's names are not longer
R = TypeVar("R")
GIVEN_OUT_STATES: tuple[State, ...] = ("healthy", "suspect", "degraded")


def node_gpus(snapshot: Snapshot) -> NodeGpus | None:
    """What the annotation is to say; None while it cannot be said, so that what was said last stays."""
    missing = missing_information_reason(snapshot)
    allocations = held_allocations(snapshot)
    if standby_reason(snapshot) or allocations is None or (missing is not None and missing.kind == "waiting"):
        return None
    return _derive_node_gpus.of(
        snapshot,
        snapshot.machine,
        health_with_parents(snapshot),
        availability(snapshot),
        offer(snapshot).resources,
        allocations,
    )


@part_view
def _derive_node_gpus(
    machine: Machine | None,
    health: tuple[DeviceHealth, ...],
    units: tuple[Availability, ...],
    resources: tuple[Resource, ...],
    allocations: tuple[Allocation, ...],
) -> NodeGpus:
    gpus = (machine.gpus if machine is not None else None) or ()
    offered = {each.name: OfferedResource(each.name, _strategy(each), each.share_mib) for each in resources}
    health_by_index = {each.index: each for each in health if each.index}
    unit_by_index = {each.index: each for each in units if each.index}

    def facts(index: str) -> dict[str, Any]:
        unit = unit_by_index.get(index, Availability(device="", index=index))
        state, code = _state_and_code(health_by_index.get(index), unit)
        return {
            "index": index,
            "resource": offered.get(unit.resource),
            "ids": unit.id_count,
            "state": state,
            "code": code,
        }

    node = next((each for each in health if each.device == NODE_RECORD_KEY), None)
    return NodeGpus(
        gpus=tuple(_describe_gpu(gpu, facts) for gpu in sorted(gpus, key=lambda each: each.index)),
        holdings=_holdings(gpus, offered, allocations),
        state=node.state if node is not None else "healthy",
        code=clip(node.code, LONGEST_NAME) if node is not None else "",
    )


def _strategy(resource: Resource) -> SharingStrategy:
    if resource.share_mib:
        return "memory"
    if not resource.shared:
        return ""
    return "mps" if resource.uses_mps else "time-slicing"


def _describe_gpu(gpu: Gpu, facts: Callable[[str], dict[str, Any]]) -> NodeGpu:
    return NodeGpu(
        uuid=gpu.uuid,
        model=clip(gpu.model, LONGEST_NAME),
        memory_mib=gpu.memory_mib,
        mig=tuple(
            NodeMigDevice(
                profile=clip(each.profile, LONGEST_NAME),
                gpu_instance=each.gpu_instance,
                compute_instance=each.compute_instance,
                **facts(f"{gpu.index}:{each.mig_index}"),
            )
            for each in sorted(gpu.mig_devices, key=lambda each: each.mig_index)
        ),
        **facts(str(gpu.index)),
    )


def _state_and_code(health: DeviceHealth | None, unit: Availability) -> tuple[State, str]:
    """How a device stands. A reason that is over in a moment, as that a plugin registers, does not count."""
    state, code = (health.state, health.code) if health is not None else ("healthy", "")
    reasons = [each for each in unit.reasons if each.kind != "waiting"]
    if state in GIVEN_OUT_STATES and any(each.kind != "degraded" for each in reasons):
        state = "withheld"
    return state, clip(next(filter(None, (code, *(each.code for each in reasons))), ""), LONGEST_NAME)


def _holdings(
    gpus: Sequence[Gpu], offered: Mapping[str, OfferedResource], allocations: Iterable[Allocation]
) -> tuple[Holding, ...]:
    """What containers hold of GPUs, in one order."""
    index_by_id = {gpu.uuid: str(gpu.index) for gpu in gpus if gpu.uuid}
    index_by_id |= {each.uuid: f"{gpu.index}:{each.mig_index}" for gpu in gpus for each in gpu.mig_devices if each.uuid}
    counts: Counter[tuple[PodRef, OfferedResource, str]] = Counter()
    for allocation in allocations:
        holder, resource = _named_holder(allocation.holder), _held_resource(allocation, offered)
        for id in allocation.devices:
            unit = unit_of(id)
            if unit in index_by_id or (kind := kind_of(unit)) is None or kind is GPU:
                counts[holder, resource, index_by_id.get(unit, unit)] += 1
    found = (Holding(holder, resource, device, ids) for (holder, resource, device), ids in counts.items())
    return tuple(sorted(found, key=_holding_sort_key))


def _named_holder(holder: PodRef) -> PodRef:
    """The holder by its name, or by its UID where that is all that is known."""
    return (
        holder.but(uid="") if holder.namespace and holder.name else PodRef(uid=holder.uid, container=holder.container)
    )


def _held_resource(allocation: Allocation, offered: Mapping[str, OfferedResource]) -> OfferedResource:
    """The resource as the container got it: of shares that are offered otherwise by now, as they were."""
    layout = sharelayout.decode(allocation.share_layout) if allocation.share_layout else None
    if layout is not None and layout.kind == "memory":
        return OfferedResource(allocation.resource, "memory", layout.share_mib)
    return offered.get(allocation.resource, OfferedResource(allocation.resource))


def _holding_sort_key(each: Holding) -> tuple[Any, ...]:
    is_index = each.device.replace(":", "").isdecimal()
    return (
        not each.holder.identifies_pod,
        each.holder.namespace,
        str(each.holder),
        msgspec.structs.astuple(each.resource),
        index_sort_key(each.device if is_index else ""),
        each.device,
    )


BoundedAmount = Annotated[int, msgspec.Meta(ge=0, le=1 << 30)]
"""Of memory in MiB, or of ids: what is more stands for no GPU, and such amounts are added and multiplied in 64 bits."""


class _Mig(msgspec.Struct, omit_defaults=True):
    """MIG devices of one GPU that are alike. `devices`: of each its index on the GPU and its GPU instance, and its
    compute instance where that is not 0."""

    profile: str
    devices: list[list[int]]
    resource: int | None = None
    ids: BoundedAmount = 0
    state: State = "healthy"
    code: str = ""


class _Gpu(msgspec.Struct, omit_defaults=True):
    index: str
    uuid: str = ""
    model: int = 0
    resource: int | None = None
    ids: BoundedAmount = 0
    state: State = "healthy"
    code: str = ""
    mig: list[_Mig] = []


class _Document(msgspec.Struct, omit_defaults=True):
    version: int
    state: State = "healthy"
    code: str = ""
    models: list[tuple[str, BoundedAmount]] = []
    resources: list[tuple[str, SharingStrategy, BoundedAmount]] = []
    gpus: list[_Gpu] = []
    held: dict[str, list[tuple[str, int, dict[str, BoundedAmount]]]] = {}
    cut: list[CutPart] = []


class _Version(msgspec.Struct):
    version: int


def encode_node_gpus(told: NodeGpus) -> str:
    """The text of the annotation, at most `MAX_BYTES` bytes long; `fit` says what it says."""
    return _encode(fit(told)).decode()


def fit(told: NodeGpus) -> NodeGpus:
    """The same in one order, without what does not fit."""
    told = told.but(holdings=_merge_holdings(told.holdings))
    for cut in CUTS:
        if len(_encode(told)) <= MAX_BYTES:
            break
        told = cut(told)
    return told


def _cut(told: NodeGpus, part: CutPart, **changes: Any) -> NodeGpus:
    return told.but(cut=(*told.cut, part) if part not in told.cut else told.cut, **changes)


def _cut_containers(told: NodeGpus) -> NodeGpus:
    named = (each.but(holder=each.holder.but(container="")) for each in told.holdings)
    return _cut(told, "containers", holdings=_merge_holdings(named))


def _cut_pods(told: NodeGpus) -> NodeGpus:
    """Without the names of as few pods as possible, the last first."""
    names = list(dict.fromkeys(str(each.holder) for each in told.holdings if each.holder.identifies_pod))

    def with_names(count: int) -> NodeGpus:
        kept = set(names[:count])
        nameless = (each if str(each.holder) in kept else each.but(holder=PodRef()) for each in told.holdings)
        return _cut(told, "pods", holdings=_merge_holdings(nameless))

    fewest, most = 0, len(names)
    while fewest < most:
        middle = (fewest + most + 1) // 2
        fewest, most = (middle, most) if len(_encode(with_names(middle))) <= MAX_BYTES else (fewest, middle - 1)
    return with_names(fewest)


def _cut_held(told: NodeGpus) -> NodeGpus:
    return _cut(told, "held", holdings=())


def _cut_mig(told: NodeGpus) -> NodeGpus:
    return _cut(told, "mig", gpus=tuple(each.but(mig=()) for each in told.gpus))


def _cut_gpus(told: NodeGpus) -> NodeGpus:
    return _cut(told, "gpus", gpus=())


CUTS = (_cut_containers, _cut_pods, _cut_held, _cut_mig, _cut_gpus)
assert len(CUTS) == len(get_args(CutPart))


def _merge_holdings(holdings: Iterable[Holding]) -> tuple[Holding, ...]:
    """Those of one holder that are alike now as one, in order."""
    counts: Counter[tuple[PodRef, OfferedResource, str]] = Counter()
    for each in holdings:
        counts[each.holder, each.resource, each.device] += each.ids
    found = (Holding(holder, resource, device, ids) for (holder, resource, device), ids in counts.items())
    return tuple(sorted(found, key=_holding_sort_key))


def _encode(told: NodeGpus) -> bytes:
    """The text, however long. Holdings of one namespace stand together."""
    models = _Table((each.model, each.memory_mib) for each in told.gpus)
    named = [each.resource for each in told.gpus]
    named += (device.resource for gpu in told.gpus for device in gpu.mig)
    named += (each.resource for each in told.holdings)
    resources = _Table((each.name, each.strategy, each.share_mib) for each in named if each is not None)

    def number(resource: OfferedResource | None) -> int | None:
        return resources.numbers[resource.name, resource.strategy, resource.share_mib] if resource is not None else None

    held: dict[tuple[PodRef, int], dict[str, int]] = {}
    for each in told.holdings:
        place = resources.numbers[each.resource.name, each.resource.strategy, each.resource.share_mib]
        held.setdefault((each.holder, place), {})[each.device] = each.ids
    spaces: dict[str, list[tuple[str, int, dict[str, int]]]] = {}
    for (holder, place), devices in held.items():
        who = str(holder).removeprefix(f"{holder.namespace}/" if holder.namespace else "")
        spaces.setdefault(holder.namespace, []).append((who, place, devices))
    gpus = [
        _Gpu(
            index=gpu.index,
            uuid=gpu.uuid,
            model=models.numbers[gpu.model, gpu.memory_mib],
            resource=number(gpu.resource),
            ids=gpu.ids,
            state=gpu.state,
            code=gpu.code,
            mig=list(_encode_mig(gpu.mig, number)),
        )
        for gpu in told.gpus
    ]
    return msgspec.json.encode(
        _Document(
            version=VERSION,
            state=told.state,
            code=told.code,
            models=models.rows,
            resources=resources.rows,
            gpus=gpus,
            held=spaces,
            cut=list(told.cut),
        )
    )


class _Table:
    """Distinct rows, each by the number of its place."""

    def __init__(self, rows: Iterable[Any]) -> None:
        self.rows: list[Any] = sorted(set(rows))
        self.numbers = {row: number for number, row in enumerate(self.rows)}


def _encode_mig(
    devices: Iterable[NodeMigDevice], number: Callable[[OfferedResource | None], int | None]
) -> Iterator[_Mig]:
    """The devices in groups of those that are alike, in the order of the first of each."""
    groups: dict[tuple[Any, ...], list[list[int]]] = {}
    for each in devices:
        _, _, slot = each.index.partition(":")
        place = [int(slot), each.gpu_instance, *([each.compute_instance] if each.compute_instance else [])]
        alike = each.profile, number(each.resource), each.ids, each.state, each.code
        groups.setdefault(alike, []).append(place)
    for (profile, resource, ids, state, code), places in groups.items():
        yield _Mig(profile=profile, devices=places, resource=resource, ids=ids, state=state, code=code)


def decode_node_gpus(text: str) -> NodeGpus:
    """What an annotation says. Raises ValueError for a text that is none of this version, and says why."""
    try:
        if len(text.encode()) > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES} bytes")
        version = msgspec.json.decode(text, type=_Version).version
        if version != VERSION:
            raise ValueError(f"it has version {version}; this program reads version {VERSION}")
        return _decode(msgspec.json.decode(text, type=_Document))
    except (ValueError, IndexError, RecursionError) as error:  # msgspec.DecodeError is a ValueError
        raise ValueError(f"annotation {ANNOTATION} cannot be read: {error}") from None


def _decode(found: _Document) -> NodeGpus:
    resources = [OfferedResource(name, strategy, mib) for name, strategy, mib in found.resources]

    def resource(number: int) -> OfferedResource:
        return _row(resources, number)

    return NodeGpus(
        gpus=tuple(_decode_gpu(gpu, found, resource) for gpu in found.gpus),
        holdings=tuple(sorted(_decode_held(found, resource), key=_holding_sort_key)),
        state=found.state,
        code=found.code,
        cut=tuple(found.cut),
    )


def _decode_held(found: _Document, resource: Callable[[int], OfferedResource]) -> Iterator[Holding]:
    for space, held in found.held.items():
        for who, number, devices in held:
            holder = PodRef.parse(f"{space}/{who}" if space else who)
            for device, ids in devices.items():
                yield Holding(holder=holder, resource=resource(number), device=device, ids=ids)


def _decode_gpu(gpu: _Gpu, found: _Document, resource: Callable[[int], OfferedResource]) -> NodeGpu:
    model, memory_mib = _row(found.models, gpu.model)
    devices = (
        NodeMigDevice(
            index=f"{gpu.index}:{slot}",
            profile=group.profile,
            gpu_instance=instance,
            compute_instance=more[0] if more else 0,
            resource=None if group.resource is None else resource(group.resource),
            ids=group.ids,
            state=group.state,
            code=group.code,
        )
        for group in gpu.mig
        for slot, instance, *more in group.devices
    )
    return NodeGpu(
        index=gpu.index,
        uuid=gpu.uuid,
        model=model,
        memory_mib=memory_mib,
        resource=None if gpu.resource is None else resource(gpu.resource),
        ids=gpu.ids,
        state=gpu.state,
        code=gpu.code,
        mig=tuple(sorted(devices, key=lambda each: index_sort_key(each.index))),
    )


def _row(rows: Sequence[R], number: int) -> R:
    if number < 0:
        raise IndexError(f"there is no row {number}")
    return rows[number]
