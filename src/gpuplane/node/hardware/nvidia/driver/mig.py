"""MIG: how a GPU is partitioned, with the names and device nodes of its parts."""

from collections.abc import Mapping
from typing import Any

from gpuplane.node.hardware.nvidia.driver.errors import UNKNOWN_PROFILE_FAULT
from gpuplane.node.hardware.nvidia.driver.kernelfiles import KernelFiles
from gpuplane.node.hardware.nvidia.driver.miginstances import (
    PROFILE_COUNT,
    PROFILE_SUFFIXES,
    QueryFailed,
    needs_reset,
    profile_name,
    read_instances,
    read_profiles,
)
from gpuplane.node.hardware.nvidia.driver.nvml import Subject
from gpuplane.node.model.machine import Fault, Mig, MigAttributes, MigDevice
from gpuplane.node.model.partitions import GpuInstance

MIB = 1 << 20
INSTANCE_REFRESH_OBSERVATIONS = 60
"""Looks, after which the instances of a GPU are asked for again, although its MIG devices are the same."""
DescriptionKey = tuple[
    object, ...
]  # what a description depends on: the GPU's memory and minor number, slots with their UUIDs


class MigObserver:
    """MIG devices of all GPUs. They are described when they appear, and in thorough looks; others find whether they are
    the same. By their UUIDs they may be, and yet be of another profile: the driver makes a UUID of the GPU's and of the
    instances' numbers alone (open-gpu-kernel-modules, nvGenerateSmcUuid)."""

    def __init__(self, files: KernelFiles) -> None:
        self._files = files
        self._known: dict[str, tuple[DescriptionKey, tuple[MigDevice, ...]]] = {}
        self._cards: dict[tuple[str, bool], Mig] = {}  # UUID and mode → what of the card does not change
        self._there: dict[str, tuple[GpuInstance, ...] | None] = {}
        self._ages: dict[str, int] = {}  # UUID → looks since its instances were asked for
        self.found: dict[str, Mapping[str, Any]] = {}
        """UUID of a GPU → the handle of each MIG device by its UUID, as of the last look."""

    def observe(self, subject: Subject, total: int, thorough: bool) -> Mig | None:
        """A GPU's partitioning; None where it has none, or the driver does not tell all of it.

        `total` is the GPU's memory in bytes; 0 where it is not told, and then what is known keeps its names.
        """
        self.found.pop(subject.gpu.uuid, None)
        mode = subject.ask(None, "nvmlDeviceGetMigMode", subject.handle)
        if mode is None:
            return None
        enabled, pending = mode[0] == 1, mode[1] == 1
        card = self._card(subject, total, enabled)
        mig = card.but(enabled=enabled, pending=pending if pending != enabled else None)
        if not enabled:
            return mig.but(instances=())
        found = subject.whole(None, self._find)
        if found is None:
            return None
        self.found[subject.gpu.uuid] = {uuid: handle for _, uuid, handle in found}
        key = (total, subject.gpu.minor, *((slot, uuid) for slot, uuid, _ in found))
        known, devices = self._known.get(subject.gpu.uuid, ((), ()))
        same = key == known or (not total and key[1:] == known[1:])
        if not same or (thorough and total) or any(device.faults for device in devices):
            before, devices = devices, self._describe(subject, total, found)
            same = same and devices == before
            self._known[subject.gpu.uuid] = key, devices
        return mig.but(devices=devices, instances=self._instances(subject, card, is_same=same))

    def forget_instances(self, uuid: str) -> None:
        """Have the instances of a GPU asked for at the next look: they were changed."""
        self._ages.pop(uuid, None)

    def _card(self, subject: Subject, total: int, enabled: bool) -> Mig:
        """What a GPU can be partitioned into, and whether its mode needs a reset: as long as its mode is the same."""
        uuid = subject.gpu.uuid
        known = self._cards.get((uuid, enabled))
        if known is not None:
            return known
        try:
            profiles = read_profiles(subject, total) if total else ()
        except QueryFailed:
            return self._cards.get((uuid, not enabled), Mig(needs_reset=needs_reset(subject)))
        found = Mig(needs_reset=needs_reset(subject), profiles=profiles)
        if total:
            self._cards[uuid, enabled] = found
        return found

    def _instances(self, subject: Subject, card: Mig, *, is_same: bool) -> tuple[GpuInstance, ...] | None:
        """The instances of a GPU in MIG mode, as they were where the devices are the same, for a while."""
        uuid = subject.gpu.uuid
        age = self._ages.get(uuid, INSTANCE_REFRESH_OBSERVATIONS) + 1
        if not card.profiles:
            self._ages.pop(uuid, None)
            return None
        if age >= INSTANCE_REFRESH_OBSERVATIONS or not is_same:
            try:
                self._there[uuid] = read_instances(subject, card.profiles)
                self._ages[uuid] = 0
            except QueryFailed:
                self._ages.pop(uuid, None)
                self._there[uuid] = self._there.get(uuid) if is_same else None
        else:
            self._ages[uuid] = age
        return self._there[uuid]

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
        part.faults = part.faults or [UNKNOWN_PROFILE_FAULT]
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
    for profile in range(PROFILE_COUNT):
        function, version = "nvmlDeviceGetGpuInstanceProfileInfo", 1
        info = subject.ask(None, function, subject.handle, profile, version, fine=absent)
        if info is not None:
            suffixes[info.id] = PROFILE_SUFFIXES.get(profile, "")
    return suffixes


def _with_nodes(device: MigDevice, minor: int, minors: Mapping[str, int]) -> MigDevice:
    """A MIG device of GPU `minor` with its two capability nodes; a fault for those that the kernel does not list."""
    instance = f"gpu{minor}/gi{device.gpu_instance}"
    wanted = (f"{instance}/access", f"{instance}/ci{device.compute_instance}/access")
    nodes = tuple(f"/dev/nvidia-caps/nvidia-cap{minors[each]}" for each in wanted if each in minors)
    missing = [each for each in wanted if each not in minors]
    message = f"/proc/driver/nvidia-caps/mig-minors has no line for {' and '.join(missing)}"
    return device.but(device_nodes=nodes, faults=(Fault(code="node-missing", message=message),) if missing else ())
