"""Flags, environment, file and defaults become settings: precedence and meaning, as tables."""

import re
from argparse import ArgumentParser
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.base.strict import InvalidInput
from gpuplane.node.core.config.flags import FLAG_BY_NAME, FLAGS
from gpuplane.node.core.config.flagtable import flags_table
from gpuplane.node.core.config.flagvalues import (
    add_arguments,
    flag_text_or_default,
    flag_texts_by_name,
    parse_flag_value,
    use_two_dashes,
)
from gpuplane.node.core.config.resolve import resolve_settings, resolve_with_sources
from gpuplane.node.core.config.schema import ConfigFile, value_of_key
from gpuplane.node.model.config import (
    MemorySharedResource,
    MpsDaemonSettings,
    NamingRule,
    NodeSettings,
    PartitionSettings,
    ReplicatedResource,
    Settings,
    Sharing,
)
from gpuplane.node.model.health import FaultOverride
from tests.golden import Golden

DOCUMENT = Path(__file__).parents[4] / "docs/configuration.md"


def config(text: str) -> Settings:
    """The settings of a file alone."""
    return resolve_settings(text.encode(), "c.yaml")


@pytest.mark.parametrize(
    ("flags", "environment", "file", "value", "source"),
    [
        ({}, {}, "", "none", None),
        ({}, {}, "flags: {}", "none", None),
        ({}, {}, "flags: {migStrategy: }", "none", None),
        ({}, {}, "flags: {migStrategy: single}", "single", "c.yaml:1"),
        ({}, {}, "flags:\n  migStrategy: single", "single", "c.yaml:2"),
        ({}, {"MIG_STRATEGY": "mixed"}, "", "mixed", "MIG_STRATEGY"),
        ({}, {"MIG_STRATEGY": "mixed"}, "flags: {migStrategy: single}", "mixed", "MIG_STRATEGY"),
        ({}, {"MIG_STRATEGY": ""}, "flags: {migStrategy: single}", "single", "c.yaml:1"),
        ({}, {"mig_strategy": "mixed"}, "", "none", None),
        ({"mig-strategy": "none"}, {"MIG_STRATEGY": "mixed"}, "flags: {migStrategy: single}", "none", "--mig-strategy"),
        ({"mig-strategy": "single"}, {}, "", "single", "--mig-strategy"),
    ],
)
def test_the_command_line_comes_before_environment_file_and_default(
    flags: dict[str, str], environment: dict[str, str], file: str, value: str, source: str | None
) -> None:
    """Each of the four where the ones before it are silent; and it is known which one spoke."""
    resolved = resolve_with_sources(file.encode(), "c.yaml", flags, environment)

    assert resolved.settings == Settings(mig_strategy=value)  # type: ignore[arg-type]
    assert resolved.sources.get("mig_strategy") == source


@pytest.mark.parametrize(
    ("file", "environment", "changed"),
    [
        ("", {}, {}),
        ("version: v1", {}, {}),
        ('version: ""', {}, {}),
        ("flags: {plugin: {deviceListStrategy: volume-mounts}}", {}, {"device_list_strategy": ("volume-mounts",)}),
        (
            "flags: {plugin: {deviceListStrategy: [envvar, cdi-annotations]}}",
            {},
            {"device_list_strategy": ("envvar", "cdi-annotations")},
        ),
        (
            "flags: {plugin: {deviceListStrategy: 'envvar, cdi-cri'}}",
            {},
            {"device_list_strategy": ("envvar", "cdi-cri")},
        ),
        ("", {"DEVICE_LIST_STRATEGY": "envvar, cdi-cri"}, {"device_list_strategy": ("envvar", "cdi-cri")}),
        ("flags: {plugin: {deviceListStrategy: [envvar, envvar]}}", {}, {"device_list_strategy": ("envvar",)}),
        ("flags: {plugin: {deviceListStrategy: auto}}", {"DEVICE_LIST_STRATEGY": "auto,auto"}, {}),
        ("flags: {plugin: {deviceIDStrategy: index}}", {}, {"device_id_strategy": "index"}),
        ("flags: {plugin: {passDeviceSpecs: true}}", {}, {"pass_device_specs": True}),
        ("flags: {plugin: {passDeviceSpecs: yes}}", {"PASS_DEVICE_SPECS": "F"}, {}),
        ("flags: {plugin: {passDeviceSpecs: true}}", {"PASS_DEVICE_SPECS": ""}, {}),
        ("", {"PASS_DEVICE_SPECS": "1"}, {"pass_device_specs": True}),
        ("", {"GDS_ENABLED": "TRUE", "MOFED_ENABLED": "t"}, {"gds": True, "mofed": True}),
        ("flags: {gdrcopyEnabled: true, gdsEnabled: false}", {}, {"gdrcopy": True}),
        # where the device nodes are follows the driver, unless it is said
        (
            "flags: {nvidiaDriverRoot: /run/nvidia/driver}",
            {},
            {"driver_root": "/run/nvidia/driver", "dev_root": "/run/nvidia/driver"},
        ),
        ("flags: {nvidiaDriverRoot: /d, nvidiaDevRoot: /}", {}, {"driver_root": "/d"}),
        ("flags: {nvidiaDevRoot: /x}", {"NVIDIA_DRIVER_ROOT": "/d"}, {"driver_root": "/d", "dev_root": "/x"}),
        ("flags: {nvidiaDriverRoot: /d}", {"NVIDIA_DRIVER_ROOT": ""}, {}),
        ("imex: {channelIDs: [0], required: true}", {}, {"imex_channels": (0,), "imex_required": True}),
        ("imex: {channelIDs: []}", {}, {}),
        ("imex: {channelIDs: null}", {}, {}),
        ("", {"IMEX_CHANNEL_IDS": "0"}, {"imex_channels": (0,)}),
        ("", {"IMEX_CHANNEL_IDS": ""}, {}),
        ("flags: {plugin: {cdiAnnotationPrefix: x/}}", {}, {"cdi_annotation_prefix": "x/"}),
        ("flags: {plugin: {sharedDevicesAllocationPolicy: packed}}", {}, {"sharing_policy": "packed"}),
        (
            "",
            {"DP_DISABLE_HEALTHCHECKS": "xids,68", "DP_ENABLE_HEALTHCHECKS": "79"},
            {"health_checks_disabled": "xids,68", "health_checks_enabled": "79"},
        ),
        # accepted, for the file serves NVIDIA's plugin and GPU Feature Discovery too
        (
            "flags: {failOnInitError: false, deviceDiscoveryStrategy: vfio, useNodeFeatureAPI: true}",
            {},
            {},
        ),
        ("flags: {mpsRoot: /m}", {}, {"mps_root": "/m"}),
        ("flags: {mpsRoot: /m}", {"MPS_ROOT": ""}, {}),
        ("flags: {wholeMigGpus: true}", {}, {"whole_mig_gpus": True}),
        ("flags: {plugin: {nvidiaCTKPath: /a, containerDriverRoot: /b}}", {}, {"cdi_hook_path": "/a"}),
        (
            "flags: {plugin: {cdiHook: nvidia}}",
            {"NVIDIA_CDI_HOOK_PATH": "/b", "CDI_DISABLE_HOOKS": "all", "CDI_FEATURE_FLAGS": "disable-ipc-discoverer"},
            {
                "cdi_hook": "nvidia",
                "cdi_hook_path": "/b",
                "cdi_disabled_hooks": ("all",),
                "cdi_feature_flags": ("disable-ipc-discoverer",),
            },
        ),
        (
            "flags: {gfd: {oneshot: false, noTimestamp: true, outputFile: f, machineTypeFile: m, sleepInterval: 60s}}",
            {},
            {"node": NodeSettings(features_file="f")},
        ),
        (
            "node: {labels: node, annotation: true, startupTaint: example.com/starting}",
            {},
            {"node": NodeSettings(labels="node", annotation=True, startup_taint="example.com/starting")},
        ),
        (
            "mig: {configFile: /etc/mig/config.yaml, label: true}",
            {},
            {"partitions": PartitionSettings(config_file="/etc/mig/config.yaml", follow_label=True)},
        ),
        (
            "mig: {configFile: /etc/mig/config.yaml}",
            {"GPUPLANE_MIG_CONFIG_FILE": "/m", "FOLLOW_MIG_LABEL": "true"},
            {"partitions": PartitionSettings(config_file="/m", follow_label=True)},
        ),
        (
            "node: {labels: node, annotation: true}",
            {"FEATURE_LABELS": "file", "NODE_ANNOTATION": "", "STARTUP_TAINT": "a/b", "GFD_OUTPUT_FILE": "/f"},
            {"node": NodeSettings(labels="file", startup_taint="a/b", features_file="/f")},
        ),
        ("node: {}", {}, {}),
        ("node:", {}, {}),
        ("flags: {gfd: {sleepInterval: 5}}", {}, {}),
        ("flags: {gfd: {sleepInterval: 1h5m0.5s}}", {}, {}),
        ("flags: {gfd: {sleepInterval: infinite}}", {}, {}),
        ("flags: {gfd: {}}", {}, {}),
        ("flags:\nresources:\nsharing:\nimex:\n", {}, {}),
        ("sharing: {timeSlicing: }", {}, {}),
        ('{"version": "v1", "flags": {"migStrategy": "mixed"}}', {}, {"mig_strategy": "mixed"}),
    ],
)
def test_every_key_means_what_it_means_to_nvidias_plugin(
    file: str, environment: dict[str, str], changed: dict[str, Any]
) -> None:
    """Keys and variables → what differs from the defaults."""
    assert resolve_settings(file.encode(), "c.yaml", {}, environment) == Settings(**changed)


GPU = "nvidia.com/gpu"


@pytest.mark.parametrize(
    ("entry", "replication"),
    [
        ("{name: gpu, replicas: 2}", ReplicatedResource(GPU, 2)),
        ("{name: nvidia.com/gpu, replicas: 2, devices: all}", ReplicatedResource(GPU, 2)),
        ("{name: gpu, replicas: 1}", ReplicatedResource(GPU, 1)),
        ("{name: gpu, replicas: 2, rename: gpu-shared}", ReplicatedResource(GPU, 2, "nvidia.com/gpu-shared")),
        ("{name: gpu, replicas: 2, devices: 2}", ReplicatedResource(GPU, 2, devices=2)),
        ("{name: gpu, replicas: 2, devices: [0]}", ReplicatedResource(GPU, 2, devices=("0",))),
        ('{name: gpu, replicas: 2, devices: ["0"]}', ReplicatedResource(GPU, 2, devices=("0",))),
        ('{name: gpu, replicas: 2, devices: ["0:0"]}', ReplicatedResource(GPU, 2, devices=("0:0",))),
        ("{name: gpu, replicas: 2, devices: [0:1]}", ReplicatedResource(GPU, 2, devices=("0:1",))),
        (
            "{name: gpu, replicas: 2, devices: [GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c]}",
            ReplicatedResource(GPU, 2, devices=("GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c",)),
        ),
        (
            "{name: gpu, replicas: 2, devices: [MIG-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c]}",
            ReplicatedResource(GPU, 2, devices=("MIG-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c",)),
        ),
        (
            '{name: gpu, replicas: 2, devices: ["MIG-GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c/0/0"]}',
            ReplicatedResource(GPU, 2, devices=("MIG-GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c/0/0",)),
        ),
        (
            '{name: gpu, replicas: 2, devices: [0, "0:0", "GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c"]}',
            ReplicatedResource(GPU, 2, devices=("0", "0:0", "GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c")),
        ),
        ("{name: mig-1g.5gb, replicas: 8}", ReplicatedResource("nvidia.com/mig-1g.5gb", 8)),
        ("{name: gpu, replicas: 2, model: '*A100*'}", ReplicatedResource(GPU, 2, model="*A100*")),
        ("{name: gpu, replicas: 2, distinctGPUs: true}", ReplicatedResource(GPU, 2, distinct_gpus=True)),
        ("{name: gpu, replicas: 2, timeSlice: short}", ReplicatedResource(GPU, 2, time_slice="short")),
    ],
)
def test_the_grammar_of_a_sharing_entry(entry: str, replication: ReplicatedResource) -> None:
    """Names get their prefix, indices become texts, all is the default."""
    assert config(f"sharing: {{timeSlicing: {{resources: [{entry}]}}}}").sharing == Sharing((replication,))


def test_rename_by_default_gives_way_to_an_explicit_name() -> None:
    """Shares are called .shared unless they are called otherwise; sharing's switch is kept."""
    text = """
sharing:
  timeSlicing:
    renameByDefault: true
    failRequestsGreaterThanOne: true
    resources: [{name: gpu, replicas: 2, devices: 1}, {name: gpu, replicas: 3, rename: slice}]
"""

    assert config(text).sharing == Sharing(
        (ReplicatedResource(GPU, 2, "nvidia.com/gpu.shared", 1), ReplicatedResource(GPU, 3, "nvidia.com/slice")), True
    )


def test_the_time_slice_of_a_section_is_that_of_its_entries() -> None:
    """Unless they say another, or share nothing: a GPU that is not shared is left as it is."""
    text = """
sharing:
  timeSlicing:
    timeSlice: long
    resources:
    - {name: gpu, replicas: 2, devices: 1}
    - {name: gpu, replicas: 3, devices: 1, timeSlice: default}
    - {name: gpu, replicas: 1, devices: 1, timeSlice: short}
    - {name: gpu, replicas: 1}
"""

    assert [each.time_slice for each in config(text).sharing.replicated_resources] == ["long", "default", "short", None]


@pytest.mark.parametrize(
    ("section", "sharing"),
    [
        (
            "mps: {resources: [{name: gpu, replicas: 4}]}",
            Sharing((ReplicatedResource(GPU, 4),), True, "mps"),
        ),
        (
            "mps: {failRequestsGreaterThanOne: false, renameByDefault: true, resources: [{name: gpu, replicas: 48}]}",
            Sharing((ReplicatedResource(GPU, 48, f"{GPU}.shared"),), False, "mps"),
        ),
        (
            "mps: {computeMode: leave, multiUser: true, activeThreadPercentage: 30, "
            "resources: [{name: gpu, replicas: 2}]}",
            Sharing((ReplicatedResource(GPU, 2),), True, "mps", mps=MpsDaemonSettings("leave", True, 30)),
        ),
        (
            "memory: {resources: [{name: gpu}]}",
            Sharing(memory_resources=(MemorySharedResource(GPU, f"{GPU}.mem", 1024),)),
        ),
        (
            "memory: {shareSize: 2, resources: "
            "[{name: gpu, devices: [0], shareSize: 4}, {name: gpu, model: T4, rename: t4}]}",
            Sharing(
                memory_resources=(
                    MemorySharedResource(GPU, f"{GPU}.mem", 4096, ("0",)),
                    MemorySharedResource(GPU, "nvidia.com/t4", 2048, model="T4"),
                )
            ),
        ),
        (
            "memory: {unit: MiB, shareSize: 256, enforcedByMPS: true, resources: [{name: mig-1g.10gb}]}, "
            "mps: {computeMode: leave}",
            Sharing(
                (),
                True,
                "mps",
                (MemorySharedResource("nvidia.com/mig-1g.10gb", "nvidia.com/mig-1g.10gb.mem", 256),),
                "MiB",
                True,
                MpsDaemonSettings("leave"),
            ),
        ),
    ],
)
def test_what_the_file_says_of_mps_and_memory(section: str, sharing: Sharing) -> None:
    """MPS refuses more than one share unless told otherwise; memory is counted in GiB and has a name of its own."""
    assert config(f"sharing: {{{section}}}").sharing == sharing


def test_patterns_are_kept_in_their_order() -> None:
    """The first that matches counts, so the order is part of the meaning."""
    settings = config("resources: {gpus: [{pattern: '*A100*', name: a100}, {pattern: '*', name: nvidia.com/rest}]}")

    assert settings.gpus == (NamingRule("*A100*", "nvidia.com/a100"), NamingRule("*", "nvidia.com/rest"))


def test_what_is_said_in_vain_is_known() -> None:
    """A key that NVIDIA's plugin has and this agent has no use for is accepted, and a person who asks is told."""
    resolved = resolve_with_sources(
        b"flags:\n  failOnInitError: true\n", "c.yaml", {}, {"DEVICE_DISCOVERY_STRATEGY": "nvml"}
    )

    assert set(resolved.ignored_settings) == {"DEVICE_DISCOVERY_STRATEGY", "c.yaml:2"}
    assert all(why.startswith("no effect") for why in resolved.ignored_settings.values())


@pytest.mark.parametrize(
    ("file", "environment", "where"),
    [
        ("", {"DP_DISABLE_HEALTHCHECKS": "all, 68,xids,"}, []),
        (
            "",
            {"DP_DISABLE_HEALTHCHECKS": "sixty, -68,068,0", "DP_ENABLE_HEALTHCHECKS": "79.0"},
            ["DP_DISABLE_HEALTHCHECKS", "DP_ENABLE_HEALTHCHECKS"],
        ),
        (
            "health: {faults: {xid-48: {severity: note}, xid-79: {severity: note, clearAfter: }, "
            "xid-94: {gracePeriod: 1}}}",
            {"DP_DISABLE_HEALTHCHECKS": "all", "DP_ENABLE_HEALTHCHECKS": "79"},
            ["c.yaml:1"],
        ),
    ],
)
def test_what_is_said_of_faults_in_vain_is_known(
    file: str, environment: dict[str, str], where: list[str], golden: Golden
) -> None:
    """Words of the variables that mean nothing, and what the file says where a variable says it already."""
    idle = resolve_with_sources(file.encode(), "c.yaml", {}, environment).ignored_settings
    assert sorted(idle) == where
    for place, why in idle.items():
        golden(why, f"{place} {environment.get(place, '')}")


@pytest.mark.parametrize(
    ("section", "changed"),
    [
        ("", {}),
        ("{}", {}),
        ("{probePeriod: , faults: }", {}),
        ("{faults: {xid-94: }}", {}),
        ("{probePeriod: 500ms}", {"probe_period": 0.5}),
        ("{probePeriod: 1h}", {"probe_period": 3600.0}),
        ("{probePeriod: 0.05}", {"probe_period": 0.05}),
        ("{probePeriod: 7}", {"probe_period": 7.0}),
        (
            "{faults: {xid-94: {severity: degraded, clearWhen: time-passed, scope: gpu, gracePeriod: 1m30s, "
            "clearAfter: 1.5h, advice: x}}}",
            {"faults": {"xid-94": FaultOverride("degraded", "time-passed", "gpu", 90.0, 5400.0, "x")}},
        ),
        (
            "{faults: {nvlink-down: {gracePeriod: 0}, xid-255: {severity: note}, ecc-storm: {clearAfter: 1d}}}",
            {
                "faults": {
                    "nvlink-down": FaultOverride(grace_period=0.0),
                    "xid-255": FaultOverride(severity="note"),
                    "ecc-storm": FaultOverride(clear_after=86400.0),
                }
            },
        ),
    ],
)
def test_what_the_file_says_of_health(section: str, changed: dict[str, Any]) -> None:
    """Durations become seconds; what is left out is the catalogue's."""
    assert config(f"health: {section}") == Settings(**changed)


def test_the_sources_of_entries_are_their_lines() -> None:
    """Who explains a decision can name the line of the pattern, the sharing entry or the rule that made it."""
    text = b"""
resources:
  gpus:
  - {pattern: a, name: a}
  mig:
  - {pattern: b, name: b}
sharing:
  timeSlicing:
    resources:
    - name: a
      replicas: 2
health:
  probePeriod: 1s
  faults:
    xid-94:
      severity: note
"""

    assert resolve_with_sources(text, "c.yaml").sources == {
        "gpus.0": "c.yaml:4",
        "mig.0": "c.yaml:6",
        "sharing.0": "c.yaml:10",
        "probe_period": "c.yaml:13",
        "faults.xid-94": "c.yaml:15",
    }


@pytest.mark.parametrize(
    ("flags", "environment", "where"),
    [
        (
            {"mig-strategy": "sngle"},
            {},
            "--mig-strategy",
        ),
        (
            {"dev-root": "."},
            {},
            "--dev-root",
        ),
        (
            {},
            {"NVIDIA_CTK_PATH": "nvidia-ctk"},
            "NVIDIA_CTK_PATH",
        ),
        ({}, {"MIG_STRATEGY": "x"}, "MIG_STRATEGY"),
        ({"pass-device-specs": "yes"}, {}, "--pass-device-specs"),
        ({}, {"FAIL_ON_INIT_ERROR": "no"}, "FAIL_ON_INIT_ERROR"),
        ({}, {"IMEX_CHANNEL_IDS": "0,2"}, "IMEX_CHANNEL_IDS"),
        (
            {},
            {"DEVICE_LIST_STRATEGY": "envvar,cdi"},
            "DEVICE_LIST_STRATEGY",
        ),
        (
            {},
            {"CDI_DISABLE_HOOKS": "update-ldcach"},
            "CDI_DISABLE_HOOKS",
        ),
        (
            {"device-list-strategy": "auto,envvar"},
            {},
            "--device-list-strategy",
        ),
        (
            {},
            {"DEVICE_LIST_STRATEGY": "cdi-cri,auto"},
            "DEVICE_LIST_STRATEGY",
        ),
    ],
)
def test_a_wrong_flag_or_variable_is_named(
    flags: dict[str, str], environment: dict[str, str], where: str, golden: Golden
) -> None:
    """The error says which one it was, and what is allowed."""
    with pytest.raises(InvalidInput) as caught:
        resolve_settings(None, "c.yaml", flags, environment)

    [error] = caught.value.errors
    assert error.startswith(f"{where}: ")
    golden(error, " ".join(f"{name}={value}" for name, value in (flags or environment).items()))


def test_errors_of_file_flags_and_environment_come_together() -> None:
    """Nobody mends the file to learn that a variable is wrong too."""
    with pytest.raises(InvalidInput) as caught:
        resolve_settings(b"flagz: 1\nversion: v2\n", "c.yaml", {"gds-enabled": "x"}, {"MIG_STRATEGY": "y"})

    assert [error.split(":")[0] for error in caught.value.errors] == [
        "c.yaml",
        "c.yaml",
        "MIG_STRATEGY",
        "--gds-enabled",
    ]


def test_the_table_agrees_with_settings_and_file() -> None:
    """Each row's field, key and default exist and mean the same everywhere."""
    defaults = Settings()
    for flag in FLAGS:
        if flag.settings_field:
            expected = attrgetter(flag.settings_field)(defaults)
            assert parse_flag_value(flag, flag.default) == ("" if flag.settings_field == "dev_root" else expected), (
                flag.option_or_variable_or_key
            )
        assert value_of_key(ConfigFile(), flag.file_key) is None
    ours = {flag.settings_field.partition(".")[0] for flag in FLAGS if flag.settings_field} | {
        "gpus",
        "mig",
        "sharing",
        "probe_period",
        "metrics",
        "faults",
    }
    assert ours == {field.name for field in msgspec.structs.fields(Settings)}
    for section, type in (("node", NodeSettings), ("partitions", PartitionSettings)):
        fields = {flag.settings_field for flag in FLAGS if flag.settings_field.startswith(f"{section}.")}
        assert fields == {f"{section}.{field.name}" for field in msgspec.structs.fields(type)}
    assert len(FLAG_BY_NAME) == sum(len(flag.names) + len(flag.environment_variables) for flag in FLAGS)


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ("", {}),
        ("--mig-strategy=single --nvidia-driver-root /d", {"mig-strategy": "single", "driver-root": "/d"}),
        ("--pass-device-specs --gds-enabled=false", {"pass-device-specs": "true", "gds-enabled": "false"}),
        (
            "--device-list-strategy envvar --device-list-strategy=cdi-cri,cdi-annotations",
            {"device-list-strategy": "envvar,cdi-cri,cdi-annotations"},
        ),
        ("--imex-channel-ids 0 --config /c", {"imex-channel-ids": "0", "config-file": "/c"}),
    ],
)
def test_a_parser_gets_its_flags_from_the_table(arguments: str, found: dict[str, str]) -> None:
    """Aliases count as the flag, switches need no value, lists may be repeated."""
    parser = ArgumentParser()
    add_arguments(parser.add_argument)

    assert flag_texts_by_name(vars(parser.parse_args(arguments.split()))) == found
    assert parser.format_help()


def test_what_belongs_to_the_process_is_asked_for_by_name() -> None:
    """The same precedence, without a file; of several variables the first that is set."""
    variables = {"CONTAINER_DRIVER_ROOT": "/old", "DRIVER_ROOT_CTR_PATH": "/new", "KUBELET_SOCKET": ""}

    assert flag_text_or_default("driver-root-ctr-path", {}, variables) == "/new"
    assert flag_text_or_default("driver-root-ctr-path", {}, {"CONTAINER_DRIVER_ROOT": "/old"}) == "/old"
    assert flag_text_or_default("kubelet-socket", {}, variables) == ""
    assert flag_text_or_default("node-label", {}, {}) == "nvidia.com/device-plugin.config"
    assert flag_text_or_default("config-file", {"config-file": "/c"}, {"CONFIG_FILE": "/d"}) == "/c"


def test_the_documentation_shows_the_table() -> None:
    """docs/configuration.md holds what `gpuplane config reference` prints; if this fails, print it there again."""
    assert flags_table() in DOCUMENT.read_text()


PAGES = (DOCUMENT, DOCUMENT.with_name("sharing.md"))
EXAMPLES = [example for page in PAGES for example in re.findall(r"^```yaml\n(.*?)^```$", page.read_text(), re.M | re.S)]


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_documentations_examples_are_good(example: str) -> None:
    """Each says something, and nothing wrong."""
    assert config(example) != Settings()


PIECES = st.sampled_from(
    [
        "flags",
        "plugin",
        "sharing",
        "timeSlicing",
        "mps",
        "memory",
        "grain",
        "model",
        "distinct",
        "resources",
        "gpus",
        "name",
        "replicas",
        "devices",
        "migStrategy",
        "imex",
        "health",
        "faults",
        "xid-94",
        "patience",
        "ends",
    ]
)
VALUES = st.recursive(
    st.sampled_from(["v1", "single", "gpu", "0:1", "*", "", "5s", "time", "note"])
    | st.integers(-1, 3)
    | st.booleans()
    | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(PIECES, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(PIECES, VALUES), st.dictionaries(st.sampled_from(sorted(FLAG_BY_NAME)), st.text(max_size=8)))
def test_any_file_and_flags_are_settings_or_invalid(file: dict[str, Any], said: dict[str, str]) -> None:
    """Whatever is said, no other exception leaves."""
    try:
        assert isinstance(resolve_settings(msgspec.json.encode(file), "c.yaml", said, said), Settings)
    except InvalidInput as error:
        assert error.errors


@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        ("-mig-strategy=single -pass-device-specs", "--mig-strategy=single --pass-device-specs"),
        ("-mig-strategy mixed", "--mig-strategy mixed"),
        ("--mig-strategy none -h -", "--mig-strategy none -h -"),
        ("--driver-root /a-b -1", "--driver-root /a-b -1"),
    ],
)
def test_long_names_may_have_one_dash(arguments: str, written: str) -> None:
    """As for Go's flag package, by which NVIDIA's plugin reads its command line."""
    assert use_two_dashes(arguments.split()) == written.split()
