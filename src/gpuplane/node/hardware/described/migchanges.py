"""A described GPU is partitioned by the rules of a real one: what can be created where, and what a look shows then.

Pure functions of a `Gpu`. A GPU instance's id is its place in a tree: 0 is the whole GPU, 1 and 2 are halves, 3 to 6
quarters, 7 to 14 eighths. On some cards the halves are numbered the other way round, as on GPU 1 of NVIDIA/DCGM#138:
1 is 4:4, 5 is 0:2, 13 is 2:1. The UUID of a MIG device follows from its GPU's and both instances' ids, so the same
place has the same UUID again (open-gpu-kernel-modules, nvGenerateSmcUuid). The minor numbers of its two nodes follow
from the GPU's minor and the ids, too (/proc/driver/nvidia-caps/mig-minors).
"""

import uuid
from collections.abc import Mapping, Sequence

from gpuplane.base.text import Text
from gpuplane.node.core.partitions.cards import profiles_of
from gpuplane.node.core.partitions.layouts import fits, memory_slices
from gpuplane.node.core.partitions.names import find_profile, profile_name
from gpuplane.node.hardware.described.migattributes import mig_attributes
from gpuplane.node.hardware.nvidia.driver.errors import describe_error
from gpuplane.node.hardware.nvidia.driver.migcalls import CALL_OF_CHANGE, PROBLEM_OF_ERROR
from gpuplane.node.model.machine import DeviceNodeStat, Gpu, GpuProcess, Mig, MigDevice
from gpuplane.node.model.partitions import (
    ChangeProblem,
    ComputeInstance,
    CreateComputeInstance,
    CreateGpuInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    GpuInstance,
    GpuInstanceProfile,
    GpuUser,
    PartitionChange,
    ResetGpu,
    SetMigMode,
)

HOPPER_COMPUTE_CAPABILITY = (9, 0)
"""The compute capability from which on a change of the MIG mode needs no reset."""
UUID_NAMESPACE = uuid.UUID("6f1d5bcb-2d0e-4a43-9f6b-0b6a4e6f5a11")
FIRST_CAP_MINOR, CAP_MINORS_PER_GPU, CAP_MINORS_PER_INSTANCE = 3, 135, 9
"""Minor numbers: the first of an instance, those of each GPU, those of each GPU instance (itself and eight within)."""

FUNCTION_OF_CHANGE: Mapping[type[PartitionChange], str] = {**CALL_OF_CHANGE, ResetGpu: "nvidia-smi"}
"""The call by which each change is made, and by which a machine file names it to have it fail."""


class ChangeRefused(Exception):
    """A change that the driver refuses, by NVML's error."""

    def __init__(self, change: PartitionChange, error: str, users: Sequence[GpuUser] = ()) -> None:
        self.problem: ChangeProblem = PROBLEM_OF_ERROR.get(error, "failed")
        self.failure: Text = describe_error(FUNCTION_OF_CHANGE[type(change)], error)
        self.users = tuple(users)
        super().__init__(self.failure)


def with_mig_details(gpu: Gpu) -> Gpu:
    """A GPU of a machine file with what its driver would tell of its profiles and instances."""
    mig, profiles = gpu.mig, profiles_of(gpu)
    if mig is None:
        return gpu
    instances, capability = mig.instances, _capability(gpu)
    if instances is None:
        instances = () if not mig.enabled else _instances(mig, profiles) if profiles else None
    needs_reset = mig.needs_reset
    if needs_reset is None and capability:
        needs_reset = capability < HOPPER_COMPUTE_CAPABILITY
    return gpu.but(mig=mig.but(profiles=profiles, instances=instances, needs_reset=needs_reset))


def make_change(
    gpu: Gpu, change: PartitionChange, processes: Sequence[GpuProcess], described: Mig | None = None
) -> Gpu:
    """The GPU after a change. `processes`: those that compute on it. Raises ChangeRefused.

    `described`: what a file describes. Ids go on as they are there, and a MIG device that is made again is the same,
    with the UUID that it had.
    """
    described = described or Mig()
    mig = gpu.mig
    if mig is None or mig.instances is None:
        raise ChangeRefused(change, "NOT_SUPPORTED")
    match change:
        case SetMigMode(enabled):
            return gpu.but(mig=_with_mode(mig, change, enabled, processes))
        case ResetGpu():
            _refuse_if_used(change, processes)
            enabled = mig.enabled if mig.pending is None else mig.pending
            return gpu.but(mig=mig.but(enabled=enabled, pending=None, devices=(), instances=()))
        case _ if not mig.enabled:
            raise ChangeRefused(change, "NOT_SUPPORTED")
        case CreateGpuInstance(profile, start):
            return gpu.but(mig=_with_gpu_instance(mig, change, profile, start, _is_mirrored(described, mig.profiles)))
        case DestroyGpuInstance(id, profile, start):
            instance = _instance(mig, change, profile, start)
            if instance.id != id:
                raise ChangeRefused(change, "NOT_FOUND")
            _refuse_if_used(change, [each for each in processes if each.gpu_instance == id])
            if instance.compute_instances:
                raise ChangeRefused(change, "IN_USE")
            return gpu.but(mig=mig.but(instances=tuple(each for each in mig.instances if each is not instance)))
        case CreateComputeInstance(profile, start, slices):
            instance = _instance(mig, change, profile, start)
            return gpu.but(mig=_with_compute_instance(gpu, mig, change, instance, slices, described.devices))
        case DestroyComputeInstance(profile, start, id):
            instance = _instance(mig, change, profile, start)
            parts = tuple(each for each in instance.compute_instances if each.id != id)
            if parts == instance.compute_instances:
                raise ChangeRefused(change, "NOT_FOUND")
            inside = [each for each in processes if each.gpu_instance == instance.id]
            _refuse_if_used(change, [each for each in inside if each.compute_instance in (None, id)])
            devices = tuple(
                each for each in mig.devices if (each.gpu_instance, each.compute_instance) != (instance.id, id)
            )
            return gpu.but(mig=_replaced(mig, instance.but(compute_instances=parts)).but(devices=devices))


def cap_node_stats(gpu: Gpu, known: Mapping[str, DeviceNodeStat]) -> Mapping[str, DeviceNodeStat]:
    """The numbers of the nodes of a GPU's MIG devices, where the file's others show the major number."""
    major = next((stat.major for node, stat in known.items() if "/nvidia-caps/" in node), None)
    if major is None:
        return {}
    return {
        node: DeviceNodeStat(major=major, minor=int(node.rpartition("cap")[2]), mode=0o444)
        for device in gpu.mig_devices
        for node in device.device_nodes
        if node not in known
    }


def instance_id(size: int, start: int, whole: int, is_mirrored: bool = False) -> int:
    """The id of the GPU instance on these of so many memory slices. `is_mirrored`: the halves change their places."""
    if is_mirrored and size < whole:
        start = (start + whole // 2) % whole
    return whole // size - 1 + start // size


def _instances(mig: Mig, profiles: tuple[GpuInstanceProfile, ...]) -> tuple[GpuInstance, ...] | None:
    """The GPU instances in which the described devices are; None where their ids are no places for them."""
    for is_mirrored in (False, True):
        found = _placed(mig.devices, profiles, is_mirrored)
        taken = [slice for each in found or () for slice in range(each.start, each.start + each.size)]
        if found is not None and len(taken) == len(set(taken)):
            return found
    return None


def _placed(
    devices: Sequence[MigDevice], profiles: tuple[GpuInstanceProfile, ...], is_mirrored: bool
) -> tuple[GpuInstance, ...] | None:
    found: dict[int, GpuInstance] = {}
    whole = memory_slices(profiles)
    for device in devices:
        try:
            profile, slices = find_profile(device.profile, profiles)
        except ValueError:
            return None
        ids = {instance_id(profile.size, start, whole, is_mirrored): start for start in profile.starts}
        if device.gpu_instance not in ids:
            return None
        new = GpuInstance(id=device.gpu_instance, profile=profile.id, start=ids[device.gpu_instance], size=profile.size)
        instance = found.setdefault(device.gpu_instance, new)
        if instance.profile != profile.id:
            return None
        part = ComputeInstance(id=device.compute_instance, slices=slices)
        found[device.gpu_instance] = instance.but(compute_instances=(*instance.compute_instances, part))
    return tuple(found[id] for id in sorted(found))


def _is_mirrored(described: Mig, profiles: tuple[GpuInstanceProfile, ...]) -> bool:
    """Whether the described instances have the ids of a card whose halves are numbered the other way round."""
    whole = memory_slices(profiles)
    return any(each.id != instance_id(each.size, each.start, whole) for each in described.instances or ())


def _capability(gpu: Gpu) -> tuple[int, ...]:
    return tuple(int(each) for each in gpu.compute_capability.split(".") if each.isdecimal())


def _with_mode(mig: Mig, change: SetMigMode, enabled: bool, processes: Sequence[GpuProcess]) -> Mig:
    current = mig.enabled if mig.pending is None else mig.pending
    if enabled == current:
        return mig
    if enabled == mig.enabled:
        return mig.but(pending=None)
    if mig.instances:
        raise ChangeRefused(change, "IN_USE")
    _refuse_if_used(change, processes)
    if mig.needs_reset:
        return mig.but(pending=enabled)
    return mig.but(enabled=enabled, pending=None, devices=(), instances=())


def _with_gpu_instance(mig: Mig, change: CreateGpuInstance, profile: int, start: int, is_mirrored: bool) -> Mig:
    instances = mig.instances or ()
    known = next((each for each in mig.profiles if each.id == profile), None)
    if known is None or start not in known.starts:
        raise ChangeRefused(change, "INVALID_ARGUMENT")
    places = [each.placement for each in instances]
    if (profile, start) in places:
        return mig
    if not fits(mig.profiles, [*places, (profile, start)]):
        raise ChangeRefused(change, "INSUFFICIENT_RESOURCES")
    id, taken = (
        instance_id(known.size, start, memory_slices(mig.profiles), is_mirrored),
        {each.id for each in instances},
    )
    if id in taken:  # the file has ids that are no places
        id = next(number for number in range(1, 64) if number not in taken)
    new = GpuInstance(id=id, profile=profile, start=start, size=known.size)
    return mig.but(instances=tuple(sorted((*instances, new), key=lambda each: each.id)))


def _with_compute_instance(
    gpu: Gpu,
    mig: Mig,
    change: CreateComputeInstance,
    instance: GpuInstance,
    slices: int,
    described: Sequence[MigDevice],
) -> Mig:
    profile = next(each for each in mig.profiles if each.id == instance.profile)
    part = next((each for each in profile.compute_profiles if each.slices == slices), None)
    if part is None:
        raise ChangeRefused(change, "INVALID_ARGUMENT")
    there = instance.compute_instances
    count = sum(each.slices == slices for each in there)
    if count >= part.count or sum(each.slices for each in there) + slices > profile.slices:
        raise ChangeRefused(change, "INSUFFICIENT_RESOURCES")
    id = next(number for number in range(8) if all(each.id != number for each in there))
    grown = instance.but(compute_instances=(*there, ComputeInstance(id=id, slices=slices)))
    device = _device(gpu, profile, instance, id, slices)
    known = next((each for each in described if (each.gpu_instance, each.compute_instance) == (instance.id, id)), None)
    if known is not None:
        device = known if known.profile == device.profile else device.but(uuid=known.uuid)
    slot = next(number for number in range(64) if all(each.mig_index != number for each in mig.devices))
    return _replaced(mig, grown).but(devices=(*mig.devices, device.but(mig_index=slot)))


def _device(gpu: Gpu, profile: GpuInstanceProfile, instance: GpuInstance, id: int, slices: int) -> MigDevice:
    nodes: tuple[str, ...] = ()
    if gpu.minor is not None:
        first = FIRST_CAP_MINOR + CAP_MINORS_PER_GPU * gpu.minor + CAP_MINORS_PER_INSTANCE * instance.id
        nodes = tuple(f"/dev/nvidia-caps/nvidia-cap{number}" for number in (first, first + 1 + id))
    return MigDevice(
        uuid=f"MIG-{uuid.uuid5(UUID_NAMESPACE, f'{gpu.uuid}/{instance.id}/{id}')}",
        profile=profile_name(profile, slices),
        gpu_instance=instance.id,
        compute_instance=id,
        memory_mib=profile.memory_mib,
        device_nodes=nodes,
        attributes=mig_attributes(gpu, profile, slices),
    )


def _instance(mig: Mig, change: PartitionChange, profile: int, start: int) -> GpuInstance:
    found = next((each for each in mig.instances or () if each.placement == (profile, start)), None)
    if found is None:
        raise ChangeRefused(change, "NOT_FOUND")
    return found


def _replaced(mig: Mig, instance: GpuInstance) -> Mig:
    return mig.but(instances=tuple(instance if each.id == instance.id else each for each in mig.instances or ()))


def _refuse_if_used(change: PartitionChange, processes: Sequence[GpuProcess]) -> None:
    if processes:
        users = [GpuUser(name=f"process {each.pid}", pid=each.pid, cgroups=each.cgroups) for each in processes]
        raise ChangeRefused(change, "IN_USE", users)
