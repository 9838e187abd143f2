"""The answer to GetPreferredAllocation: advice, so that a pod's devices are well connected, and the remaining ones too.

Kubelet need not follow it: if the answer has too few ids, kubelet adds others by itself; an error rejects the pod. So
nothing here fails. Unknown ids are ignored, and so are ids that have just become unavailable. A request that is too
large gets all that there is.

- Whole GPUs: the set with the highest link score (`linkscores`); then the one that leaves the best sets for later
  requests; then the one with the fewest GPUs that are degraded or suspect; then the lowest positions (`gpusets`).
- Ids that share a GPU (time slices, MIG devices): spread or packed, by the policy (`shares`). If they have to be of
  different GPUs, one of each.
- Devices of other kinds: of as few NUMA nodes as possible (`plaindevices`).
- Shares of memory: all of one GPU or MIG device, the one on which they fit best: Allocate refuses anything else.

The answer does not depend on the order of the ids in the request.
"""

from collections.abc import Collection, Mapping, Sequence

from gpuplane.base.value import Value
from gpuplane.node.core.advertising import offer
from gpuplane.node.core.choice.gpusetrequest import GpuSetRequest
from gpuplane.node.core.choice.linkscores import LinkScoreMatrix, Policy, link_score_matrix
from gpuplane.node.core.choice.plaindevices import choose_plain_devices
from gpuplane.node.core.choice.shares import DeviceIdUsage, choose_memory_shares, choose_shares
from gpuplane.node.core.choice.tablecache import choose_gpu_set
from gpuplane.node.core.health.devicehealth import health_without_parents
from gpuplane.node.core.view import part_view
from gpuplane.node.model.health import DeviceHealth
from gpuplane.node.model.machine import NVIDIA_GPU, Gpu
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.views import Offer, OfferedDevice, Resource


class GpuDeviceIds(Value):
    """The ids of one GPU in a resource: all, and those without a reason against them. In their order."""

    gpu_uuid: str
    ids: tuple[str, ...]
    healthy_ids: tuple[str, ...]


def preferred_ids(
    snapshot: Snapshot,
    resource: str,
    available: Collection[str],
    required: Collection[str],
    size: int,
    policy: Policy | None = None,
) -> tuple[str, ...]:
    """At most `size` ids: the required ones that exist, then the best of the available. Never raises.

    `policy`: None for the configured one.
    """
    gpus, required_set = (
        _gpu_device_ids_by_resource.of(snapshot, offer(snapshot)).get(resource, ()),
        frozenset(required),
    )
    chosen = [id for gpu in gpus for id in gpu.ids if id in required_set] if required_set else []
    missing, offered = size - len(chosen), offer(snapshot).resource(resource)
    if missing > 0 and offered is not None and offered.devices[0].unit.kind != NVIDIA_GPU:
        chosen += choose_plain_devices(offered.devices, frozenset(available), required_set, missing)
    elif missing > 0 and offered is not None and offered.share_mib:
        chosen += choose_memory_shares(
            _list_device_id_usage_by_unit(offered, frozenset(available) - required_set, required_set), missing
        )
    elif missing > 0 and offered is not None:
        policy = policy or configured_policy(snapshot)
        matrix, found = (
            machine_link_score_matrix(snapshot, policy),
            list_device_id_usage(snapshot, resource, available, required_set),
        )
        if offered.requires_distinct_gpus:
            found = [gpu.but(free_ids=() if gpu.required_id_count else gpu.free_ids[:1]) for gpu in found]
        if any(len(gpu.ids) > 1 for gpu in gpus):
            chosen += choose_shares(found, missing, policy, lambda request: choose_gpu_set(matrix, request))
        else:
            chosen += _choose_whole_gpus(found, missing, matrix, degraded_cost_by_gpu_position(snapshot))
    return tuple(chosen[: max(size, 0)])


def list_device_id_usage(
    snapshot: Snapshot, resource: str, available: Collection[str], required: Collection[str]
) -> list[DeviceIdUsage]:
    """The ids of each GPU of the resource, as a request with these available and required ids finds them."""
    free, required_set, positions = (
        frozenset(available),
        frozenset(required),
        _position_by_gpu_uuid.of(snapshot, snapshot.gpus),
    )
    gpus = _gpu_device_ids_by_resource.of(snapshot, offer(snapshot)).get(resource, ())
    return [_device_id_usage_of_gpu(gpu, positions[gpu.gpu_uuid], free, required_set) for gpu in gpus]


def configured_policy(snapshot: Snapshot) -> Policy:
    """The configured policy."""
    settings = snapshot.config.settings
    return settings.sharing_policy if settings is not None else "distributed"


def machine_link_score_matrix(snapshot: Snapshot, policy: Policy | None = None) -> LinkScoreMatrix:
    """The link score of each pair of the machine's GPUs. Empty before the machine is observed."""
    return link_score_matrix.of(snapshot, snapshot.gpus, policy or configured_policy(snapshot))


def degraded_cost_by_gpu_position(snapshot: Snapshot) -> Mapping[int, int]:
    """The costs of whole GPUs: 1 for each that is degraded or suspect and can still be allocated."""
    found = _degraded_or_suspect_uuids.of(snapshot, health_without_parents(snapshot))
    return (
        {position: 1 for uuid, position in _position_by_gpu_uuid.of(snapshot, snapshot.gpus).items() if uuid in found}
        if found
        else {}
    )


def _choose_whole_gpus(
    id_usages: Sequence[DeviceIdUsage], size: int, matrix: LinkScoreMatrix, costs: Mapping[int, int]
) -> list[str]:
    """The best whole GPUs; all, if there are too few."""
    free = {gpu.position: gpu.free_ids[0] for gpu in id_usages if gpu.free_ids}
    if len(free) <= size:
        return list(free.values())
    required = frozenset(gpu.position for gpu in id_usages if gpu.required_id_count)
    chosen = choose_gpu_set(matrix, GpuSetRequest(frozenset(free), required, len(required) + size, costs))
    return [free[position] for position in chosen if position not in required]


def _device_id_usage_of_gpu(
    gpu_ids: GpuDeviceIds, position: int, free: frozenset[str], required_set: frozenset[str]
) -> DeviceIdUsage:
    available = [id for id in gpu_ids.healthy_ids if id in free]
    free_ids = [id for id in available if id not in required_set] if required_set else available
    required_count = sum(id in required_set for id in gpu_ids.ids) if required_set else 0
    return DeviceIdUsage(
        position=position,
        held_id_count=len(gpu_ids.ids) - len(free_ids) - required_count,
        required_id_count=required_count,
        free_ids=free_ids,
    )


def _list_device_id_usage_by_unit(
    resource: Resource, free: Collection[str], required_set: Collection[str]
) -> list[DeviceIdUsage]:
    """The ids of each unit (a GPU or a MIG device) of the resource; `position` is the unit's place in this list."""
    units: dict[str, list[OfferedDevice]] = {}
    for device in resource.devices:
        units.setdefault(device.unit.id, []).append(device)
    return [
        _device_id_usage_of_unit(position, devices, free, required_set)
        for position, devices in enumerate(units.values())
    ]


def _device_id_usage_of_unit(
    position: int, devices: Sequence[OfferedDevice], free: Collection[str], required_set: Collection[str]
) -> DeviceIdUsage:
    free_ids = [device.id for device in devices if device.id in free and not device.reasons]
    required_count = sum(device.id in required_set for device in devices)
    return DeviceIdUsage(
        position=position,
        held_id_count=len(devices) - len(free_ids) - required_count,
        required_id_count=required_count,
        free_ids=free_ids,
    )


@part_view
def _position_by_gpu_uuid(gpus: tuple[Gpu, ...]) -> Mapping[str, int]:
    """UUID → position in the machine's list."""
    return {gpu.uuid: position for position, gpu in enumerate(gpus)}


@part_view
def _degraded_or_suspect_uuids(device_healths: tuple[DeviceHealth, ...]) -> frozenset[str]:
    """UUIDs of the devices that are degraded or suspect."""
    return frozenset(each.device for each in device_healths if each.state in ("degraded", "suspect"))


@part_view
def _gpu_device_ids_by_resource(offered: Offer) -> Mapping[str, tuple[GpuDeviceIds, ...]]:
    """Name of a resource → its GPUs with their ids, in the order of its devices."""
    return {
        resource.name: tuple(map(_gpu_device_ids, _group_by_gpu(resource.devices))) for resource in offered.resources
    }


def _group_by_gpu(devices: Sequence[OfferedDevice]) -> Collection[Sequence[OfferedDevice]]:
    found: dict[str, list[OfferedDevice]] = {}
    for device in devices:
        found.setdefault(device.unit.gpu, []).append(device)
    return found.values()


def _gpu_device_ids(devices: Sequence[OfferedDevice]) -> GpuDeviceIds:
    return GpuDeviceIds(
        gpu_uuid=devices[0].unit.gpu,
        ids=tuple(device.id for device in devices),
        healthy_ids=tuple(device.id for device in devices if not device.reasons),
    )
