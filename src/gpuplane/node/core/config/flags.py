"""Flags and environment variables, as one table: the agent's parser, the precedence and the documentation read it.

They are those of NVIDIA's device plugin (k8s-device-plugin 0.20, cmd/nvidia-device-plugin/main.go) and of its
config-manager, where we do its job; names, order of the environment variables and defaults are NVIDIA's. A flag with a
`settings_field` has priority over the configuration file. A flag without one belongs to the process, and is read by
`flagvalues.flag_text_or_default`; or it is accepted and has no effect, and its help says so.
"""

from typing import Literal, get_args

from gpuplane.base.value import Value
from gpuplane.node.model.config import (
    AllocationPolicy,
    CdiHook,
    DeviceIdStrategy,
    LabelTarget,
    ListStrategy,
    MigStrategy,
)

ValueKind = Literal[
    "text", "path", "socket", "label", "taint", "driver", "prefix", "switch", "choice", "choices", "numbers"
]


class Flag(Value):
    """One flag: its names on the command line, in the environment and in the file, and what it does."""

    names: tuple[str, ...]  # without dashes; () where only the environment or the file can set it
    environment_variables: tuple[str, ...]  # the first one that is set counts
    file_key: str  # "flags.migStrategy"; "" for none
    settings_field: str  # of Settings, "node.labels" for a field of `Settings.node`; "" for none
    value_kind: ValueKind
    choices: tuple[str, ...]  # empty: any
    default: str  # as one would write it
    help: str

    @property
    def option_or_variable_or_key(self) -> str:
        """The name of the flag in the program: of the option, else of the variable, else of the key."""
        return (*self.names, *self.environment_variables, self.file_key)[0]

    @property
    def has_no_effect(self) -> bool:
        """Whether the flag is accepted and has no effect; its help then says why."""
        return self.help.startswith("no effect")


def _flag(
    names: str, environment: str, key: str, setting: str, kind: ValueKind, default: str, help: str, choices: object = ()
) -> Flag:
    chosen = choices if isinstance(choices, tuple) else get_args(choices)
    return Flag(tuple(names.split()), tuple(environment.split()), key, setting, kind, chosen, default, help)


CDI_HOOK_NAMES = (
    "all",
    "create-symlinks",
    "create-soname-symlinks",
    "enable-cuda-compat",
    "update-ldcache",
    "disable-device-node-modification",
    "update-application-profile",
    "chmod",
)
"""Names of CDI hooks (nvidia-container-toolkit 1.20, internal/discover/hooks.go), with those of older releases."""

CDI_FEATURE_FLAGS = (
    "enable-explicit-driver-libraries",
    "disable-nvsandboxutils",
    "disable-nvsandbox-utils",
    "enable-coherent-annotations",
    "disable-multiple-csv-devices",
    "no-additional-gids-for-device-nodes",
    "disable-ipc-discoverer",
)
"""nvidia-container-toolkit 1.20, pkg/nvcdi/api.go, with a name of its older releases."""

# fmt: off
FLAGS = (
    _flag("mig-strategy", "MIG_STRATEGY",
         "flags.migStrategy", "mig_strategy", "choice", "none",
         (
             "how MIG devices are offered: none: not at all; single: as nvidia.com/gpu; mixed: as "
             "nvidia.com/mig-PROFILE"
         ), MigStrategy),
    _flag("whole-mig-gpus", "WHOLE_MIG_GPUS",
         "flags.wholeMigGpus", "whole_mig_gpus", "switch", "false",
         "with migStrategy none: offer a GPU in MIG mode as a whole GPU, like NVIDIA's plugin"),
    _flag("device-list-strategy", "DEVICE_LIST_STRATEGY",
         "flags.plugin.deviceListStrategy", "device_list_strategy", "choices", "auto",
         "how the agent passes the devices of a container to the container runtime; you can combine several; auto: "
         "cdi-cri if the runtime supports CDI, otherwise envvar", ListStrategy),
    _flag("device-id-strategy", "DEVICE_ID_STRATEGY",
         "flags.plugin.deviceIDStrategy", "device_id_strategy", "choice", "uuid",
         "what identifies a device to the container runtime: its UUID or its index", DeviceIdStrategy),
    _flag("pass-device-specs", "PASS_DEVICE_SPECS",
         "flags.plugin.passDeviceSpecs", "pass_device_specs", "switch", "false",
         "send the device nodes to kubelet too; its static CPU manager needs them"),
    _flag("stand-ins", "STAND_INS",
         "", "stand_ins", "switch", "false",
         "with a described machine: containers get /dev/null by the name of each device node, and nothing of the "
         "driver; no program can use a GPU; with --node-name its GPUs have UUIDs of that Node's own"),
    _flag("driver-root nvidia-driver-root", "NVIDIA_DRIVER_ROOT",
         "flags.nvidiaDriverRoot", "driver_root", "path", "/",
         "where the driver is installed on the host"),
    _flag("dev-root nvidia-dev-root", "NVIDIA_DEV_ROOT",
         "flags.nvidiaDevRoot", "dev_root", "path", "",
         "the prefix of device nodes on the host; empty: the driver root"),
    _flag("gdrcopy-enabled", "GDRCOPY_ENABLED",
         "flags.gdrcopyEnabled", "gdrcopy", "switch", "false",
         "give containers what GDRCopy needs"),
    _flag("gds-enabled", "GDS_ENABLED",
         "flags.gdsEnabled", "gds", "switch", "false",
         "give containers what GPUDirect Storage needs"),
    _flag("mofed-enabled", "MOFED_ENABLED",
         "flags.mofedEnabled", "mofed", "switch", "false",
         "give containers Mellanox OFED devices"),
    _flag("imex-channel-ids", "IMEX_CHANNEL_IDS",
         "imex.channelIDs", "imex_channels", "numbers", "",
         "IMEX channels for every container that has a GPU", ("0",)),
    _flag("imex-required", "IMEX_REQUIRED",
         "imex.required", "imex_required", "switch", "false",
         "refuse containers while the IMEX channels of --imex-channel-ids are missing"),
    _flag("cdi-annotation-prefix", "CDI_ANNOTATION_PREFIX",
         "flags.plugin.cdiAnnotationPrefix", "cdi_annotation_prefix", "prefix", "cdi.k8s.io/",
         "the beginning of the keys of CDI annotations"),
    _flag("cdi-hook", "CDI_HOOK",
         "flags.plugin.cdiHook", "cdi_hook", "choice", "auto",
         "which program CDI hooks run: gpuplane's if it is installed (auto), NVIDIA's, or none", CdiHook),
    _flag("nvidia-cdi-hook-path nvidia-ctk-path", "NVIDIA_CDI_HOOK_PATH NVIDIA_CTK_PATH",
         "flags.plugin.nvidiaCTKPath", "cdi_hook_path", "path", "/usr/bin/nvidia-ctk",
         "NVIDIA's program for CDI hooks, on the host"),
    _flag("cdi-disable-hooks", "CDI_DISABLE_HOOKS",
         "", "cdi_disabled_hooks", "choices", "",
         "CDI hooks to leave out, by their NVIDIA names", CDI_HOOK_NAMES),
    _flag("cdi-feature-flags", "CDI_FEATURE_FLAGS",
         "", "cdi_feature_flags", "choices", "",
         "NVIDIA's feature flags for CDI specifications", CDI_FEATURE_FLAGS),
    _flag("shared-devices-allocation-policy", "SHARED_DEVICES_ALLOCATION_POLICY",
         "flags.plugin.sharedDevicesAllocationPolicy", "sharing_policy", "choice", "distributed",
         (
             "from which GPUs a container gets shares first: distributed: the least used; packed: the most used; "
             "topology: the best connected; numa: those of one NUMA node"
         ),
         AllocationPolicy),
    _flag("mps-root", "MPS_ROOT",
         "flags.mpsRoot", "mps_root", "path", "/run/nvidia/mps",
         "the directory on the host for the sockets and files of MPS daemons"),
    _flag("feature-labels", "FEATURE_LABELS",
         "node.labels", "node.labels", "choice", "none",
         (
             "where the feature labels of the node are written: none: nowhere; node: on the Node object; file: in "
             "--output-file, for node-feature-discovery; node-feature: in a NodeFeature object"
         ), LabelTarget),
    _flag("output-file", "GFD_OUTPUT_FILE",
         "flags.gfd.outputFile", "node.features_file", "text", "/etc/kubernetes/node-feature-discovery/features.d/gfd",
         "the file for feature labels with --feature-labels file, as the agent sees it"),
    _flag("node-annotation", "NODE_ANNOTATION",
         "node.annotation", "node.annotation", "switch", "false",
         "write the annotation gpuplane.io/gpus of the Node object: its GPUs, and who holds them"),
    _flag("startup-taint", "STARTUP_TAINT",
         "node.startupTaint", "node.startup_taint", "taint", "",
         "the key of a taint that the agent removes from the Node object when the node's devices are served"),
    _flag("mig-config-file", "GPUPLANE_MIG_CONFIG_FILE",
         "mig.configFile", "partitions.config_file", "text", "",
         "a file of named MIG configurations, as NVIDIA's MIG manager takes it; it adds to the generated ones"),
    _flag("follow-mig-label", "FOLLOW_MIG_LABEL",
         "mig.label", "partitions.follow_label", "switch", "false",
         "partition GPUs as the label nvidia.com/mig.config of the Node object requests it"),
    _flag("dra", "GPUPLANE_DRA",
         "dra.enabled", "dra.enabled", "switch", "false",
         "serve claims of Dynamic Resource Allocation, too, and publish GPUs in ResourceSlices"),
    _flag("dra-driver-name", "GPUPLANE_DRA_DRIVER_NAME",
         "dra.driverName", "dra.driver", "driver", "gpu.nvidia.com",
         "the name of the DRA driver"),
    _flag("", "DP_DISABLE_HEALTHCHECKS",
         "", "health_checks_disabled", "text", "",
         "XIDs that leave a GPU healthy: a list of numbers, or all; has priority over health.faults"),
    _flag("", "DP_ENABLE_HEALTHCHECKS",
         "", "health_checks_enabled", "text", "",
         "XIDs that make a GPU unhealthy: a list of numbers, or all; has priority over DP_DISABLE_HEALTHCHECKS"),

    # the process itself
    _flag("config-file config", "CONFIG_FILE",
         "", "", "text", "",
         "a configuration file, or a directory of named configurations"),
    _flag("config-file-srcdir", "CONFIG_FILE_SRCDIR",
         "", "", "text", "",
         "a directory of named configurations; the same as --config-file (config-manager uses this name)"),
    _flag("default-config", "DEFAULT_CONFIG",
         "", "", "text", "",
         "the name of the configuration to use when the node has no configuration label"),
    _flag("fallback-strategies", "FALLBACK_STRATEGIES",
         "", "", "choices", "",
         "what to use when --default-config is not set, in the given order: named: the configuration called "
         "default; single: the only configuration; empty: an empty configuration",
         ("named", "single", "empty")),
    _flag("node-label", "NODE_LABEL",
         "", "", "label", "nvidia.com/device-plugin.config",
         "the label of the Node object that names its configuration"),
    _flag("node-name", "NODE_NAME",
         "", "", "text", "",
         "the name of this Node; without it the agent does not use the API server"),
    _flag("kubeconfig", "KUBECONFIG",
         "", "", "text", "",
         "the kubeconfig file for the API server; empty: the pod's service account"),
    _flag("kubelet-socket", "KUBELET_SOCKET",
         "", "", "socket", "/var/lib/kubelet/device-plugins/kubelet.sock",
         "kubelet's registration socket; empty: the agent does not register"),
    _flag("driver-root-ctr-path container-driver-root", "DRIVER_ROOT_CTR_PATH CONTAINER_DRIVER_ROOT",
         "", "", "text", "/driver-root",
         "the path of the driver root in the agent's container; if you do not set it and the default path does not "
         "exist: the value of --driver-root if this path exists or the agent runs outside a container, otherwise /"),

    # accepted, so that a manifest or file written for NVIDIA's plugin serves
    _flag("fail-on-init-error", "FAIL_ON_INIT_ERROR",
         "flags.failOnInitError", "", "switch", "true",
         "no effect: if there is no driver, the agent does not exit; it waits and reports the missing driver"),
    _flag("device-discovery-strategy", "DEVICE_DISCOVERY_STRATEGY",
         "flags.deviceDiscoveryStrategy", "", "choice", "auto",
         "no effect: --machine says where devices are found", ("auto", "nvml", "tegra", "vfio")),
    _flag("", "",
         "flags.plugin.containerDriverRoot", "", "text", "",
         "no effect in a file: the agent looks for the driver before it reads the file; use --driver-root-ctr-path"),
    _flag("", "",
         "flags.useNodeFeatureAPI", "", "switch", "",
         "no effect: node.labels says where labels are written"),
    _flag("", "",
         "flags.gfd.oneshot", "", "switch", "",
         "no effect: the labels follow the node"),
    _flag("", "",
         "flags.gfd.sleepInterval", "", "text", "",
         "no effect: the labels are written when they change"),
    _flag("", "",
         "flags.gfd.noTimestamp", "", "switch", "",
         "no effect: no timestamp is written"),
    _flag("", "",
         "flags.gfd.machineTypeFile", "", "text", "",
         "no effect: the name of the machine is the one in its firmware"),
)
# fmt: on

FLAG_BY_NAME = {name: flag for flag in FLAGS for name in (*flag.names, *flag.environment_variables)}
