"""What a claim's opaque configuration asks for: NVIDIA's `GpuConfig` of resource.nvidia.com/v1beta1, strictly.

Kinds and keys are those of dra-driver-nvidia-gpu (api/nvidia.com/resource/v1beta1). An entry is for a result whose
request it names, "main" or "main/sub", or for all where it names none. Entries of classes come before those of the
claim, and the last one that fits is in force (pkg dynamic-resource-allocation, ConfigForResult). An entry for another
type of device fits no GPU; one that names the request of a GPU all the same is a mistake.
"""

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from gpuplane.core.strict import InvalidInput, load_yaml_as
from gpuplane.model.claims import AllocatedClaim, AllocatedDevice, OpaqueConfig
from gpuplane.model.config import TimeSlice
from gpuplane.model.value import Value

API_VERSION = "resource.nvidia.com/v1beta1"

KINDS_OF_OTHER_DEVICES = (
    "MigDeviceConfig",
    "VfioDeviceConfig",
    "ComputeDomainChannelConfig",
    "ComputeDomainDaemonConfig",
)

MAX_PARAMETERS = 10 << 10
"""Bytes of an entry (resource.k8s.io/v1, OpaqueParametersMaxLength)."""

Interval = Literal["Default", "Short", "Medium", "Long"]

TIME_SLICE_BY_INTERVAL: Mapping[Interval, TimeSlice] = {
    "Default": "default",
    "Short": "short",
    "Medium": "medium",
    "Long": "long",
}


class TimeSlicingConfig(Value, rename="camel"):
    """sharing.timeSlicingConfig"""

    interval: Interval | None = None


class MpsConfig(Value, rename="camel"):
    """sharing.mpsConfig"""

    default_active_thread_percentage: int | None = None
    default_pinned_device_memory_limit: str | int | None = None
    default_per_device_pinned_memory_limit: Mapping[str, str | int] | None = None


class SharingConfig(Value, rename="camel"):
    """sharing"""

    strategy: Literal["TimeSlicing", "MPS"]
    time_slicing_config: TimeSlicingConfig | None = None
    mps_config: MpsConfig | None = None


class GpuConfig(Value, rename="camel"):
    """How a full GPU is used."""

    api_version: Literal["resource.nvidia.com/v1beta1"]
    kind: Literal["GpuConfig"]
    sharing: SharingConfig | None = None


class InvalidConfig(Exception):
    """A claim's configuration cannot be followed: what is wrong, where, and what to do."""


class _Head(msgspec.Struct, rename="camel"):
    api_version: str = ""
    kind: str = ""


def gpu_config(claim: AllocatedClaim, device: AllocatedDevice) -> GpuConfig | None:
    """The configuration of a GPU of a claim; None where nothing is configured. Raises InvalidConfig."""
    found = None
    for where, config in _in_order(claim.configs):
        if not applies(config, device):
            continue
        head = _decode_head(config, where)
        if head.api_version == API_VERSION and head.kind in KINDS_OF_OTHER_DEVICES:
            if config.requests:
                raise InvalidConfig(f"{where}: {head.kind} is not for a full GPU, which request {device.request} got")
            continue
        found = _decode(config, where)
    return found


def time_slice(config: GpuConfig | None) -> TimeSlice | None:
    """The length of time slices that a configuration asks for; None for none."""
    if config is None or config.sharing is None or config.sharing.time_slicing_config is None:
        return None
    interval = config.sharing.time_slicing_config.interval
    return None if interval is None else TIME_SLICE_BY_INTERVAL[interval]


def applies(config: OpaqueConfig, device: AllocatedDevice) -> bool:
    """Whether an entry is for a result: also where it names the main request of a prioritized list."""
    return not config.requests or device.request in config.requests or device.main_request in config.requests


def _in_order(configs: Iterable[OpaqueConfig]) -> list[tuple[str, OpaqueConfig]]:
    """(where it stands, entry): those of classes first."""
    places = [(f"allocation.devices.config[{i}]", each) for i, each in enumerate(configs)]
    return sorted(places, key=lambda each: not each[1].is_from_class)


def _decode_head(config: OpaqueConfig, where: str) -> _Head:
    if len(config.parameters.encode()) > MAX_PARAMETERS:
        raise InvalidConfig(f"{where}: the parameters have more than {MAX_PARAMETERS} bytes")
    try:
        return msgspec.json.decode(config.parameters, type=_Head)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidConfig(f"{where}: {error}") from None


def _decode(config: OpaqueConfig, where: str) -> GpuConfig:
    try:
        found = load_yaml_as(config.parameters.encode(), GpuConfig, where)
    except InvalidInput as invalid:
        raise InvalidConfig("; ".join(invalid.errors)) from None
    sharing = found.sharing
    if sharing is not None and sharing.strategy == "MPS":
        raise InvalidConfig(
            f"{where}: sharing by MPS is not served for claims; share the GPU by the configuration file's sharing.mps"
        )
    if sharing is not None and sharing.mps_config is not None:
        raise InvalidConfig(f"{where}: sharing.mpsConfig needs sharing.strategy: MPS")
    return found
