"""From what is there to resources: every unit is offered once, by one name, or not offered, with a reason."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpuplane.base.text import Text, group_by_key
from gpuplane.node.core.inventory.sharing import apply_sharing
from gpuplane.node.core.kinds.kind import not_offered, sorted_devices
from gpuplane.node.core.kinds.table import KINDS, PLAIN_KINDS
from gpuplane.node.core.kinds.unitresource import UnitResource, plain_unit_id
from gpuplane.node.core.view import part_view
from gpuplane.node.model.config import Settings
from gpuplane.node.model.machine import DeviceList, Machine
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.views import NotOffered, OfferedDevice, Resource, Unit

NONE = DeviceList()
NO_DEVICES: Mapping[str, DeviceList] = {}


def assign_units(
    machine: Machine | None, settings: Settings, devices: Mapping[str, DeviceList] = NO_DEVICES
) -> list[UnitResource]:
    """One assignment for each unit of the node: of the GPUs in the driver's order, then of each other kind."""
    named = (
        each for kind in KINDS.values() for each in kind.unit_resources(machine, devices.get(kind.name, NONE), settings)
    )
    return apply_sharing(_one_kind_for_each_name(named), settings.sharing) + _units_of_unknown_kinds(devices)


def _one_kind_for_each_name(assignments: Iterable[UnitResource]) -> Iterator[UnitResource]:
    """The assignments; a name that is taken by a kind is no name for the units of the next one."""
    kinds: dict[str, str] = {}
    for each in assignments:
        first = kinds.setdefault(each.resource, each.unit.kind) if each.resource else each.unit.kind
        if first == each.unit.kind:
            yield each
        else:
            yield not_offered(each.unit, "resource-of-other-kind", f"{each.resource} is the name of {first} devices")


def _units_of_unknown_kinds(devices: Mapping[str, DeviceList]) -> list[UnitResource]:
    unknown = (device for name, found in devices.items() if name not in KINDS for device in sorted_devices(found))
    return [
        not_offered(
            Unit(id=id, gpu=id, index="", model="", kind=device.kind),
            "kind-unknown",
            f"the agent does not know devices of the kind {device.kind}; it knows {', '.join(PLAIN_KINDS)}",
            "configured",
        )
        for device in unknown
        for id in [plain_unit_id(device.kind, device.id)]
    ]


def node_resources(snapshot: Snapshot, settings: Settings) -> tuple[tuple[Resource, ...], tuple[NotOffered, ...]]:
    """`list_resources` of what a node has."""
    return list_resources.of(snapshot, snapshot.machine, settings, snapshot.devices)


@part_view
def list_resources(
    machine: Machine | None, settings: Settings, devices: Mapping[str, DeviceList] = NO_DEVICES
) -> tuple[tuple[Resource, ...], tuple[NotOffered, ...]]:
    """The resources of a node, as if each device were healthy, and the units that are offered by no name."""
    by_name: dict[str, list[UnitResource]] = {}
    left: list[NotOffered] = []
    for assignment in assign_units(machine, settings, devices):
        if assignment.not_offered_reason:
            left.append(_make_not_offered(assignment))
        else:
            by_name.setdefault(assignment.resource, []).append(assignment)
    one_share_only = settings.sharing.fail_requests_greater_than_one
    return tuple(_make_resource(name, each, one_share_only) for name, each in by_name.items()), tuple(left)


def _make_not_offered(assignment: UnitResource) -> NotOffered:
    unit = assignment.unit
    return NotOffered(
        unit_display_name(assignment),
        assignment.not_offered_reason,
        device=unit.id,
        index=unit.index,
        kind=assignment.not_offered_reason_kind,
        code=assignment.not_offered_reason_code,
    )


def _make_resource(name: str, assignments: Sequence[UnitResource], one_share_only: bool) -> Resource:
    """The resource of this name. Only shares of memory may have its name, and a container may ask for several of them.

    Where a container's shares have to be on the same GPU or on different ones, kubelet is told no NUMA nodes. It would
    align the ids to them without regard to that, and without asking us if a node has exactly as many as it needs.
    """
    shared, grain = any(each.is_shared for each in assignments), assignments[0].share_mib
    distinct = any(each.distinct_gpus for each in assignments)
    units = ((each, each.unit.but(numa=None) if grain or distinct else each.unit) for each in assignments)
    return Resource(
        name=name,
        devices=tuple(
            OfferedDevice(id=id, unit=unit, is_share=each.is_shared) for each, unit in units for id in each.device_ids
        ),
        shared=shared,
        one_share_only=shared and one_share_only and not grain,
        requires_distinct_gpus=distinct,
        share_mib=grain,
        uses_mps=any(each.is_shared_by_mps for each in assignments),
    )


def describe_unsupported_sharing(machine: Machine, settings: Settings) -> Text:
    """Which part of the configured sharing this machine cannot have, and why; "" if it can have all of it."""
    unshared = (each for each in assign_units(machine, settings) if each.not_offered_reason and each.sharing_entry)
    alike = group_by_key((each.not_offered_reason, each.unit.index) for each in unshared)
    return "; ".join(f"GPU {', '.join(indices)}: {reason}" for reason, indices in alike)


def unit_display_name(assignment: UnitResource) -> str:
    """What people call a unit: its UUID, or its index if the driver does not tell the UUID."""
    return assignment.unit.id or f"GPU {assignment.unit.index}"
