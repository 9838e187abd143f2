"""An entry of a claim's opaque configuration: NVIDIA's `GpuConfig` of resource.nvidia.com/v1beta1, strictly.

Two programs read it alike: the node agent when a claim is prepared, and whoever checks claims before they are kept.
Kinds and keys are those of dra-driver-nvidia-gpu (api/nvidia.com/resource/v1beta1).
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Literal

import msgspec

from gpuplane.base.strict import InvalidInput, load_yaml_as
from gpuplane.base.text import clip
from gpuplane.base.value import Value

API_VERSION = "resource.nvidia.com/v1beta1"

KINDS_OF_OTHER_DEVICES = (
    "MigDeviceConfig",
    "VfioDeviceConfig",
    "ComputeDomainChannelConfig",
    "ComputeDomainDaemonConfig",
)

MAX_PARAMETERS = 10 << 10
"""Bytes of an entry (resource.k8s.io/v1, OpaqueParametersMaxLength)."""

MAX_EXPLAINED = 2 << 10
"""Characters of an entry whose mistakes are explained: that takes a second for a megabyte, and tenants write it."""

Interval = Literal["Default", "Short", "Medium", "Long"]


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


class ReadConfig(Value):
    """An entry: a configuration of a GPU, one of another kind of device, or what is wrong with it."""

    config: GpuConfig | None = None
    other_kind: str = ""
    problem: str = ""


class _Head(msgspec.Struct, rename="camel"):
    api_version: str = ""
    kind: str = ""


@lru_cache(128)
def read_config(parameters: str) -> ReadConfig:
    """An entry as it is understood: read once, however often it is asked for."""
    if len(parameters.encode()) > MAX_PARAMETERS:
        return ReadConfig(problem=f"the parameters have more than {MAX_PARAMETERS} bytes")
    try:
        head = msgspec.json.decode(parameters, type=_Head)
        if head.api_version == API_VERSION and head.kind in KINDS_OF_OTHER_DEVICES:
            return ReadConfig(other_kind=head.kind)
        return ReadConfig(config=msgspec.json.decode(parameters, type=GpuConfig))
    except (msgspec.DecodeError, RecursionError) as error:
        return ReadConfig(problem=clip(str(error)))


def config_problem(parameters: str, where: str) -> str:
    """What is wrong with an entry, or not served; "" for nothing. `where`: where it stands, which the text says.

    With lines and suggestions if it is as long as people write them.
    """
    read = read_config(parameters)
    if read.config is not None:
        return _not_served(read.config, where)
    if read.problem and len(parameters) <= MAX_EXPLAINED:
        try:
            load_yaml_as(parameters.encode(), GpuConfig, where)
        except InvalidInput as invalid:
            return "; ".join(invalid.errors)
    return read.problem and f"{where}: {read.problem}"


def _not_served(config: GpuConfig, where: str) -> str:
    sharing = config.sharing
    if sharing is not None and sharing.strategy == "MPS":
        return (
            f"{where}: sharing by MPS is not served for claims; share the GPU by the configuration file's sharing.mps"
        )
    if sharing is not None and sharing.mps_config is not None:
        return f"{where}: sharing.mpsConfig needs sharing.strategy: MPS"
    return ""
