"""The ResourceSlices of this node: a pool for each GPU, of one slice with one device.

- A pool for each GPU: what happens to one touches no other's slice, and no other's generation.
- Published is each GPU that can be given out as a whole: one that is not in MIG mode. A sick one stays, tainted:
  autoscalers count complete pools.
- A device that a claim holds is published whatever has happened to it: a scheduler that does not see it believes that
  all of it is free (kubernetes/kubernetes#140802).
- Before it is known what containers hold, nothing is known: a GPU that a container has would be given to a claim.
- While the configuration disables DRA, only what claims hold is published, until they end.
"""

import hashlib
from collections.abc import Mapping

from gpuplane.node.core.dra.attributes import absent_gpu_attributes, gpu_attributes, gpu_capacity, memory_quantity
from gpuplane.node.core.dra.names import device_name, pool_name
from gpuplane.node.core.dra.taints import device_taints, taint_reasons
from gpuplane.node.core.view import part_view
from gpuplane.node.model.config import DraSettings
from gpuplane.node.model.machine import Driver, Gpu
from gpuplane.node.model.reasons import Reason
from gpuplane.node.model.resourceslices import DeviceCapacity, DeviceTaint, ResourceSlice, SliceDevice
from gpuplane.node.model.snapshot import Snapshot

MAX_NAME = 253
"""Characters of the name of an object."""

DIGEST_LENGTH = 10

GPU_GONE = Reason(kind="problem", text="the driver does not report this GPU any more", code="claim-device-unknown")
DISABLED = Reason(kind="configured", text="the configuration disables Dynamic Resource Allocation", code="dra-disabled")


def resource_slices(snapshot: Snapshot, node: str) -> tuple[ResourceSlice, ...] | None:
    """The slices that shall be published of the node of this name, in the order of GPUs; None while that is unknown."""
    settings, machine = snapshot.config.settings, snapshot.machine
    if settings is None or machine is None or machine.gpus is None or snapshot.allocations is None:
        return None
    claimed = claimed_gpus(snapshot)
    taints = _taints.of(snapshot, taint_reasons(snapshot), settings.dra)
    return _slices.of(snapshot, machine.driver, machine.gpus, settings.dra, claimed, taints, node)


def claimed_gpus(snapshot: Snapshot) -> Mapping[str, str]:
    """Device name → UUID of each GPU that claims of our driver hold: by our promise, or as kubelet reports it."""
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
    return {name: uuid for uuid in sorted(found) if (name := device_name(uuid))}


def slice_name(node: str, driver: str, device: str) -> str:
    """The name of the slice of a device: "node-1-gpu.nvidia.com-gpu-8d0e…". No other node's has it."""
    name = f"{node}-{driver}-{device}"
    if len(name) <= MAX_NAME:
        return name
    digest = hashlib.sha256(f"{node}/{driver}".encode()).hexdigest()[:DIGEST_LENGTH]
    room = MAX_NAME - len(device) - DIGEST_LENGTH - 2
    return f"{name[:room].rstrip('.-')}-{digest}-{device}"


@part_view
def _taints(reasons: Mapping[str, tuple[Reason, ...]], dra: DraSettings) -> Mapping[str, tuple[DeviceTaint, ...]]:
    """UUID of a GPU → its taints."""
    why = (DISABLED,) if not dra.enabled else ()
    return {uuid: device_taints((*each, *why), dra) for uuid, each in {"": (), **reasons}.items()}


@part_view
def _slices(
    driver: Driver | None,
    gpus: tuple[Gpu, ...],
    dra: DraSettings,
    claimed: Mapping[str, str],
    taints: Mapping[str, tuple[DeviceTaint, ...]],
    node: str,
) -> tuple[ResourceSlice, ...]:
    found: dict[str, SliceDevice] = {}
    uuid_by_name: dict[str, str] = {}
    for gpu in gpus:
        name = device_name(gpu.uuid)
        if name and name not in found and (name in claimed or (dra.enabled and not gpu.mig_enabled)):
            found[name] = SliceDevice(
                name=name,
                attributes=gpu_attributes(driver, gpu),
                capacity=gpu_capacity(gpu),
                taints=taints.get(gpu.uuid, taints[""]),
            )
            uuid_by_name[name] = gpu.uuid
    for name, uuid in claimed.items():
        if name not in found:
            found[name] = _absent_device(name, uuid, dra)
            uuid_by_name[name] = uuid
    return tuple(
        ResourceSlice(
            name=slice_name(node, dra.driver, name),
            driver=dra.driver,
            node=node,
            pool=pool_name(node, uuid_by_name[name]),
            devices=(device,),
            allocated=frozenset({name} & claimed.keys()),
        )
        for name, device in found.items()
    )


def _absent_device(name: str, uuid: str, dra: DraSettings) -> SliceDevice:
    """A device that a claim holds, of a GPU that is gone."""
    why = (GPU_GONE,) if dra.enabled else (GPU_GONE, DISABLED)
    return SliceDevice(
        name=name,
        attributes=absent_gpu_attributes(uuid),
        capacity={"memory": DeviceCapacity(memory_quantity(0))},
        taints=device_taints(why, dra),
    )
