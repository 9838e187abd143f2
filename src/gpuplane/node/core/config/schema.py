"""NVIDIA's v1 configuration file, key for key (k8s-device-plugin 0.20, api/config/v1/*.go), and our own keys.

Every key of NVIDIA's is known here, and those of GPU Feature Discovery, because one file serves both. Our own keys,
which NVIDIA's plugin ignores: `health`, `metrics`, `mig`, `dra`, `node`, `sharing.memory`, `flags.wholeMigGpus`,
`flags.plugin.cdiHook`; of sharing entries `model`, `distinct` and `timeSlice`; and the settings of MPS daemons. An
empty section or key counts as absent.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from gpuplane.base.value import Value
from gpuplane.node.core.config.durations import UnparsedDuration
from gpuplane.node.model.config import (
    AllocationPolicy,
    CdiHook,
    ComputeModePolicy,
    DeviceIdStrategy,
    HostnameLabel,
    LabelTarget,
    MemoryUnit,
    MigStrategy,
    TaintEffect,
    TimeSlice,
)
from gpuplane.node.model.health import ClearWhen, Scope, Severity

DeviceSelection = str | int | tuple[int | str, ...] | None
"""all, a count, or a list of indices and UUIDs"""


SHARED_RESOURCE_SUFFIX, MEMORY_RESOURCE_SUFFIX = ".shared", ".mem"
"""Added to the resource names of shares without a `rename`: ".shared" under renameByDefault, ".mem" always."""


class PluginSection(Value, rename="camel"):
    """flags.plugin"""

    pass_device_specs: bool | None = None
    device_list_strategy: str | tuple[str, ...] | None = None
    device_id_strategy: DeviceIdStrategy | None = msgspec.field(default=None, name="deviceIDStrategy")
    cdi_annotation_prefix: str | None = None
    cdi_hook: CdiHook | None = None
    nvidia_ctk_path: str | None = msgspec.field(default=None, name="nvidiaCTKPath")
    container_driver_root: str | None = None
    shared_devices_allocation_policy: AllocationPolicy | None = None


class FeatureDiscoverySection(Value, rename="camel"):
    """flags.gfd, of GPU Feature Discovery"""

    oneshot: bool | None = None
    no_timestamp: bool | None = None
    sleep_interval: int | str | None = None  # nanoseconds, or "60s", or "infinite"
    output_file: str | None = None
    machine_type_file: str | None = None


class FlagsSection(Value, rename="camel"):
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
    plugin: PluginSection | None = None
    gfd: FeatureDiscoverySection | None = None


class NamingPattern(Value):
    """One entry of resources.gpus or resources.mig"""

    pattern: str
    name: str


class ResourcesSection(Value):
    """resources"""

    gpus: tuple[NamingPattern, ...] | None = None
    mig: tuple[NamingPattern, ...] | None = None


class ReplicatedEntry(Value, rename="camel"):
    """One entry of sharing.mps.resources"""

    name: str
    replicas: int
    rename: str | None = None
    devices: DeviceSelection = None
    model: str | None = None
    distinct_gpus: bool | None = msgspec.field(default=None, name="distinctGPUs")


class TimeSlicedEntry(ReplicatedEntry, rename="camel"):
    """One entry of sharing.timeSlicing.resources"""

    time_slice: TimeSlice | None = None


class TimeSlicingSection(Value, rename="camel"):
    """sharing.timeSlicing"""

    rename_by_default: bool | None = None
    fail_requests_greater_than_one: bool | None = None
    time_slice: TimeSlice | None = None  # for entries without it
    resources: tuple[TimeSlicedEntry, ...] | None = None


class MpsSection(Value, rename="camel"):
    """sharing.mps. The default of failRequestsGreaterThanOne is true here, and false for time slices."""

    rename_by_default: bool | None = None
    fail_requests_greater_than_one: bool | None = None
    compute_mode: ComputeModePolicy | None = None
    multi_user: bool | None = None
    active_thread_percentage: int | None = None
    resources: tuple[ReplicatedEntry, ...] | None = None


class MemoryEntry(Value, rename="camel"):
    """One entry of sharing.memory.resources"""

    name: str
    rename: str | None = None
    share_size: int | None = None
    devices: DeviceSelection = None
    model: str | None = None


class MemorySection(Value, rename="camel"):
    """sharing.memory"""

    unit: MemoryUnit | None = None
    share_size: int | None = None  # in units; for entries without it
    enforced_by_mps: bool | None = msgspec.field(default=None, name="enforcedByMPS")
    resources: tuple[MemoryEntry, ...] | None = None


class SharingSection(Value, rename="camel"):
    """sharing"""

    time_slicing: TimeSlicingSection | None = None
    mps: MpsSection | None = None
    memory: MemorySection | None = None


class ImexSection(Value):
    """imex"""

    channel_ids: tuple[int, ...] | None = msgspec.field(default=None, name="channelIDs")
    required: bool | None = None


class FaultOverrideEntry(Value, rename="camel"):
    """One entry of health.faults: what it changes of the fault catalogue's entry."""

    severity: Severity | None = None
    clear_when: ClearWhen | None = None
    scope: Scope | None = None
    grace_period: UnparsedDuration | None = None
    clear_after: UnparsedDuration | None = None
    advice: str | None = None


class HealthSection(Value, rename="camel"):
    """health"""

    probe_period: UnparsedDuration | None = None
    faults: Mapping[str, FaultOverrideEntry | None] | None = None


class MetricsSection(Value, rename="camel"):
    """metrics"""

    dcgm_names: bool | None = None
    hostname_label: HostnameLabel | None = None
    clear_xids: bool | None = None
    interval: UnparsedDuration | None = None
    slow_interval: UnparsedDuration | None = None
    watch_pods: bool | None = None
    pod_labels: tuple[str, ...] | None = None


class NodeSection(Value, rename="camel"):
    """node"""

    labels: LabelTarget | None = None
    annotation: bool | None = None
    startup_taint: str | None = None


class MigSection(Value, rename="camel"):
    """mig"""

    config_file: str | None = None
    label: bool | None = None


class TaintEffectsSection(Value):
    """dra.taintEffects"""

    unhealthy: TaintEffect | None = None
    degraded: TaintEffect | None = None
    drained: TaintEffect | None = None


class DraSection(Value, rename="camel"):
    """dra"""

    enabled: bool | None = None
    driver_name: str | None = None
    taint_effects: TaintEffectsSection | None = None
    device_metadata: bool | None = None


class ConfigFile(Value):
    """The whole file."""

    version: str | None = None
    flags: FlagsSection | None = None
    resources: ResourcesSection | None = None
    sharing: SharingSection | None = None
    imex: ImexSection | None = None
    health: HealthSection | None = None
    metrics: MetricsSection | None = None
    node: NodeSection | None = None
    mig: MigSection | None = None
    dra: DraSection | None = None


def value_of_key(file: ConfigFile, key: str) -> Any:
    """The value of a key such as "flags.plugin.passDeviceSpecs" in a file; None where the file does not set it."""
    found: Any = file if key else None
    for part in key.split("."):
        if found is None:
            return None
        names = {field.encode_name: field.name for field in msgspec.structs.fields(found)}
        found = getattr(found, names[part])
    return found
