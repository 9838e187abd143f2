"""What a claim's opaque configuration asks for: NVIDIA's `GpuConfig` of resource.nvidia.com/v1beta1, strictly.

Kinds and keys are those of dra-driver-nvidia-gpu (api/nvidia.com/resource/v1beta1). An entry is for a result whose
request it names, "main" or "main/sub", or for all where it names none. Entries of classes come before those of the
claim, and the last one that fits is in force (pkg dynamic-resource-allocation, ConfigForResult). An entry for another
type of device fits no GPU; one that names the request of a GPU all the same is a mistake.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Literal

import msgspec

from gpuplane.base.strict import InvalidInput, load_yaml_as
from gpuplane.base.text import clip
from gpuplane.base.value import Value
from gpuplane.node.model.claims import AllocatedClaim, AllocatedDevice, OpaqueConfig
from gpuplane.node.model.config import TimeSlice

API_VERSION = "resource.nvidia.com/v1beta1"

KINDS_OF_OTHER_DEVICES = (
    "MigDeviceConfig",
    "VfioDeviceConfig",
    "ComputeDomainChannelConfig",
    "ComputeDomainDaemonConfig",
)

MAX_PARAMETERS = 10 << 10
"""Bytes of an entry (resource.k8s.io/v1, OpaqueParametersMaxLength)."""

MAX_CONFIGS = 64
"""Entries of an allocation: 32 of its classes and 32 of the claim (resource.k8s.io/v1, DeviceConfigMaxSize)."""

MAX_EXPLAINED = 2 << 10
"""Characters of an entry whose mistakes are explained: that takes a second for a megabyte, and tenants write it."""

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


class _ReadConfig(Value):
    """An entry: a configuration of a GPU, one of another kind of device, or what is wrong with it."""

    config: GpuConfig | None = None
    other_kind: str = ""
    problem: str = ""


def gpu_config(claim: AllocatedClaim, device: AllocatedDevice) -> GpuConfig | None:
    """The configuration of a GPU of a claim; None where nothing is configured. Raises InvalidConfig."""
    found = None
    if len(claim.configs) > MAX_CONFIGS:
        raise InvalidConfig(f"allocation.devices.config: has {len(claim.configs)} entries; {MAX_CONFIGS} are read")
    for where, config in _in_order(claim.configs):
        if not applies(config, device):
            continue
        read = _read(config.parameters)
        if read.other_kind:
            if config.requests:
                raise InvalidConfig(
                    f"{where}: {read.other_kind} is not for a full GPU, which request {device.request} got"
                )
            continue
        if read.config is None:
            raise InvalidConfig(_explain(config.parameters, read.problem, where))
        found = read.config
        _require_served(found, where)
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


@lru_cache(128)
def _read(parameters: str) -> _ReadConfig:
    """An entry as it is understood: read once, for all devices of its claim and however often that is asked for."""
    if len(parameters.encode()) > MAX_PARAMETERS:
        return _ReadConfig(problem=f"the parameters have more than {MAX_PARAMETERS} bytes")
    try:
        head = msgspec.json.decode(parameters, type=_Head)
        if head.api_version == API_VERSION and head.kind in KINDS_OF_OTHER_DEVICES:
            return _ReadConfig(other_kind=head.kind)
        return _ReadConfig(config=msgspec.json.decode(parameters, type=GpuConfig))
    except (msgspec.DecodeError, RecursionError) as error:
        return _ReadConfig(problem=clip(str(error)))


def _explain(parameters: str, problem: str, where: str) -> str:
    """What is wrong with an entry: with lines and suggestions if it is as long as people write them."""
    if len(parameters) <= MAX_EXPLAINED:
        try:
            load_yaml_as(parameters.encode(), GpuConfig, where)
        except InvalidInput as invalid:
            return "; ".join(invalid.errors)
    return f"{where}: {problem}"


def _require_served(config: GpuConfig, where: str) -> None:
    """Raises InvalidConfig for what is not served."""
    sharing = config.sharing
    if sharing is not None and sharing.strategy == "MPS":
        raise InvalidConfig(
            f"{where}: sharing by MPS is not served for claims; share the GPU by the configuration file's sharing.mps"
        )
    if sharing is not None and sharing.mps_config is not None:
        raise InvalidConfig(f"{where}: sharing.mpsConfig needs sharing.strategy: MPS")
