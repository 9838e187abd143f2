"""Devices that containers hold are withheld while a live change offers them in another way.

Kubelet counts use per resource name and device id. When a live change gives a GPU another name, another MIG layout or
another share layout, kubelet believes that the new ids are free while a container still uses the old one. So every id
that overlaps with a held id that is no longer offered is withheld. The reason names the pod.

A GPU overlaps with each of its MIG devices. The MIG devices of a GPU do not overlap. A MIG device that a container
holds although it no longer exists overlaps with everything on its GPU, for the container still has that GPU's node.
The driver does not report afterwards which GPU that was, so the ledger remembers it: `mig_parents`.

The same id of the same name may come to mean something else: 1 GiB where it was 2, or a share of an MPS server where it
was a time slice. Then it is treated as another id. The id does not show what it meant when a container got it, so the
ledger remembers that too: `share_layouts`. The number of time slices is not remembered, for a time slice is no part of
a GPU: whoever raises their number wants more containers on a GPU, beside those that are there.

Both are remembered of everything that is offered, before anybody holds it. So an answer to Allocate changes nothing in
the ledger, and never waits for the disk. A unit of which the disk may hold another layout is not given out
(`units_with_unstored_layout`).

Where they are not remembered (the ledger was lost, or pods were here before this agent), kubelet's checkpoint may have
the environment of a container, which shows its share layout. Else everything that it could mean is withheld until the
pod ends: for a MIG device that no longer exists each GPU that can have one, for a share all of its unit. An id that is
no unit's, but begins with a GPU's UUID, is another plugin's name for a part of that GPU.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from gpuplane.base.value import Value
from gpuplane.node.core.allocations import held_allocations
from gpuplane.node.core.inventory.resources import node_resources
from gpuplane.node.core.kinds.nvidia.gpu import gpu_uuid_in_mig_uuid, is_mig_uuid
from gpuplane.node.core.kinds.table import is_plain_unit, is_record_key_of_kind
from gpuplane.node.core.shares import is_share, unit_of
from gpuplane.node.core.view import part_view, view
from gpuplane.node.model import sharelayout
from gpuplane.node.model.machine import Gpu
from gpuplane.node.model.reasons import Holder, Reason, ReasonCode
from gpuplane.node.model.sharelayout import EncodedLayout, ShareLayout
from gpuplane.node.model.snapshot import Allocation, Snapshot
from gpuplane.node.model.views import Resource

MPS_PIPE_VARIABLE, SHARE_MEMORY_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY", "GPUPLANE_MEMORY_MIB"
"""Environment variables of a client of MPS, and of a container that holds shares of memory."""

MAX_MEMORY_DIGITS = 12
"""Of an amount of memory in the environment of a container. A longer one is not ours."""

OfferedId = tuple[str, str]
"""The name of a resource and one device id of it."""


@view
def withheld_reasons(snapshot: Snapshot) -> Mapping[OfferedId, Reason]:
    """Each offered id that is withheld because a container holds its device in another way, and the reason.

    {} before enough is known.
    """
    settings, ledger, held = snapshot.config.settings, snapshot.ledger, held_allocations(snapshot)
    if settings is None or held is None:
        return {}
    resources, _ = node_resources(snapshot, settings)
    index = offered_index.of(snapshot, resources)
    locations = mig_topology.of(snapshot, snapshot.gpus, ledger.mig_parents)
    return overlap_reasons(index, held, locations, ledger.share_layouts or {})


class MigTopology(Value):
    """On which GPUs the devices are that containers may hold.

    `mig_parents`: MIG device → its GPU, also for MIG devices that no longer exist; `removed_mig_uuids`: which do not.
    `gpu_uuids`: the GPUs of the machine. `gpus_possibly_in_mig_mode`: those of them that may have had a MIG device of
    which nobody remembers the GPU.
    """

    mig_parents: Mapping[str, str] = {}
    removed_mig_uuids: frozenset[str] = frozenset()
    gpu_uuids: tuple[str, ...] = ()
    gpus_possibly_in_mig_mode: tuple[str, ...] = ()


class OfferedIndex(Value):
    unit_by_offered_id: Mapping[OfferedId, str]
    ids_by_unit: Mapping[str, Sequence[OfferedId]]
    ids_by_gpu: Mapping[str, Sequence[OfferedId]]
    layout_by_resource_and_unit: Mapping[
        tuple[str, str], ShareLayout
    ]  # (resource, unit) → its layout, where it is shared

    def unit_of(self, resource: str, id: str) -> str:
        """The unit that a held id stands for; where it is no longer offered, what the id itself says."""
        return self.unit_by_offered_id.get((resource, id)) or unit_of(id)

    def ids_overlapping_unit(self, unit: str, topology: MigTopology) -> Iterator[OfferedId]:
        """The offered ids that are this unit, lie in it, contain it, or have taken its place."""
        yield from self.ids_by_unit.get(unit, ())
        if is_record_key_of_kind(unit):  # any device of the kind
            yield from (id for each, ids in self.ids_by_unit.items() if each.startswith(unit) for id in ids)
        elif (
            unit in topology.mig_parents and unit not in topology.removed_mig_uuids
        ):  # its GPU may be offered as a whole one
            yield from self.ids_by_unit.get(topology.mig_parents[unit], ())
        else:
            for gpu in _possible_gpus(unit, topology):
                yield from self.ids_by_gpu.get(gpu, ())


def overlap_reasons(
    index: OfferedIndex,
    allocations: Iterable[Allocation],
    topology: MigTopology,
    remembered_layouts: Mapping[str, EncodedLayout],
) -> Mapping[OfferedId, Reason]:
    """Each offered id that overlaps with what a container holds in another way, and the reason why it must wait.

    `remembered_layouts`: those of the units of which containers hold shares.
    """
    reasons: dict[str, Reason] = {}
    for allocation in allocations:
        for id in allocation.devices:
            is_offered = (allocation.resource, id) in index.unit_by_offered_id
            unit = index.unit_of(allocation.resource, id)
            offered_layout = index.layout_by_resource_and_unit.get((allocation.resource, unit))
            held_layout = _decode_layout(remembered_layouts.get(unit)) or offered_layout
            if not is_offered or held_layout != offered_layout:  # else kubelet knows that this id is in use
                code = _withheld_code(unit, is_offered, topology, held_layout)
                reasons.setdefault(unit, _withheld_reason(allocation, code))
    found: dict[OfferedId, Reason] = {}
    for unit, reason in reasons.items():
        for key in index.ids_overlapping_unit(unit, topology):
            found.setdefault(key, reason)
    return found


def _decode_layout(layout: EncodedLayout | None) -> ShareLayout | None:
    return None if layout is None else sharelayout.decode(layout)


def _withheld_code(unit: str, is_offered: bool, topology: MigTopology, held_layout: ShareLayout | None) -> ReasonCode:
    """How a unit is held in another way than it is offered."""
    if is_mig_uuid(unit) and unit not in topology.mig_parents:
        return "held-on-unknown-gpu"
    if held_layout == sharelayout.UNKNOWN:
        return "held-in-unknown-layout"
    return "held-in-other-layout" if is_offered else "held-as-other-resource"


WITHHELD_TEXT_BY_CODE: Mapping[str, str] = {
    "held-on-unknown-gpu": ", on an unknown GPU,",
    "held-in-unknown-layout": " in shares of an unknown kind",
    "held-in-other-layout": " in shares of another size or kind",
    "held-as-other-resource": "",  # the name of the resource says it
}
"""The words for each difference, in a sentence on who holds a device."""


def _withheld_reason(allocation: Allocation, code: ReasonCode) -> Reason:
    pod = allocation.holder
    who = pod.text
    if allocation.claim:
        who = f"{who}, by claim {allocation.claim}," if pod.identifies_pod else f"claim {allocation.claim}"
    text = f"{who} holds the device as {allocation.resource}{WITHHELD_TEXT_BY_CODE[code]} until the pod ends"
    holder = Holder(resource=allocation.resource, pod=pod, claim=allocation.claim)
    return Reason(kind="held", text=text, code=code, holder=holder)


def _possible_gpus(unit: str, topology: MigTopology) -> Collection[str]:
    """The GPUs on which a held unit may be that is no existing MIG device; a plain device itself."""
    if parent := topology.mig_parents.get(unit):
        return (parent,)
    if is_mig_uuid(unit):
        return topology.gpus_possibly_in_mig_mode
    if is_plain_unit(unit):
        return (unit,)
    return (unit,) if unit in topology.gpu_uuids else tuple(gpu for gpu in topology.gpu_uuids if unit.startswith(gpu))


def held_units(snapshot: Snapshot) -> Mapping[str, Reason]:
    """Each GPU and plain device that containers hold, in whole or in part, by the device plugin → why it must wait for
    them."""
    return _held_units.of(
        snapshot, snapshot.allocations or (), mig_topology.of(snapshot, snapshot.gpus, snapshot.ledger.mig_parents)
    )


@part_view
def _held_units(allocations: tuple[Allocation, ...], topology: MigTopology) -> Mapping[str, Reason]:
    found: dict[str, Reason] = {}
    for allocation in allocations:
        for id in allocation.devices if not allocation.claim else ():
            unit = unit_of(id)
            unknown = is_mig_uuid(unit) and unit not in topology.mig_parents
            code: ReasonCode = "held-on-unknown-gpu" if unknown else "held-as-other-resource"
            for gpu in _possible_gpus(unit, topology):
                found.setdefault(gpu, _withheld_reason(allocation, code))
    return dict(sorted(found.items()))


@part_view
def offered_index(resources: tuple[Resource, ...]) -> OfferedIndex:
    by_unit: dict[str, list[OfferedId]] = {}
    by_gpu: dict[str, list[OfferedId]] = {}
    for resource in resources:
        for device in resource.devices:
            key = resource.name, device.id
            by_unit.setdefault(device.unit.id, []).append(key)
            by_gpu.setdefault(device.unit.gpu, []).append(key)
    return OfferedIndex(
        unit_by_offered_id={key: unit for unit, keys in by_unit.items() for key in keys},
        ids_by_unit=by_unit,
        ids_by_gpu=by_gpu,
        layout_by_resource_and_unit=dict(_offered_layouts(resources)),
    )


def _offered_layouts(resources: Iterable[Resource]) -> Iterator[tuple[tuple[str, str], ShareLayout]]:
    for resource in resources:
        share_counts: dict[str, int] = {}
        for device in resource.devices:
            if device.is_share:
                share_counts[device.unit.id] = share_counts.get(device.unit.id, 0) + 1
        for unit, count in share_counts.items():
            yield (resource.name, unit), _resource_layout(resource, count)


def _resource_layout(resource: Resource, share_count: int) -> ShareLayout:
    """The layout of a unit that a resource offers as so many shares."""
    if resource.share_mib:
        return sharelayout.memory_layout(resource.share_mib, mps=resource.uses_mps)
    return sharelayout.mps_client_layout(share_count) if resource.uses_mps else sharelayout.TIME_SLICES


def layout_from_environment(environment: Mapping[str, str], share_count: int) -> ShareLayout | None:
    """The layout of a unit of which a container holds so many shares, by the container's environment; None where that
    does not show it.

    NVIDIA's plugin shares by time or by MPS, and the environment shows MPS alone (k8s-device-plugin 0.20,
    internal/plugin/server.go), without the number of clients. Shares of memory are ours: the environment has their sum.
    """
    mps, mib = MPS_PIPE_VARIABLE in environment, environment.get(SHARE_MEMORY_VARIABLE, "")
    if mib.isdecimal() and len(mib) <= MAX_MEMORY_DIGITS:
        share_mib, rest = divmod(int(mib), share_count)
        return sharelayout.memory_layout(share_mib, mps=mps) if share_mib and not rest else None
    return None if mps or mib else sharelayout.TIME_SLICES


def merged_share_layouts(
    index: OfferedIndex, allocations: Iterable[Allocation], remembered_layouts: Mapping[str, EncodedLayout]
) -> Mapping[str, EncodedLayout]:
    """The layout of each shared unit: where a container holds shares of it, as it was remembered; else as it is now."""
    by_environment: dict[str, set[EncodedLayout]] = {}
    for allocation in allocations:
        for id in allocation.devices:
            if is_share(id):
                by_environment.setdefault(unit_of(id), set()).add(allocation.share_layout)
    offered = {unit: layout.encoded for (_, unit), layout in index.layout_by_resource_and_unit.items()}
    unknown = sharelayout.UNKNOWN.encoded
    held = {
        unit: _held_layout(remembered_layouts.get(unit, unknown), by_environment[unit])
        for unit in sorted(by_environment)
    }
    return offered | held


def _held_layout(remembered_layout: EncodedLayout, by_environment: set[EncodedLayout]) -> EncodedLayout:
    """The layout of a held unit: as it is known, or as the environments of all who hold shares of it show it."""
    if sharelayout.decode(remembered_layout) != sharelayout.UNKNOWN or len(by_environment) > 1:
        return remembered_layout
    return next(iter(by_environment)) or remembered_layout


def units_with_unstored_layout(
    index: OfferedIndex,
    new_layouts: Mapping[str, EncodedLayout],
    stored_layouts: tuple[Mapping[str, EncodedLayout], ...],
) -> frozenset[tuple[str, str]]:
    """(resource, unit) of each unit of which the disk may hold another layout: after a restart it would be believed.

    A unit that the disk has no layout of is not among them: after a restart its layout would count as unknown.
    """
    return frozenset(
        (name, unit)
        for name, unit in index.layout_by_resource_and_unit
        if any(unit in each and each[unit] != new_layouts.get(unit) for each in stored_layouts)
    )


@part_view
def mig_topology(gpus: tuple[Gpu, ...], mig_parents: Mapping[str, str] | None) -> MigTopology:
    """Where the MIG devices are that exist or are remembered."""
    existing = _existing_mig_parents(gpus)
    return MigTopology(
        mig_parents={**(mig_parents or {}), **existing},
        removed_mig_uuids=frozenset((mig_parents or {}).keys() - existing.keys()),
        gpu_uuids=tuple(gpu.uuid for gpu in gpus if gpu.uuid),
        gpus_possibly_in_mig_mode=tuple(gpu.uuid for gpu in gpus if gpu.uuid and (gpu.mig is not None or gpu.faults)),
    )


def mig_parents(
    gpus: tuple[Gpu, ...], allocations: Iterable[Allocation], remembered_parents: Mapping[str, str] | None
) -> Mapping[str, str]:
    """On which GPU each MIG device is that exists, or was when it was seen last.

    The driver makes the UUID of a MIG device from its GPU's UUID and its placement there, so it never means another
    GPU, and a GPU has some dozens of placements: it is not forgotten. Kubelet may report late who holds one that no
    longer exists.
    """
    existing = _existing_mig_parents(gpus)
    held = {unit_of(id) for allocation in allocations for id in allocation.devices}
    by_name = {id: gpu for id in held if (gpu := gpu_uuid_in_mig_uuid(id))}
    return dict(sorted({**by_name, **(remembered_parents or {}), **existing}.items()))


def _existing_mig_parents(gpus: Iterable[Gpu]) -> dict[str, str]:
    return {device.uuid: gpu.uuid for gpu in gpus if gpu.mig_enabled for device in gpu.mig_devices}
