"""Flags and environment variables, as one table: the agent's parser, the precedence and the documentation read it.

They are those of NVIDIA's device plugin (k8s-device-plugin 0.20, cmd/nvidia-device-plugin/main.go) and, where we do its
job, of its config-manager; names, order of the environment variables and defaults are theirs. A row with a `setting`
is laid over the configuration file. A row without one either belongs to the process, and whoever starts the agent asks
for it by `option`; or it is accepted and does nothing. Of whatever does nothing, or not yet, its help says so.
"""

from typing import Literal, get_args

from gpuplane.model.config import AllocationPolicy, CdiHook, IdStrategy, ListStrategy, MigStrategy
from gpuplane.model.value import Value

ValueKind = Literal["text", "path", "socket", "label", "prefix", "switch", "choice", "choices", "numbers"]


class Flag(Value):
    """One row: how it is written on the command line, in the environment and in the file, and what it does."""

    names: tuple[str, ...]  # without dashes; none for what only environment or file can say
    environment_variables: tuple[str, ...]  # the first that is set counts
    file_key: str  # in the file, "" for none
    settings_field: str  # the field of Settings, "" for none
    value_kind: ValueKind
    choices: tuple[str, ...]  # empty: any
    default: str  # as one would write it
    help: str

    @property
    def name(self) -> str:
        """What the row is called."""
        return (*self.names, *self.environment_variables, self.file_key)[0]

    @property
    def has_no_effect(self) -> bool:
        """Whether it is accepted and does nothing; its help then says why."""
        return self.help.startswith("no effect")


def _flag(
    names: str, environment: str, key: str, setting: str, kind: ValueKind, default: str, help: str, choices: object = ()
) -> Flag:
    chosen = choices if isinstance(choices, tuple) else get_args(choices)
    return Flag(tuple(names.split()), tuple(environment.split()), key, setting, kind, chosen, default, help)


HOOK_NAMES = (
    "all",
    "create-symlinks",
    "create-soname-symlinks",
    "enable-cuda-compat",
    "update-ldcache",
    "disable-device-node-modification",
    "update-application-profile",
    "chmod",
)
"""What hooks do (nvidia-container-toolkit 1.20, internal/discover/hooks.go), with names of its older releases."""

FEATURE_FLAGS = (
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
         "how MIG devices are named: not offered, as nvidia.com/gpu, or as nvidia.com/mig-PROFILE", MigStrategy),
    _flag("whole-mig-gpus", "WHOLE_MIG_GPUS",
         "flags.wholeMigGpus", "whole_mig_gpus", "switch", "false",
         "under migStrategy none offer GPUs in MIG mode as whole ones, as NVIDIA's plugin does"),
    _flag("device-list-strategy", "DEVICE_LIST_STRATEGY",
         "flags.plugin.deviceListStrategy", "device_list_strategy", "choices", "auto",
         "how the container runtime learns of a container's devices; several add up; auto: cdi-cri where it knows CDI, "
         "else envvar", ListStrategy),
    _flag("device-id-strategy", "DEVICE_ID_STRATEGY",
         "flags.plugin.deviceIDStrategy", "device_id_strategy", "choice", "uuid",
         "how a device is named to it", IdStrategy),
    _flag("pass-device-specs", "PASS_DEVICE_SPECS",
         "flags.plugin.passDeviceSpecs", "pass_device_specs", "switch", "false",
         "name the device nodes to kubelet too, as its static CPU manager needs it"),
    _flag("driver-root nvidia-driver-root", "NVIDIA_DRIVER_ROOT",
         "flags.nvidiaDriverRoot", "driver_root", "path", "/",
         "where the driver is installed on the host"),
    _flag("dev-root nvidia-dev-root", "NVIDIA_DEV_ROOT",
         "flags.nvidiaDevRoot", "dev_root", "path", "",
         "the prefix of device nodes on the host; empty: the driver root"),
    _flag("gdrcopy-enabled", "GDRCOPY_ENABLED",
         "flags.gdrcopyEnabled", "gdrcopy", "switch", "false",
         "give containers GDRCopy"),
    _flag("gds-enabled", "GDS_ENABLED",
         "flags.gdsEnabled", "gds", "switch", "false",
         "give containers GPUDirect Storage"),
    _flag("mofed-enabled", "MOFED_ENABLED",
         "flags.mofedEnabled", "mofed", "switch", "false",
         "give containers Mellanox OFED devices"),
    _flag("imex-channel-ids", "IMEX_CHANNEL_IDS",
         "imex.channelIDs", "imex_channels", "numbers", "",
         "IMEX channels for every container that has a GPU", ("0",)),
    _flag("imex-required", "IMEX_REQUIRED",
         "imex.required", "imex_required", "switch", "false",
         "refuse containers while these channels are missing"),
    _flag("cdi-annotation-prefix", "CDI_ANNOTATION_PREFIX",
         "flags.plugin.cdiAnnotationPrefix", "cdi_annotation_prefix", "prefix", "cdi.k8s.io/",
         "what the keys of CDI annotations begin with"),
    _flag("cdi-hook", "CDI_HOOK",
         "flags.plugin.cdiHook", "cdi_hook", "choice", "auto",
         "which program a container's start calls: ours where it is installed, NVIDIA's, or none", CdiHook),
    _flag("nvidia-cdi-hook-path nvidia-ctk-path", "NVIDIA_CDI_HOOK_PATH NVIDIA_CTK_PATH",
         "flags.plugin.nvidiaCTKPath", "cdi_hook_path", "path", "/usr/bin/nvidia-ctk",
         "NVIDIA's program for CDI hooks, on the host"),
    _flag("cdi-disable-hooks", "CDI_DISABLE_HOOKS",
         "", "cdi_disabled_hooks", "choices", "",
         "what a container's start shall not do, by NVIDIA's names of it", HOOK_NAMES),
    _flag("cdi-feature-flags", "CDI_FEATURE_FLAGS",
         "", "cdi_features", "choices", "",
         "NVIDIA's feature flags of CDI specifications", FEATURE_FLAGS),
    _flag("shared-devices-allocation-policy", "SHARED_DEVICES_ALLOCATION_POLICY",
         "flags.plugin.sharedDevicesAllocationPolicy", "sharing_policy", "choice", "distributed",
         "shares of which GPUs are advised: the least used, the most used, those that lie best, those of one NUMA node",
         AllocationPolicy),
    _flag("mps-root", "MPS_ROOT",
         "flags.mpsRoot", "mps_root", "path", "/run/nvidia/mps",
         "where on the host MPS daemons meet their clients"),
    _flag("", "DP_DISABLE_HEALTHCHECKS",
         "", "health_checks_disabled", "text", "",
         "XIDs that leave a GPU healthy: a list of numbers, or all; before health.faults"),
    _flag("", "DP_ENABLE_HEALTHCHECKS",
         "", "health_checks_enabled", "text", "",
         "XIDs that make a GPU unhealthy, in spite of that and of the defaults: a list of numbers, or all"),

    # the process itself
    _flag("config-file config", "CONFIG_FILE",
         "", "", "text", "",
         "a configuration file, or a directory of named ones"),
    _flag("config-file-srcdir", "CONFIG_FILE_SRCDIR",
         "", "", "text", "",
         "a directory of named configurations, as config-manager calls it"),
    _flag("default-config", "DEFAULT_CONFIG",
         "", "", "text", "",
         "the named configuration of a node whose label names none"),
    _flag("fallback-strategies", "FALLBACK_STRATEGIES",
         "", "", "choices", "",
         "without a default, in this order: the one called default, the only one, none",
         ("named", "single", "empty")),
    _flag("node-label", "NODE_LABEL",
         "", "", "label", "nvidia.com/device-plugin.config",
         "the label of our Node that names a configuration"),
    _flag("node-name", "NODE_NAME",
         "", "", "text", "",
         "our Node's name; without it no API server is asked"),
    _flag("kubeconfig", "KUBECONFIG",
         "", "", "text", "",
         "how to reach the API server; empty: as a pod does"),
    _flag("kubelet-socket", "KUBELET_SOCKET",
         "", "", "socket", "/var/lib/kubelet/device-plugins/kubelet.sock",
         "kubelet's registration socket; empty: the agent does not register"),
    _flag("driver-root-ctr-path container-driver-root", "DRIVER_ROOT_CTR_PATH CONTAINER_DRIVER_ROOT",
         "", "", "text", "/driver-root",
         "where this process sees the driver root; where neither this says it nor the default is there: --driver-root "
         "itself, if that is seen from here or this is no container, else our own root"),

    # accepted, so that a manifest or file written for NVIDIA's plugin serves
    _flag("fail-on-init-error", "FAIL_ON_INIT_ERROR",
         "flags.failOnInitError", "", "switch", "true",
         "no effect: the agent never ends for want of a driver, it waits for it and says so"),
    _flag("device-discovery-strategy", "DEVICE_DISCOVERY_STRATEGY",
         "flags.deviceDiscoveryStrategy", "", "choice", "auto",
         "no effect: --machine says where devices are looked for", ("auto", "nvml", "tegra", "vfio")),
    _flag("", "",
         "flags.plugin.containerDriverRoot", "", "text", "",
         "no effect: the driver is looked for before the file is read; use --driver-root-ctr-path"),
    _flag("", "",
         "flags.gfd", "", "text", "",
         "no effect yet: no labels are written"),
    _flag("", "",
         "flags.useNodeFeatureAPI", "", "switch", "",
         "no effect yet: no labels are written"),
)
# fmt: on

FLAG_BY_NAME = {name: flag for flag in FLAGS for name in (*flag.names, *flag.environment_variables)}
