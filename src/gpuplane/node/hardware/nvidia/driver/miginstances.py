"""What a GPU can be partitioned into, and the instances that it has, as NVML tells them.

Profiles are asked for once for each GPU and mode, instances when the MIG devices are others, after a change of ours,
and now and then: an instance that has no compute instance is no device. A driver that does not tell is no fault.
"""

import math
from collections.abc import Iterator
from typing import Any

import pynvml  # type: ignore[import-untyped]

from gpuplane.node.hardware.nvidia.driver.nvml import Subject
from gpuplane.node.model.partitions import ComputeInstance, ComputeInstanceProfile, GpuInstance, GpuInstanceProfile

PROFILE_COUNT = 18  # NVML_GPU_INSTANCE_PROFILE_COUNT
PROFILE_SUFFIXES = {  # NVML_GPU_INSTANCE_PROFILE_* → what a profile's name says beyond its sizes
    7: "+me",  # 1_SLICE_REV1
    8: "+me",  # 2_SLICE_REV1
    10: "+gfx",
    11: "+gfx",
    12: "+gfx",
    13: "-me",
    14: "-me",
    15: "+me.all",
    16: "+me.all",
    17: "+gfx",
}
MIB = 1 << 20
COMPUTE_PROFILES = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4, 8: 5, 6: 6}
"""Compute slices → NVML_COMPUTE_INSTANCE_PROFILE_*."""
LISTED_COMPUTE_SIZES = (1, 2, 3, 4, 7)
"""Compute slices of the compute instances that NVIDIA's guide lists."""
UNLISTED_COMPUTE_SIZE = (4, 3)
"""A GPU instance of 4 slices has none of 3, as `nvidia-smi mig -lcip` shows."""
NO_ANSWER_ERRORS = ("INVALID_ARGUMENT", "NOT_FOUND", "NO_PERMISSION")
"""Errors that are answers: there is no such thing, or the driver does not tell it to us (placements and instances are
for the privileged alone)."""
SHARED_ENGINES = 0  # NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
MAX_INSTANCES = 64  # placements, instances
RESETLESS_MIG_FIELD = 184  # NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED
HOPPER_COMPUTE_CAPABILITY = (9, 0)


def profile_name(gpu_slices: int, compute_slices: int, memory_mib: int, total: int, suffix: str = "") -> str:
    """NVIDIA's name of a profile: "1g.10gb+me"; `total` is the GPU's memory in bytes.

    The gigabytes are no size of the partition: they are its share in eighths of the GPU's memory, rounded up, of the
    GPU's whole gigabytes. go-nvlib names resources so (pkg/nvlib/device/mig_profile.go), and names have to agree.
    """
    eighths = math.ceil(memory_mib * MIB * 8 / total)
    gigabytes = math.floor(eighths / 8 * math.ceil(total / (1 << 30)) + 0.5)
    compute = f"{compute_slices}c." if compute_slices != gpu_slices else ""
    return f"{compute}{gpu_slices}g.{gigabytes}gb{suffix}"


class QueryFailed(Exception):
    """A query failed that the GPU could have answered: what is known stays, and it is asked again."""


def ask_without_fault(subject: Subject, function: str, *arguments: Any) -> Any:
    """The answer; None where there is none for us. Raises QueryFailed; that is no fault, for other queries show it."""
    before = len(subject.faults)
    answer = subject.ask(None, function, *arguments, fine=NO_ANSWER_ERRORS)
    if len(subject.faults) > before:
        del subject.faults[before:]
        raise QueryFailed(function)
    return answer


def read_profiles(subject: Subject, total: int) -> tuple[GpuInstanceProfile, ...]:
    """What the GPU can be partitioned into. `total`: its memory in bytes. Raises QueryFailed."""
    found = []
    for constant in range(PROFILE_COUNT):
        info = ask_without_fault(subject, "nvmlDeviceGetGpuInstanceProfileInfo", subject.handle, constant, 1)
        if info is None or not info.sliceCount:
            continue
        places = list(_placements(subject, info.id))
        if places:
            found.append(
                GpuInstanceProfile(
                    id=info.id,
                    name=profile_name(
                        info.sliceCount, info.sliceCount, info.memorySizeMB, total, PROFILE_SUFFIXES.get(constant, "")
                    ),
                    slices=info.sliceCount,
                    size=places[0][1],
                    starts=tuple(sorted(start for start, _ in places)),
                    count=info.instanceCount,
                    memory_mib=info.memorySizeMB,
                    compute_profiles=compute_profiles(info.sliceCount),
                )
            )
    return tuple(sorted(found, key=lambda each: (each.slices, each.size)))  # of equal ones in the order of constants


def compute_profiles(slices: int) -> tuple[ComputeInstanceProfile, ...]:
    """The compute instances of a GPU instance of so many slices: the driver tells them only of one that exists."""
    return tuple(
        ComputeInstanceProfile(id=constant, slices=size, count=slices // size)
        for size, constant in COMPUTE_PROFILES.items()
        if size <= slices and size in LISTED_COMPUTE_SIZES and (slices, size) != UNLISTED_COMPUTE_SIZE
    )


def _placements(subject: Subject, profile: int) -> Iterator[tuple[int, int]]:
    """(first memory slice, memory slices) of each placement."""
    places, count = (pynvml.c_nvmlGpuInstancePlacement_t * MAX_INSTANCES)(), pynvml.c_uint(MAX_INSTANCES)
    function = "nvmlDeviceGetGpuInstancePossiblePlacements"
    if ask_without_fault(subject, function, subject.handle, profile, places, pynvml.byref(count)) is not None:
        for place in places[: min(count.value, MAX_INSTANCES)]:
            yield place.start, place.size


def read_instances(subject: Subject, profiles: tuple[GpuInstanceProfile, ...]) -> tuple[GpuInstance, ...] | None:
    """The GPU instances that there are; None where the driver cannot tell them. Raises QueryFailed."""
    found = []
    for profile in profiles:
        handles = gpu_instance_handles(subject, profile.id)
        if handles is None:
            return None
        for handle in handles:
            info = ask_without_fault(subject, "nvmlGpuInstanceGetInfo", handle)
            parts = None if info is None else compute_instances(subject, handle, profile.slices)
            if parts is None:
                return None
            found.append(
                GpuInstance(
                    id=info.id,
                    profile=info.profileId,
                    start=info.placement.start,
                    size=info.placement.size,
                    compute_instances=parts,
                )
            )
    return tuple(sorted(found, key=lambda each: each.id))


def gpu_instance_handles(subject: Subject, profile: int) -> list[Any] | None:
    """NVML's handles of the GPU instances of a profile (its id)."""
    handles, count = (pynvml.c_nvmlGpuInstance_t * MAX_INSTANCES)(), pynvml.c_uint(MAX_INSTANCES)
    answer = ask_without_fault(
        subject, "nvmlDeviceGetGpuInstances", subject.handle, profile, handles, pynvml.byref(count)
    )
    return None if answer is None else list(handles[: min(count.value, MAX_INSTANCES)])


def compute_instances(subject: Subject, handle: Any, slices: int) -> tuple[ComputeInstance, ...] | None:
    """The compute instances of a GPU instance of so many slices; None where the driver does not tell them."""
    found, is_told = [], False
    for size, constant in COMPUTE_PROFILES.items():
        if size > slices:
            continue
        version, function = 1, "nvmlGpuInstanceGetComputeInstanceProfileInfo"
        info = ask_without_fault(subject, function, handle, constant, SHARED_ENGINES, version)
        if info is None:
            continue
        is_told = True
        parts, count = (pynvml.c_nvmlComputeInstance_t * MAX_INSTANCES)(), pynvml.c_uint(MAX_INSTANCES)
        function = "nvmlGpuInstanceGetComputeInstances"
        if ask_without_fault(subject, function, handle, info.id, parts, pynvml.byref(count)) is None:
            return None
        for part in parts[: min(count.value, MAX_INSTANCES)]:
            told = ask_without_fault(subject, "nvmlComputeInstanceGetInfo", part)
            if told is None:
                return None
            found.append(ComputeInstance(id=told.id, slices=size))
    return tuple(sorted(found, key=lambda each: each.id)) if is_told else None


def needs_reset(subject: Subject) -> bool | None:
    """Whether a change of the MIG mode needs a reset of the GPU: the driver says so, or its generation does."""
    try:
        values = ask_without_fault(subject, "nvmlDeviceGetFieldValues", subject.handle, [RESETLESS_MIG_FIELD])
    except QueryFailed:
        values = None
    if values is not None and values[0].nvmlReturn == 0:
        return not values[0].value.uiVal
    capability = tuple(int(each) for each in subject.gpu.compute_capability.split(".") if each.isdecimal())
    return capability < HOPPER_COMPUTE_CAPABILITY if capability else None
