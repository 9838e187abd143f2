"""Which shares one container may hold together, and the environment variables for a share of memory.

Shares of memory have to be of one GPU or MIG device; distinct shares of different GPUs. Kubelet need not follow our
preference, for example if it aligns devices to NUMA nodes. So its choice is checked here again.
"""

from collections import Counter
from collections.abc import Collection, Sequence

from gpuplane.base.text import format_memory
from gpuplane.node.core.allocations import held_allocations
from gpuplane.node.core.devicenames import describe_devices
from gpuplane.node.core.shares import MIB_PER_MEMORY_UNIT
from gpuplane.node.core.withholding import SHARE_MEMORY_VARIABLE
from gpuplane.node.model.config import MemoryUnit
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.views import OfferedDevice, RequestRefused, Resource, Unit

RETRY_ADVICE = "kubelet did not follow the preferred allocation, so create the pod again"
WAIT_ADVICE = ", or wait until other pods end"


def refuse_forbidden_shares(snapshot: Snapshot, resource: Resource, devices: Sequence[OfferedDevice]) -> None:
    """Raises RequestRefused if one container must not hold these devices together: what is free on each GPU, what to
    do."""
    if len(devices) == 1:
        return
    if resource.share_mib and len({device.unit.id for device in devices}) > 1:
        memory_unit = snapshot.config.settings.sharing.memory_unit if snapshot.config.settings else "GiB"
        raise RequestRefused(
            _several_units_message(
                resource, devices, _free_devices_for_request(snapshot, resource, devices), memory_unit
            )
        )
    if resource.requires_distinct_gpus and len({device.unit.gpu for device in devices}) < len(devices):
        raise RequestRefused(
            _same_gpu_message(resource, devices, _free_devices_for_request(snapshot, resource, devices))
        )


def _free_devices_for_request(
    snapshot: Snapshot, resource: Resource, requested: Collection[OfferedDevice]
) -> list[OfferedDevice]:
    """The devices that this request could have: available ones that no other container holds."""
    held = {id for each in held_allocations(snapshot) or () if each.resource == resource.name for id in each.devices}
    held -= {device.id for device in requested}
    return [device for device in resource.devices if not device.reasons and device.id not in held]


def _several_units_message(
    resource: Resource, devices: Sequence[OfferedDevice], free: Sequence[OfferedDevice], memory_unit: MemoryUnit
) -> str:
    """The list of GPUs comes last, the one with the most free memory first: long messages are cut off."""
    share_mib, size = resource.share_mib, len(devices)
    units = {device.unit.id: device.unit for device in resource.devices}
    counts = Counter(device.unit.id for device in free)
    order = sorted(units.values(), key=lambda unit: -counts[unit.id])
    free_amounts = (
        format_memory(counts[unit.id] * share_mib, memory_unit) if counts[unit.id] else "nothing" for unit in order
    )
    listed = ", ".join(
        f"{describe_devices([('', unit.index)])} has {each}" for unit, each in zip(order, free_amounts, strict=True)
    )
    most = max(counts.values(), default=0)
    whole = Counter(device.unit.id for device in resource.devices if not device.reasons)
    wait = WAIT_ADVICE if max(whole.values(), default=0) >= size else ""
    less = f"request at most {format_memory(most * share_mib, memory_unit)}{wait}"
    requested = format_memory(size * share_mib, memory_unit)
    return (
        f"{resource.name}: the {requested} of memory must come from one GPU or MIG device, but kubelet chose shares "
        f"of {len({device.unit.id for device in devices})} devices: {RETRY_ADVICE if most >= size else less}; free "
        f"memory in kubelet's last list: {listed}"
    )


def _same_gpu_message(resource: Resource, devices: Sequence[OfferedDevice], free: Sequence[OfferedDevice]) -> str:
    gpu, twice = Counter(device.unit.gpu for device in devices).most_common(1)[0]
    most = len({device.unit.gpu for device in free})
    whole = {device.unit.gpu for device in resource.devices if not device.reasons}
    less = f"request at most {most}{WAIT_ADVICE if len(whole) >= len(devices) else ''}"
    return (
        f"{resource.name}: the {len(devices)} shares must come from {len(devices)} different GPUs, but kubelet chose "
        f"{twice} shares of {gpu}; GPUs with a free share in kubelet's last list: {most}; "
        f"{RETRY_ADVICE if most >= len(devices) else less}"
    )


def memory_share_variables(unit: Unit, mib: int, memory_unit: MemoryUnit) -> dict[str, str]:
    """The environment variables that describe a container's share of a device's memory.

    gpushare's names have the configured unit (gpushare-device-plugin 45fb8b8, pkg/gpu/nvidia/allocate.go), ours has
    MiB. The memory of the whole pod, ALIYUN_COM_GPU_MEM_POD, is missing: kubelet does not tell it.
    """
    return {
        "ALIYUN_COM_GPU_MEM_IDX": unit.index,
        "ALIYUN_COM_GPU_MEM_DEV": str(unit.memory_mib // MIB_PER_MEMORY_UNIT[memory_unit]),
        "ALIYUN_COM_GPU_MEM_CONTAINER": str(mib // MIB_PER_MEMORY_UNIT[memory_unit]),
        SHARE_MEMORY_VARIABLE: str(mib),
    }
