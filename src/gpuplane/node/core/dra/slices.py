"""The ResourceSlices of this node: a pool for each device, of one slice with it.

- A pool for each device: what happens to one touches no other's slice, and no other's generation.
- Published is each device that can be given out, as its kind says: of GPUs those that are not in MIG mode. A sick one
  stays, tainted: autoscalers count complete pools.
- A device that a claim holds is published whatever has happened to it: a scheduler that does not see it believes that
  all of it is free (kubernetes/kubernetes#140802).
- Before it is known what containers hold, nothing is known: a device that a container has would be given to a claim.
- While the configuration disables DRA, only what claims hold is published, until they end.
"""

import hashlib
from collections.abc import Mapping

from gpuplane.node.core.dra.devices import DraDevices, dra_devices
from gpuplane.node.core.dra.names import device_name, pool_name
from gpuplane.node.core.dra.taints import device_taints, taint_reasons
from gpuplane.node.core.kinds.dra import DraDevice
from gpuplane.node.core.kinds.table import dra_of
from gpuplane.node.core.view import part_view
from gpuplane.node.model.config import DraSettings
from gpuplane.node.model.reasons import Reason
from gpuplane.node.model.resourceslices import DeviceTaint, ResourceSlice, SliceDevice
from gpuplane.node.model.snapshot import Snapshot

MAX_NAME = 253
"""Characters of the name of an object."""

DIGEST_LENGTH = 10

GONE = Reason(kind="problem", text="the agent does not see this device any more", code="claim-device-unknown")
DISABLED = Reason(kind="configured", text="the configuration disables Dynamic Resource Allocation", code="dra-disabled")

Taints = Mapping[str, tuple[DeviceTaint, ...]]


def resource_slices(snapshot: Snapshot, node: str) -> tuple[ResourceSlice, ...] | None:
    """The slices that shall be published of the node of this name, kind by kind; None while that is unknown."""
    settings, devices = snapshot.config.settings, dra_devices(snapshot)
    if settings is None or devices.are_awaited or snapshot.allocations is None:
        return None
    taints = _taints.of(snapshot, taint_reasons(snapshot), settings.dra)
    return _slices.of(snapshot, devices, settings.dra, claimed_units(snapshot), taints, node)


def claimed_units(snapshot: Snapshot) -> Mapping[str, str]:
    """Device name → unit of each device that claims of our driver hold: by our promise, or as kubelet reports it."""
    settings = snapshot.config.settings
    driver = settings.dra.driver if settings is not None else ""
    found = [
        each.unit
        for claim in (snapshot.ledger.claims or {}).values()
        if claim.driver == driver
        for each in claim.devices
    ]
    for allocation in snapshot.allocations or ():
        if allocation.claim and allocation.resource == driver:
            found += allocation.devices
    return {name: unit for unit in sorted(found) if (name := device_name(unit))}


def slice_name(node: str, driver: str, device: str) -> str:
    """The name of the slice of a device: "node-1-gpu.nvidia.com-gpu-8d0e…". No other node's has it."""
    name = f"{node}-{driver}-{device}"
    if len(name) <= MAX_NAME:
        return name
    digest = hashlib.sha256(f"{node}/{driver}".encode()).hexdigest()[:DIGEST_LENGTH]
    room = MAX_NAME - len(device) - DIGEST_LENGTH - 2
    return f"{name[:room].rstrip('.-')}-{digest}-{device}"


@part_view
def _taints(reasons: Mapping[str, tuple[Reason, ...]], dra: DraSettings) -> Taints:
    """Unit → its taints; "": those of all others."""
    why = (DISABLED,) if not dra.enabled else ()
    return {unit: device_taints((*each, *why), dra) for unit, each in {"": (), **reasons}.items()}


@part_view
def _slices(
    devices: DraDevices, dra: DraSettings, claimed: Mapping[str, str], taints: Taints, node: str
) -> tuple[ResourceSlice, ...]:
    found = {
        name: _slice_device(each, taints.get(each.unit, taints[""]))
        for name, each in devices.by_name.items()
        if name in claimed or (dra.enabled and each.not_claimable is None)
    }
    for name, unit in claimed.items():
        if name not in found:
            gone = (GONE,) if devices.is_counted(name) else ()
            why = (*gone, *(() if dra.enabled else (DISABLED,)))
            found[name] = _slice_device(dra_of(unit).absent_device(unit), device_taints(why, dra))
    return tuple(
        ResourceSlice(
            name=slice_name(node, dra.driver, name),
            driver=dra.driver,
            node=node,
            pool=pool_name(node, name),
            devices=(device,),
            allocated=frozenset({name} & claimed.keys()),
        )
        for name, device in found.items()
    )


def _slice_device(device: DraDevice, taints: tuple[DeviceTaint, ...]) -> SliceDevice:
    return SliceDevice(name=device.name, attributes=device.attributes, capacity=device.capacity, taints=taints)
