"""What a kind of devices is, and how a kind of plain devices is made.

A kind says which units its devices are and under which resource names they are offered, what a container gets with one,
which faults they have, and how they stand in ResourceSlices. All else is the same for every kind: what containers hold
is withheld over a rename, an ill device is unhealthy for kubelet, a drained one is given to nobody.

The id of a unit begins with its kind: "device-node:kvm". So an id that a container holds shows its kind, also after the
device is gone.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from posixpath import normpath
from typing import NamedTuple

from gpuplane.base.text import Text
from gpuplane.node.core.kinds.dra import KindInDra
from gpuplane.node.core.kinds.plaindra import plain_kind_in_dra
from gpuplane.node.core.kinds.unitresource import UnitResource, plain_unit_id
from gpuplane.node.model.cdi import ContainerEdits, DeviceNode
from gpuplane.node.model.config import Settings
from gpuplane.node.model.health import CatalogueEntry, FaultCatalogue
from gpuplane.node.model.machine import UNCOUNTED_CODE, Device, DeviceList, Machine
from gpuplane.node.model.reasons import ReasonCode, ReasonKind
from gpuplane.node.model.resourceslices import DeviceAttribute
from gpuplane.node.model.views import Unit

DEVICE_ID_PATTERN = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
"""The valid ids of devices: those that are also names of CDI devices. "::" would make it a share."""

COMMON_FAULTS = {
    UNCOUNTED_CODE: CatalogueEntry(
        title="the devices of a kind cannot be counted",
        detected_by="look",
        scope="node",
        severity="unhealthy",
        clear_when="no-longer-seen",
        advice="see the log of the agent",
        grace_period=30,
    )
}
"""The faults that every kind of plain devices has."""


class Kind(NamedTuple):
    """A row of the table of kinds."""

    name: str
    id_prefixes: tuple[str, ...]  # how the ids of its units begin
    faults: FaultCatalogue
    unit_resources: Callable[[Machine | None, DeviceList, Settings], Sequence[UnitResource]]
    """Its units in a stable order: each with its resource name, or why it has none."""
    container_edits: Callable[[Unit], ContainerEdits] | None
    """What a container gets with a unit; None: `core/containers` says it, from the whole machine and the settings."""
    record_key: str
    """The key of the health record of what affects every device of the kind."""
    dra: KindInDra
    noun: Callable[[str, str], str]
    """What people call a unit, by its id and index: "GPU", "MIG device", "device-node device"."""
    recovers_by_probe: bool = False
    """Whether an unhealthy device also needs a recovery probe; else it is healthy when its faults are gone."""

    def unit_id(self, device_id: str) -> str:
        """The id of the unit that a plain device is."""
        return plain_unit_id(self.name, device_id)


def plain_kind(
    name: str,
    *,
    resource_name: Callable[[Device], str],
    faults: Mapping[str, CatalogueEntry],
    attributes: Collection[str] = (),
    more_edits: Callable[[Unit], ContainerEdits] = lambda unit: ContainerEdits(),
    slice_attributes: Callable[[Unit], Mapping[str, DeviceAttribute]] = lambda unit: {},
) -> Kind:
    """A kind whose devices are plain `Device`s: each is one unit with one id, and a container gets its device nodes.

    `resource_name` raises ValueError if a device cannot be offered: why not. `faults`: those that a look shows, by
    code. `attributes`: the names of all attributes that a device may have. `more_edits`: what a container gets beside
    the nodes; the same variable of two units has to have the same value. `slice_attributes`: those by which claims
    choose, beside those of every device. All devices have the same ones, also one of which only the id is known.
    """

    def unit_resources(_: Machine | None, observed: DeviceList, __: Settings) -> Sequence[UnitResource]:
        return [_name_unit(kind, device, attributes, resource_name) for device in sorted_devices(observed)]

    def container_edits(unit: Unit) -> ContainerEdits:
        nodes = tuple(DeviceNode(path=path, permissions="rw") for path in unit.device_nodes)
        more = more_edits(unit)
        return more.but(device_nodes=(*nodes, *more.device_nodes))

    def units(observed: DeviceList) -> Sequence[UnitResource]:
        return unit_resources(None, observed, Settings())

    def noun(_: str, __: str) -> str:
        return f"{name} device"

    key, catalogue = plain_unit_id(name, ""), FaultCatalogue(entries={**COMMON_FAULTS, **faults})
    dra = plain_kind_in_dra(name, units, slice_attributes, container_edits)
    kind = Kind(name, (key,), catalogue, unit_resources, container_edits, record_key=key, dra=dra, noun=noun)
    return kind


def sorted_devices(observed: DeviceList) -> Iterable[Device]:
    """The devices in an order that does not depend on the observation."""
    return sorted(observed.devices or (), key=lambda device: device.id)


def _name_unit(
    kind: Kind, device: Device, attributes: Collection[str], resource_name: Callable[[Device], str]
) -> UnitResource:
    unit_id = kind.unit_id(device.id)
    unit = Unit(
        id=unit_id,
        gpu=unit_id,
        index="",
        model="",
        numa=device.numa,
        pci=device.pci,
        device_nodes=device.device_nodes,
        kind=kind.name,
        attributes=tuple(sorted(device.attributes.items())),
    )
    try:
        _check_device(device, attributes)
        return UnitResource(unit=unit, resource=resource_name(device))
    except ValueError as error:
        return not_offered(unit, "device-invalid", f"{error}")


def _check_device(device: Device, attributes: Collection[str]) -> None:
    """Raises ValueError for a device that cannot be offered, whatever its name would be."""
    if not DEVICE_ID_PATTERN.fullmatch(device.id) or "::" in device.id:
        raise ValueError(f"{device.id!r} is not a valid id: use letters, digits and single _ . : - between them")
    if not device.device_nodes:
        raise ValueError("it has no device node")
    if wrong := [path for path in device.device_nodes if not _is_in_dev(path)]:
        raise ValueError(f"{wrong[0]!r} is not the path of a device node: write it as /dev/NAME")
    if unknown := sorted(device.attributes.keys() - attributes):
        raise ValueError(f"the attribute {unknown[0]!r} is not known; known: {', '.join(sorted(attributes)) or 'none'}")


def _is_in_dev(path: str) -> bool:
    return path.startswith("/dev/") and normpath(path) == path


def not_offered(unit: Unit, code: ReasonCode, reason: Text, kind: ReasonKind = "problem") -> UnitResource:
    """A unit that is offered under no name."""
    return UnitResource(
        unit=unit, not_offered_reason=reason, not_offered_reason_kind=kind, not_offered_reason_code=code
    )
