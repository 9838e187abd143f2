"""MIG: how a GPU is partitioned, with the names and device nodes of its parts."""

import math
from collections.abc import Mapping
from typing import Any

from gpuplane.hardware.driver.errors import UNKNOWN_PROFILE
from gpuplane.hardware.driver.files import Files
from gpuplane.hardware.driver.nvml import Subject
from gpuplane.model.machine import Fault, Mig, MigAttributes, MigDevice

MIB = 1 << 20
PROFILES = 18  # NVML_GPU_INSTANCE_PROFILE_COUNT
SUFFIXES = {  # NVML_GPU_INSTANCE_PROFILE_* → what a profile's name says beyond its sizes
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

Key = tuple[object, ...]  # what a description depends on: the GPU's memory and minor number, slots with their UUIDs


def profile_name(gpu_slices: int, compute_slices: int, memory_mib: int, total: int, suffix: str = "") -> str:
    """NVIDIA's name of a profile: "1g.10gb+me"; `total` is the GPU's memory in bytes.

    The gigabytes are no size of the partition: they are its share in eighths of the GPU's memory, rounded up, of the
    GPU's whole gigabytes. go-nvlib names resources so (pkg/nvlib/device/mig_profile.go), and names have to agree.
    """
    eighths = math.ceil(memory_mib * MIB * 8 / total)
    gigabytes = math.floor(eighths / 8 * math.ceil(total / (1 << 30)) + 0.5)
    compute = f"{compute_slices}c." if compute_slices != gpu_slices else ""
    return f"{compute}{gpu_slices}g.{gigabytes}gb{suffix}"


class Partitions:
    """MIG devices of all GPUs. They are described when they appear, and in thorough looks; others find whether they are
    the same. By their UUIDs they may be, and yet be of another profile: the driver makes a UUID of the GPU's and of the
    instances' numbers alone (open-gpu-kernel-modules, nvGenerateSmcUuid)."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._known: dict[str, tuple[Key, tuple[MigDevice, ...]]] = {}
        self.found: dict[str, Mapping[str, Any]] = {}
        """UUID of a GPU → the handle of each MIG device by its UUID, as of the last look."""

    def look(self, subject: Subject, total: int, thorough: bool) -> Mig | None:
        """A GPU's partitioning; None where it has none, or the driver does not tell all of it.

        `total` is the GPU's memory in bytes; 0 where it is not told, and then what is known keeps its names.
        """
        self.found.pop(subject.gpu.uuid, None)
        mode = subject.ask(None, "nvmlDeviceGetMigMode", subject.handle)
        if mode is None:
            return None
        if mode[0] != 1:
            return Mig()
        found = subject.whole(None, self._find)
        if found is None:
            return None
        self.found[subject.gpu.uuid] = {uuid: handle for _, uuid, handle in found}
        key = (total, subject.gpu.minor, *((slot, uuid) for slot, uuid, _ in found))
        known, devices = self._known.get(subject.gpu.uuid, ((), ()))
        same = key == known or (not total and key[1:] == known[1:])
        if not same or (thorough and total) or any(device.faults for device in devices):
            devices = self._describe(subject, total, found)
            self._known[subject.gpu.uuid] = key, devices
        return Mig(enabled=True, devices=devices)

    def handles(self, subject: Subject) -> list[Any]:
        """NVML's handles of a GPU's MIG devices."""
        enabled = subject.gpu.mig_enabled
        return [handle for _, _, handle in self._find(subject)] if enabled else []

    def _find(self, subject: Subject) -> list[tuple[int, str, Any]]:
        """(slot, UUID, handle) of every MIG device. Slots may be empty between others."""
        found = []
        for slot in range(subject.ask(0, "nvmlDeviceGetMaxMigDeviceCount", subject.handle)):
            empty = ("NOT_FOUND", "INVALID_ARGUMENT")
            handle = subject.ask(None, "nvmlDeviceGetMigDeviceHandleByIndex", subject.handle, slot, fine=empty)
            uuid = handle and subject.ask("", "nvmlDeviceGetUUID", handle)
            if uuid:
                found.append((slot, uuid, handle))
        return found

    def _describe(self, subject: Subject, total: int, found: list[tuple[int, str, Any]]) -> tuple[MigDevice, ...]:
        minors, suffixes = self._files.mig_minors(), _suffixes(subject) if found else {}
        devices = []
        for slot, uuid, handle in found:
            part = subject.part(handle)
            device = _device(part, subject.handle, total, suffixes).but(mig_index=slot, uuid=uuid)
            if subject.gpu.minor is not None and not part.faults:
                device = _with_nodes(device, subject.gpu.minor, minors)
            devices.append(device.but(faults=(*part.faults, *device.faults)))
        return tuple(devices)


def _device(part: Subject, gpu: Any, total: int, suffixes: Mapping[int, str]) -> MigDevice:
    attributes = part.ask(None, "nvmlDeviceGetAttributes", part.handle)
    gpu_instance = part.ask(None, "nvmlDeviceGetGpuInstanceId", part.handle)
    compute_instance = part.ask(0, "nvmlDeviceGetComputeInstanceId", part.handle)
    instance = info = None
    if gpu_instance is not None:
        instance = part.ask(None, "nvmlDeviceGetGpuInstanceById", gpu, gpu_instance)
    if instance is not None:
        info = part.ask(None, "nvmlGpuInstanceGetInfo", instance)
    device = MigDevice(uuid="", profile="", gpu_instance=gpu_instance or 0, compute_instance=compute_instance)
    if attributes is None or info is None or info.profileId not in suffixes or not total:
        part.faults = part.faults or [UNKNOWN_PROFILE]
        return device
    memory = attributes.memorySizeMB
    slices = attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount
    name = profile_name(*slices, memory, total, suffixes[info.profileId])
    return device.but(profile=name, memory_mib=memory, attributes=_consists_of(attributes))


def _consists_of(attributes: Any) -> MigAttributes | None:
    """What the driver says; None where it says nothing, for there is none without a multiprocessor."""
    if not attributes.multiprocessorCount:
        return None
    return MigAttributes(
        multiprocessors=attributes.multiprocessorCount,
        gpu_slices=attributes.gpuInstanceSliceCount,
        compute_slices=attributes.computeInstanceSliceCount,
        copy_engines=attributes.sharedCopyEngineCount,
        decoders=attributes.sharedDecoderCount,
        encoders=attributes.sharedEncoderCount,
        jpeg_engines=attributes.sharedJpegCount,
        optical_flow_engines=attributes.sharedOfaCount,
    )


def _suffixes(subject: Subject) -> dict[int, str]:
    """Profile ids as this GPU numbers them → what the profile's name says beyond its sizes."""
    absent = ("INVALID_ARGUMENT",)
    suffixes = {}
    for profile in range(PROFILES):
        function, version = "nvmlDeviceGetGpuInstanceProfileInfo", 1
        info = subject.ask(None, function, subject.handle, profile, version, fine=absent)
        if info is not None:
            suffixes[info.id] = SUFFIXES.get(profile, "")
    return suffixes


def _with_nodes(device: MigDevice, minor: int, minors: Mapping[str, int]) -> MigDevice:
    """A MIG device of GPU `minor` with its two capability nodes; a fault for those that the kernel does not list."""
    instance = f"gpu{minor}/gi{device.gpu_instance}"
    wanted = (f"{instance}/access", f"{instance}/ci{device.compute_instance}/access")
    nodes = tuple(f"/dev/nvidia-caps/nvidia-cap{minors[each]}" for each in wanted if each in minors)
    missing = [each for each in wanted if each not in minors]
    message = f"/proc/driver/nvidia-caps/mig-minors has no line for {' and '.join(missing)}"
    return device.but(device_nodes=nodes, faults=(Fault(code="node-missing", message=message),) if missing else ())
