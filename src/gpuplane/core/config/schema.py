"""NVIDIA's v1 configuration file, key for key (k8s-device-plugin 0.20, api/config/v1/*.go), and keys of ours.

Every key of theirs is known here, those of GPU Feature Discovery too, because one file serves both. Ours, which they
pass over: `health`, `sharing.memory`, `flags.wholeMigGpus`, `flags.plugin.cdiHook`; of sharing entries `model`,
`distinct` and `timeSlice`; and how MPS daemons are set up. A section or key that is empty counts as left out.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from gpuplane.core.config.durations import Duration
from gpuplane.model.config import AllocationPolicy, CdiHook, ComputeMode, IdStrategy, MemoryUnit, MigStrategy, TimeSlice
from gpuplane.model.health import ClearedBy, Scope, Severity
from gpuplane.model.value import Value

Devices = str | int | tuple[int | str, ...] | None
"""all, a count, or a list of indices and UUIDs"""


SHARED, MEMORY = ".shared", ".mem"
"""What the names of shares without a `rename` end with: where renameByDefault says so, and those of memory always."""


class PluginFlags(Value, rename="camel"):
    """flags.plugin"""

    pass_device_specs: bool | None = None
    device_list_strategy: str | tuple[str, ...] | None = None
    device_id_strategy: IdStrategy | None = msgspec.field(default=None, name="deviceIDStrategy")
    cdi_annotation_prefix: str | None = None
    cdi_hook: CdiHook | None = None
    nvidia_ctk_path: str | None = msgspec.field(default=None, name="nvidiaCTKPath")
    container_driver_root: str | None = None
    shared_devices_allocation_policy: AllocationPolicy | None = None


class DiscoveryFlags(Value, rename="camel"):
    """flags.gfd, of GPU Feature Discovery"""

    oneshot: bool | None = None
    no_timestamp: bool | None = None
    sleep_interval: int | str | None = None  # nanoseconds, or "60s", or "infinite"
    output_file: str | None = None
    machine_type_file: str | None = None


class Flags(Value, rename="camel"):
    """flags"""

    mig_strategy: MigStrategy | None = None
    fail_on_init_error: bool | None = None
    whole_mig_gpus: bool | None = None
    mps_root: str | None = None
    nvidia_driver_root: str | None = None
    nvidia_dev_root: str | None = None
    gdrcopy_enabled: bool | None = None
    gds_enabled: bool | None = None
    mofed_enabled: bool | None = None
    use_node_feature_api: bool | None = msgspec.field(default=None, name="useNodeFeatureAPI")
    device_discovery_strategy: str | None = None
    plugin: PluginFlags | None = None
    gfd: DiscoveryFlags | None = None


class Pattern(Value):
    """One entry of resources.gpus or resources.mig"""

    pattern: str
    name: str


class Resources(Value):
    """resources"""

    gpus: tuple[Pattern, ...] | None = None
    mig: tuple[Pattern, ...] | None = None


class Shares(Value):
    """One entry of sharing.mps.resources"""

    name: str
    replicas: int
    rename: str | None = None
    devices: Devices = None
    model: str | None = None
    distinct: bool | None = None


class Slices(Shares, rename="camel"):
    """One entry of sharing.timeSlicing.resources"""

    time_slice: TimeSlice | None = None


class TimeSlicing(Value, rename="camel"):
    """sharing.timeSlicing"""

    rename_by_default: bool | None = None
    fail_requests_greater_than_one: bool | None = None
    time_slice: TimeSlice | None = None  # of the entries that say nothing of it
    resources: tuple[Slices, ...] | None = None


class Mps(Value, rename="camel"):
    """sharing.mps. Without a word failRequestsGreaterThanOne is true here, and false for time slices."""

    rename_by_default: bool | None = None
    fail_requests_greater_than_one: bool | None = None
    compute_mode: ComputeMode | None = None
    multi_user: bool | None = None
    active_thread_percentage: int | None = None
    resources: tuple[Shares, ...] | None = None


class MemoryEntry(Value):
    """One entry of sharing.memory.resources"""

    name: str
    rename: str | None = None
    grain: int | None = None
    devices: Devices = None
    model: str | None = None


class Memory(Value):
    """sharing.memory"""

    unit: MemoryUnit | None = None
    grain: int | None = None  # in units; of the entries that say nothing of it
    mps: bool | None = None
    resources: tuple[MemoryEntry, ...] | None = None


class Strategies(Value, rename="camel"):
    """sharing"""

    time_slicing: TimeSlicing | None = None
    mps: Mps | None = None
    memory: Memory | None = None


class Imex(Value):
    """imex"""

    channel_ids: tuple[int, ...] | None = msgspec.field(default=None, name="channelIDs")
    required: bool | None = None


class Rule(Value):
    """One entry of health.faults: what is judged otherwise than by the fault catalogue."""

    severity: Severity | None = None
    ends: ClearedBy | None = None
    scope: Scope | None = None
    patience: Duration | None = None
    lasts: Duration | None = None
    advice: str | None = None


class Health(Value, rename="camel"):
    """health"""

    probe_period: Duration | None = None
    faults: Mapping[str, Rule | None] | None = None


class File(Value):
    """The whole file."""

    version: str | None = None
    flags: Flags | None = None
    resources: Resources | None = None
    sharing: Strategies | None = None
    imex: Imex | None = None
    health: Health | None = None


def at(file: File, key: str) -> Any:
    """What stands under a key of the flags' table, "flags.plugin.passDeviceSpecs"; None for nothing."""
    found: Any = file if key else None
    for part in key.split("."):
        if found is None:
            return None
        names = {field.encode_name: field.name for field in msgspec.structs.fields(found)}
        found = getattr(found, names[part])
    return found
