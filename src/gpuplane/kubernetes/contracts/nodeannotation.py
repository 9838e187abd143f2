"""The annotation `gpuplane.io/gpus` of a Node: its GPUs as a cluster has to know them, in at most 8 KiB of JSON.

The agent writes Nodes, and cluster views and placement read them, by this page alone: `encode_node_gpus` and
`decode_node_gpus` are inverse.

- It has no times and one order, so that the same state is the same text.
- It is never longer than `MAX_BYTES`. What does not fit is left out in one order (`CUTS`), and `cut` says what.
- A reader ignores keys that it does not know; another meaning of a key is another version.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any, TypeVar, get_args

import msgspec

from gpuplane.kubernetes.contracts.nodegpus import (
    CutPart,
    Holding,
    NodeGpu,
    NodeGpus,
    NodeMigDevice,
    OfferedResource,
    SharingStrategy,
    State,
)
from gpuplane.kubernetes.podref import PodRef

ANNOTATION = "gpuplane.io/gpus"
VERSION = 2
MAX_BYTES = 8192
GIVEN_OUT_STATES: tuple[State, ...] = ("healthy", "suspect", "degraded")
"""The states in which a device is given out."""
R = TypeVar("R")


def index_sort_key(index: str) -> tuple[int, ...]:
    """The sort key of an index, for the driver's order: "0:10" comes after "0:9". What has no index comes last."""
    return tuple(map(int, index.split(":"))) if index else (sys.maxsize,)


def holding_sort_key(each: Holding) -> tuple[Any, ...]:
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
    return tuple(sorted(found, key=holding_sort_key))


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
        holdings=tuple(sorted(_decode_held(found, resource), key=holding_sort_key)),
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
