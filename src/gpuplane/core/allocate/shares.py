"""Which shares one container may hold together, and what it is told of a share of memory.

Shares of memory are all of one GPU, or MIG device; distinct shares each of another GPU. Kubelet takes our preference
for advice, and may pass over it, as where it aligns devices to NUMA nodes. So what it chose is judged here, once more.
"""

from collections import Counter
from collections.abc import Collection, Sequence

from gpuplane.core.advertising import offer
from gpuplane.core.devicenames import describe_devices
from gpuplane.core.inventory.sharing import MIB
from gpuplane.core.text import format_memory
from gpuplane.core.withholding import MEMORY_VARIABLE
from gpuplane.model.config import MemoryUnit
from gpuplane.model.snapshot import Snapshot
from gpuplane.model.views import OfferedDevice, Refused, Resource, Unit

ANEW = "kubelet passed over the advice which to take; create the pod anew"
WAIT = ", or wait until other pods end"


def check(snapshot: Snapshot, name: str, wanted: Sequence[OfferedDevice]) -> None:
    """Raises Refused where these devices of a resource cannot be one container's: who has how much free, what to do."""
    resource = offer(snapshot).resource(name)
    if resource is None or len(wanted) == 1:
        return
    if resource.share_mib and len({device.unit.id for device in wanted}) > 1:
        counted = snapshot.config.settings.sharing.memory_unit if snapshot.config.settings else "GiB"
        raise Refused(_parted(resource, wanted, _free(snapshot, resource, wanted), counted))
    if resource.distinct_gpus and len({device.unit.gpu for device in wanted}) < len(wanted):
        raise Refused(_doubled(resource, wanted, _free(snapshot, resource, wanted)))


def _free(snapshot: Snapshot, resource: Resource, wanted: Collection[OfferedDevice]) -> list[OfferedDevice]:
    """The devices that this request could have: those without trouble that no other container holds."""
    held = {id for each in snapshot.allocations or () if each.resource == resource.name for id in each.devices}
    held -= {device.id for device in wanted}
    return [device for device in resource.devices if not device.reasons and device.id not in held]


def _parted(
    resource: Resource, wanted: Sequence[OfferedDevice], free: Sequence[OfferedDevice], counted: MemoryUnit
) -> str:
    """The list comes last, and what has most room first: a long message is cut off."""
    grain, size = resource.share_mib, len(wanted)
    units = {device.unit.id: device.unit for device in resource.devices}
    counts = Counter(device.unit.id for device in free)
    order = sorted(units.values(), key=lambda unit: -counts[unit.id])
    free_of = {
        unit: format_memory(counts[unit.id] * grain, counted) if counts[unit.id] else "nothing" for unit in order
    }
    rooms = ", ".join(f"{describe_devices([('', unit.index)])} has {room}" for unit, room in free_of.items())
    most = max(counts.values(), default=0)
    whole = Counter(device.unit.id for device in resource.devices if not device.reasons)
    wait = WAIT if max(whole.values(), default=0) >= size else ""
    less = f"request {format_memory(most * grain, counted)} at most{wait}"
    return (
        f"{resource.name}: {format_memory(size * grain, counted)} of memory have to come from one GPU, and the shares "
        f"chosen are of {len({device.unit.id for device in wanted})}: {ANEW if most >= size else less}; "
        f"free, as kubelet last listed: {rooms}"
    )


def _doubled(resource: Resource, wanted: Sequence[OfferedDevice], free: Sequence[OfferedDevice]) -> str:
    gpu, twice = Counter(device.unit.gpu for device in wanted).most_common(1)[0]
    most = len({device.unit.gpu for device in free})
    whole = {device.unit.gpu for device in resource.devices if not device.reasons}
    less = f"request {most} at most{WAIT if len(whole) >= len(wanted) else ''}"
    return (
        f"{resource.name}: {len(wanted)} shares have to be of {len(wanted)} different GPUs, and {twice} of those "
        f"chosen are of {gpu}; GPUs with a free share, as kubelet last listed: {most}; "
        f"{ANEW if most >= len(wanted) else less}"
    )


def limits(unit: Unit, mib: int, counted: MemoryUnit) -> dict[str, str]:
    """What the environment tells a container of its share of a device's memory.

    Under gpushare's names in the unit that is counted in (gpushare-device-plugin 45fb8b8, pkg/gpu/nvidia/allocate.go),
    and under ours in MiB. What its whole pod has, ALIYUN_COM_GPU_MEM_POD, kubelet does not tell.
    """
    return {
        "ALIYUN_COM_GPU_MEM_IDX": unit.index,
        "ALIYUN_COM_GPU_MEM_DEV": str(unit.memory_mib // MIB[counted]),
        "ALIYUN_COM_GPU_MEM_CONTAINER": str(mib // MIB[counted]),
        MEMORY_VARIABLE: str(mib),
    }
