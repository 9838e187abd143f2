"""What the admin asked for.

`Settings` is NVIDIA's v1 file after flags, environment and defaults were laid over it; the meaning and the default
of every field are those of NVIDIA's device plugin, so that what works there works here.
"""

from collections.abc import Mapping
from typing import Literal

from gpuplane.base.text import Text
from gpuplane.base.value import Value
from gpuplane.node.model.health import FaultOverride
from gpuplane.node.model.partitions import MigConfigs
from gpuplane.node.model.telemetry import DcgmCounter

MigStrategy = Literal["none", "single", "mixed"]
ListStrategy = Literal["auto", "envvar", "volume-mounts", "cdi-annotations", "cdi-cri"]
CdiHook = Literal["auto", "nvidia", "none"]
DeviceIdStrategy = Literal["uuid", "index"]
AllocationPolicy = Literal["distributed", "packed", "topology", "numa"]
ReplicationStrategy = Literal["time-slicing", "mps"]
TimeSlice = Literal["default", "short", "medium", "long"]
ComputeModePolicy = Literal["exclusive", "leave"]
MemoryUnit = Literal["MiB", "GiB"]
LabelTarget = Literal["none", "node", "file", "node-feature"]
HostnameLabel = Literal["Hostname", "hostname"]


class NamingRule(Value):
    """Devices whose model (or MIG profile) matches `pattern` are offered as `name`. `*` matches any run."""

    pattern: str
    name: str


class ReplicatedResource(Value):
    """One entry of `sharing.timeSlicing.resources` or `sharing.mps.resources`: each chosen device of the resource
    `name` is advertised as `replicas` ids.
    """

    name: str
    replicas: int
    rename: str = ""
    devices: tuple[str, ...] | int | None = None  # None: all; a count; or indices and UUIDs
    model: str = ""  # a pattern that the GPU's model has to match; "" for any
    distinct_gpus: bool = False  # a request for n shares gets n GPUs, or is refused
    time_slice: TimeSlice | None = None  # None: left as it is


class MemorySharedResource(Value):
    """One entry of `sharing.memory.resources`: an id of `rename` stands for `share_mib` of a chosen device's memory.

    A remainder smaller than one share is not offered. A container's ids are all of one device.
    """

    name: str
    rename: str
    share_mib: int
    devices: tuple[str, ...] | int | None = None
    model: str = ""


class MpsDaemonSettings(Value):
    """How MPS daemons are set up."""

    compute_mode: ComputeModePolicy = "exclusive"  # of whole GPUs; a MIG device's is always left
    multi_user: bool = False
    active_thread_percentage: int | None = None  # None: an equal part for each replica


class Sharing(Value):
    """Which resources are shared, how, and whether a request for more than one share is refused.

    A device goes to the first entry that selects it: those of `resources` come before those of `memory`.
    """

    replicated_resources: tuple[ReplicatedResource, ...] = ()
    fail_requests_greater_than_one: bool = False
    strategy: ReplicationStrategy = "time-slicing"  # of `resources`
    memory_resources: tuple[MemorySharedResource, ...] = ()
    memory_unit: MemoryUnit = "GiB"  # in which amounts of memory are written for people and containers
    mps_limits_memory: bool = False  # an MPS daemon keeps each client within its container's share
    mps: MpsDaemonSettings = MpsDaemonSettings()


class MetricsSettings(Value):
    """What is measured, and how it is shown.

    `dcgm_names`: whether there are series of DCGM's names; off while a dcgm-exporter has them, so that no sum doubles.
    `hostname_label`: the label with the node's name; dcgm-exporter wrote the first until 4.8.2, and the second since.
    `clear_xids`: whether DCGM_FI_DEV_XID_ERRORS is 0 again when the XID has ended; else it is the last XID for ever.
    `watch_pods`: whether the API server is asked about the pods of this node. `pod_labels`: which of their labels are
    shown on series; `*` matches any run of characters.
    """

    dcgm_names: bool = True
    hostname_label: HostnameLabel = "Hostname"
    clear_xids: bool = False
    interval: float = 1.0  # seconds between two samples
    slow_interval: float = 5.0  # seconds between two readings of what takes the driver long
    watch_pods: bool = False
    pod_labels: tuple[str, ...] = ()


class NodeSettings(Value):
    """What the agent writes about its node for others: on the Node object, or for node-feature-discovery."""

    labels: LabelTarget = "none"  # where feature labels go
    annotation: bool = False  # of the Node: gpuplane.io/gpus
    startup_taint: str = ""  # the key of the taint that is lifted when the devices are served; "" for none
    features_file: str = "/etc/kubernetes/node-feature-discovery/features.d/gfd"  # as the agent sees it


class PartitionSettings(Value):
    """Who may request MIG layouts, and which there are by name.

    `config_file`: path of mig-parted's file; "" for generated layouts. `follow_label`: the label nvidia.com/mig.config
    of our Node requests one.
    """

    config_file: str = ""
    follow_label: bool = False


TaintEffect = Literal["None", "NoSchedule", "NoExecute"]
"""Of a device taint: it informs, it keeps new pods away, or it evicts those that use the device (KEP-5055)."""


class DraSettings(Value):
    """Dynamic Resource Allocation. `driver`: the name under which kubelet and the scheduler know ours.

    `unhealthy`, `degraded`, `drained`: the effect of the taint of a device in that state. `device_metadata`: whether
    containers get files that describe their devices (KEP-5304).
    """

    enabled: bool = False
    driver: str = "gpu.nvidia.com"
    unhealthy: TaintEffect = "NoSchedule"
    degraded: TaintEffect = "None"
    drained: TaintEffect = "NoSchedule"
    device_metadata: bool = False


class Settings(Value):
    """One complete configuration."""

    mig_strategy: MigStrategy = "none"
    device_list_strategy: tuple[ListStrategy, ...] = ("auto",)  # `auto` stands alone; see core/containers/strategy.py
    device_id_strategy: DeviceIdStrategy = "uuid"
    pass_device_specs: bool = False
    stand_ins: bool = False  # containers get /dev/null by the name of each device node; nothing of the driver
    driver_root: str = "/"  # paths on the host
    dev_root: str = "/"
    gdrcopy: bool = False
    gds: bool = False
    mofed: bool = False
    imex_channels: tuple[int, ...] = ()
    imex_required: bool = False
    cdi_annotation_prefix: str = "cdi.k8s.io/"
    cdi_hook: CdiHook = "auto"  # ours where it is installed, else none; NVIDIA's, at `cdi_hook_path`; or none
    cdi_hook_path: str = "/usr/bin/nvidia-ctk"  # NVIDIA's, on the host; or their nvidia-cdi-hook
    cdi_disabled_hooks: tuple[str, ...] = ()  # of NVIDIA's names; `all`
    cdi_feature_flags: tuple[str, ...] = ()  # NVIDIA's feature flags
    sharing_policy: AllocationPolicy = "distributed"
    mps_root: str = "/run/nvidia/mps"  # on the host
    whole_mig_gpus: bool = False  # under migStrategy none a GPU in MIG mode is offered as a whole one, as NVIDIA's does
    health_checks_disabled: str = ""  # as the admin wrote it
    health_checks_enabled: str = ""
    gpus: tuple[NamingRule, ...] = ()
    mig: tuple[NamingRule, ...] = ()
    sharing: Sharing = Sharing()
    probe_period: float = 5.0  # seconds: between recovery probes, and for which a fault has to be over before the first
    metrics: MetricsSettings = MetricsSettings()
    node: NodeSettings = NodeSettings()
    partitions: PartitionSettings = PartitionSettings()
    dra: DraSettings = DraSettings()
    faults: Mapping[str, FaultOverride] = {}  # code of the fault catalogue → what is judged otherwise here


class NodeObjectRequests(Value):
    """What our Node object says: what its labels and annotations ask for, and what kubelet tells there.

    `config_name`: a named config, "" for none.
    """

    config_name: str = ""
    container_runtime: str = ""  # the container runtime, "containerd://2.1.4"; "" while that is unknown
    kubelet_version: str = ""  # its version, "v1.36.2"; "" while that is unknown
    driver_release_reason: Text = ""  # why the driver has to be released; "" while it need not
    drain_reasons: Mapping[str, Text] = {}  # a device, as a person names it → why it shall not be given out
    mig_config: str = ""  # the named MIG layout of label nvidia.com/mig.config; "" for none
    has_mig_manager: bool = False  # NVIDIA's MIG manager acts on this node


class Config(Value):
    """The last good settings, under which name they stand, and whether our Node object counts, too.

    `settings` is None before the first good configuration. `is_node_object_read`: the API server has told what our Node
    object requests since the agent started; until then `Ledger.node_requests` is what an agent before us was told.
    `warnings`: what of the file was taken otherwise than it is written, each with file and line.
    `counters`: the DCGM fields that are shown, of a list of the admin's; () for NVIDIA's default list.
    `mig_configs`: the named MIG layouts of the admin's file; None where there is none, {} before it was read.
    """

    settings: Settings | None = None
    name: str = ""
    warnings: tuple[Text, ...] = ()
    counters: tuple[DcgmCounter, ...] = ()
    mig_configs: MigConfigs | None = None
    is_node_object_read: bool = False
