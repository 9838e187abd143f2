"""Devices of a plain kind in Dynamic Resource Allocation."""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence

from gpuplane.kubernetes.resourcenames import OWN_PREFIX
from gpuplane.node.core.kinds.attributes import (
    NO_CAPACITY,
    STANDARD_DOMAIN,
    UNKNOWN,
    numa_attributes,
    text_attribute,
)
from gpuplane.node.core.kinds.claimconfigs import InvalidConfig, configs_for_device
from gpuplane.node.core.kinds.dra import DNS_LABEL, DraDevice, KindInDra
from gpuplane.node.core.kinds.unitresource import UnitResource, plain_unit_id
from gpuplane.node.model.cdi import ContainerEdits
from gpuplane.node.model.claims import AllocatedClaim, PreparedDevice
from gpuplane.node.model.machine import DeviceList, Machine
from gpuplane.node.model.resourceslices import DeviceAttribute
from gpuplane.node.model.views import Unit

DIGEST_LENGTH = 10
"""Characters that tell apart ids that make the same name."""

SliceAttributes = Callable[[Unit], Mapping[str, DeviceAttribute]]


def plain_kind_in_dra(
    kind: str,
    units: Callable[[DeviceList], Sequence[UnitResource]],
    slice_attributes: SliceAttributes,
    container_edits: Callable[[Unit], ContainerEdits],
) -> KindInDra:
    """How a plain kind stands in ResourceSlices: each device that has a resource name. `units`: in a stable order."""

    unit_id_prefix = plain_unit_id(kind, "")

    def device(named: UnitResource) -> DraDevice:
        unit, attributes = named.unit, _attributes(named.unit, named.resource, slice_attributes)
        return DraDevice(unit.id, device_name(unit.id), attributes, NO_CAPACITY, container_edits=container_edits(unit))

    def devices(_: Machine | None, observed: DeviceList) -> Sequence[DraDevice] | None:
        return None if observed.devices is None else [device(each) for each in units(observed) if each.resource]

    def absent_device(id: str) -> DraDevice:
        unit = Unit(id=id, gpu=id, index="", model="", kind=kind)
        return DraDevice(id, device_name(id), _attributes(unit, "", slice_attributes), NO_CAPACITY)

    def device_name(id: str) -> str:
        return plain_device_name(kind, id.removeprefix(unit_id_prefix))

    return KindInDra(f"{kind}-", device_name, lambda name: unit_id_prefix, devices, absent_device, _refuse_configs)


def _refuse_configs(device: PreparedDevice, claim: AllocatedClaim) -> PreparedDevice:
    """The same device: an entry for all requests is for others. Raises InvalidConfig for one that names its request."""
    for where, config in configs_for_device(claim, device.allocated):
        if config.requests:
            raise InvalidConfig(f"{where}: {device.unit}, which request {device.allocated.request} got, has none")
    return device


def plain_device_name(kind: str, device_id: str) -> str:
    """The name of a device in its pool: "device-node-kvm". Where the id is no part of a name, a digest of it is there
    too: "fpga-0000-3b-00-0-1c5f0a9b3e"."""
    name = f"{kind}-{device_id}"
    if not device_id or DNS_LABEL.fullmatch(name):
        return name if device_id else ""
    digest = hashlib.sha256(device_id.encode()).hexdigest()[:DIGEST_LENGTH]
    readable = re.sub("[^a-z0-9]+", "-", name.lower())[: 62 - DIGEST_LENGTH].strip("-")
    return f"{readable}-{digest}"


def _attributes(unit: Unit, resource: str, slice_attributes: SliceAttributes) -> Mapping[str, DeviceAttribute]:
    """The attributes of a device: those of all devices, and those of its kind, which are in our domain."""
    own = {"resource": text_attribute(resource), **slice_attributes(unit)}
    known = {
        "type": DeviceAttribute(string=unit.kind),
        "uuid": text_attribute(unit.id),
        f"{STANDARD_DOMAIN}pciBusID": text_attribute(unit.pci.lower()),
    }
    in_our_domain = {f"{OWN_PREFIX}{name}": value for name, value in own.items()}
    return {**UNKNOWN, **known, **numa_attributes(unit.numa), **in_our_domain}
