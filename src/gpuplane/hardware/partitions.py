"""A described GPU is partitioned by the rules of a real one: what can be created where, and what a look shows then.

Pure functions of a `Gpu`. A GPU instance's id is its place in a tree (0 is the whole GPU, 1 and 2 are halves, 3 to 6
quarters, 7 to 14 eighths); the UUID of a MIG device follows from its GPU's and both instances' ids, so the same place
has the same UUID again (open-gpu-kernel-modules, nvGenerateSmcUuid). The minor numbers of its two nodes follow from the
GPU's minor and the ids, too (/proc/driver/nvidia-caps/mig-minors).
"""

import uuid
from collections.abc import Mapping, Sequence

from gpuplane.core.partitions.cards import profiles_of
from gpuplane.core.partitions.layouts import fits, memory_slices
from gpuplane.core.partitions.names import find_profile, profile_name
from gpuplane.hardware.driver.changes import CALLS, PROBLEMS
from gpuplane.hardware.driver.errors import explain
from gpuplane.model.machine import DeviceNodeStat, Gpu, GpuProcess, Mig, MigAttributes, MigDevice
from gpuplane.model.partitions import (
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
from gpuplane.model.text import Text

HOPPER = (9, 0)
"""The compute capability from which on a change of the MIG mode needs no reset."""
MULTIPROCESSORS = {8: 14, 9: 16, 10: 18}
"""Major number of the compute capability → multiprocessors of one compute slice."""
NAMESPACE = uuid.UUID("6f1d5bcb-2d0e-4a43-9f6b-0b6a4e6f5a11")
FIRST_CAP, CAPS_OF_GPU, CAPS_OF_INSTANCE = 3, 135, 9
"""Minor numbers: the first of an instance, those of each GPU, those of each GPU instance (itself and eight within)."""

FUNCTIONS: Mapping[type[PartitionChange], str] = {**CALLS, ResetGpu: "nvidia-smi"}
"""The call by which each change is made, and by which a machine file names it to have it fail."""


class ChangeRefused(Exception):
    """A change that the driver refuses, by NVML's error."""

    def __init__(self, change: PartitionChange, error: str, users: Sequence[GpuUser] = ()) -> None:
        self.problem: ChangeProblem = PROBLEMS.get(error, "failed")
        self.failure: Text = explain(FUNCTIONS[type(change)], error)
        self.users = tuple(users)
        super().__init__(self.failure)


def with_partitions(gpu: Gpu) -> Gpu:
    """A GPU of a machine file with what its driver would tell of its profiles and instances."""
    mig, profiles = gpu.mig, profiles_of(gpu)
    if mig is None:
        return gpu
    instances, capability = mig.instances, _capability(gpu)
    if instances is None:
        instances = () if not mig.enabled else _instances(mig, profiles) if profiles else None
    needs_reset = mig.needs_reset
    if needs_reset is None and capability:
        needs_reset = capability < HOPPER
    return gpu.but(mig=mig.but(profiles=profiles, instances=instances, needs_reset=needs_reset))


def make_change(gpu: Gpu, change: PartitionChange, processes: Sequence[GpuProcess]) -> Gpu:
    """The GPU after a change. `processes`: those that compute on it. Raises ChangeRefused."""
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
            return gpu.but(mig=_with_gpu_instance(mig, change, profile, start))
        case DestroyGpuInstance(id, profile, start):
            instance = _instance(mig, change, profile, start)
            if instance.id != id:
                raise ChangeRefused(change, "NOT_FOUND")
            _refuse_if_used(change, [each for each in processes if each.gpu_instance == id])
            if instance.compute_instances:
                raise ChangeRefused(change, "IN_USE")
            return gpu.but(mig=mig.but(instances=tuple(each for each in mig.instances if each is not instance)))
        case CreateComputeInstance(profile, start, slices):
            return gpu.but(mig=_with_compute_instance(gpu, mig, change, _instance(mig, change, profile, start), slices))
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


def instance_id(size: int, start: int, whole: int) -> int:
    """The id of the GPU instance on these of so many memory slices."""
    return whole // size - 1 + start // size


def _place(id: int, whole: int) -> tuple[int, int]:
    """(size, start) of the GPU instance of this id."""
    level = 1 << (id + 1).bit_length() - 1
    size = whole // level
    return size, (id + 1 - level) * size


def _instances(mig: Mig, profiles: tuple[GpuInstanceProfile, ...]) -> tuple[GpuInstance, ...] | None:
    """The GPU instances in which the described devices are; None where their ids are no places for them."""
    found: dict[int, GpuInstance] = {}
    whole = memory_slices(profiles)
    for device in mig.devices:
        try:
            profile, slices = find_profile(device.profile, profiles)
        except ValueError:
            return None
        size, start = _place(device.gpu_instance, whole)
        new = GpuInstance(id=device.gpu_instance, profile=profile.id, start=start, size=size)
        instance = found.setdefault(device.gpu_instance, new)
        if size != profile.size or instance.profile != profile.id:
            return None
        part = ComputeInstance(id=device.compute_instance, slices=slices)
        found[device.gpu_instance] = instance.but(compute_instances=(*instance.compute_instances, part))
    instances = tuple(found[id] for id in sorted(found))
    taken = [slice for each in instances for slice in range(each.start, each.start + each.size)]
    return instances if len(taken) == len(set(taken)) else None


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


def _with_gpu_instance(mig: Mig, change: CreateGpuInstance, profile: int, start: int) -> Mig:
    instances = mig.instances or ()
    known = next((each for each in mig.profiles if each.id == profile), None)
    if known is None or start not in known.starts:
        raise ChangeRefused(change, "INVALID_ARGUMENT")
    places = [each.placement for each in instances]
    if (profile, start) in places:
        return mig
    if not fits(mig.profiles, [*places, (profile, start)]):
        raise ChangeRefused(change, "INSUFFICIENT_RESOURCES")
    id = instance_id(known.size, start, memory_slices(mig.profiles))
    new = GpuInstance(id=id, profile=profile, start=start, size=known.size)
    return mig.but(instances=tuple(sorted((*instances, new), key=lambda each: each.id)))


def _with_compute_instance(
    gpu: Gpu, mig: Mig, change: CreateComputeInstance, instance: GpuInstance, slices: int
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
    return _replaced(mig, grown).but(devices=(*mig.devices, _device(gpu, mig, profile, instance, id, slices)))


def _device(gpu: Gpu, mig: Mig, profile: GpuInstanceProfile, instance: GpuInstance, id: int, slices: int) -> MigDevice:
    slot = next(number for number in range(64) if all(each.mig_index != number for each in mig.devices))
    nodes: tuple[str, ...] = ()
    if gpu.minor is not None:
        first = FIRST_CAP + CAPS_OF_GPU * gpu.minor + CAPS_OF_INSTANCE * instance.id
        nodes = tuple(f"/dev/nvidia-caps/nvidia-cap{number}" for number in (first, first + 1 + id))
    capability = _capability(gpu)
    return MigDevice(
        uuid=f"MIG-{uuid.uuid5(NAMESPACE, f'{gpu.uuid}/{instance.id}/{id}')}",
        profile=profile_name(profile, slices),
        gpu_instance=instance.id,
        compute_instance=id,
        mig_index=slot,
        memory_mib=profile.memory_mib,
        device_nodes=nodes,
        attributes=MigAttributes(
            multiprocessors=MULTIPROCESSORS.get(capability[0] if capability else 0, 16) * slices,
            gpu_slices=profile.slices,
            compute_slices=slices,
            copy_engines=profile.slices,
        ),
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
