"""Bad configuration files: where each error is. The errors word for word are in golden/check.txt."""

import pytest

from gpuplane.base.strict import InvalidInput
from gpuplane.node.core.config.resolve import resolve_settings
from tests.golden import Golden

ENTRY = "c.yaml:1: sharing.timeSlicing.resources[0]"


def errors(text: str) -> list[str]:
    """What is wrong with a file."""
    with pytest.raises(InvalidInput) as caught:
        resolve_settings(text.encode(), "c.yaml")
    return caught.value.errors


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("version: v2", "c.yaml:1: version"),
        ("version: 1", "c.yaml:1: version"),
        ("flag: {}", "c.yaml:1:"),
        ("migStrategy: single", "c.yaml:1:"),
        ("flags:\n  migstrateg: single", "c.yaml:2:"),
        # which of the two is meant?
        (
            "flags:\n  migStrategy: single\n  migstrategy: mixed",
            "c.yaml:3:",
        ),
        (
            "flags: {migStrategy: single}\nflags: {migStrategy: mixed}",
            "c.yaml:2:",
        ),
        # where NVIDIA's plugin drops another case
        (
            "sharing: {mps: {failrequestsGreaterThanOne: false, resources: [{name: gpu, replicas: 2}]}}",
            "c.yaml:1:",
        ),
        (
            "sharing: {timeSlicing: {renamebydefault: true, resources: [{name: gpu, replicas: 2}]}}",
            "c.yaml:1:",
        ),
        ("health: {ProbePeriod: 5s}", "c.yaml:1:"),
        (
            "flags: {plugin: {cdiAnnotationPrefix: 'cdi k8s'}}",
            "c.yaml:1: flags.plugin.cdiAnnotationPrefix",
        ),
        (
            "flags: {migStrategy: sometimes}",
            "c.yaml:1: flags.migStrategy",
        ),
        (
            'flags: {failOnInitError: "true"}',
            "c.yaml:1: flags.failOnInitError",
        ),
        (
            "flags: {deviceDiscoveryStrategy: wsl}",
            "c.yaml:1: flags.deviceDiscoveryStrategy",
        ),
        (
            "flags: {plugin: {deviceListStrategy: [envvar, cdi]}}",
            "c.yaml:1: flags.plugin.deviceListStrategy",
        ),
        (
            "flags:\n  plugin:\n    deviceListStrategy: [envvar, auto, cdi-cri]",
            "c.yaml:3: flags.plugin.deviceListStrategy",
        ),
        (
            "flags: {plugin: {deviceListStrategy: []}}",
            "c.yaml:1: flags.plugin.deviceListStrategy",
        ),
        (
            "flags: {gfd: {sleepInterval: soon}}",
            "c.yaml:1: flags.gfd.sleepInterval",
        ),
        (
            "node: {labels: nodes}",
            "c.yaml:1: node.labels",
        ),
        (
            "node: {lables: node}",
            "c.yaml:1: unknown key 'lables'",
        ),
        (
            "node: {startupTaint: a/b/c}",
            "c.yaml:1: node.startupTaint",
        ),
        (
            "node: {annotation: yes please}",
            "c.yaml:1: node.annotation",
        ),
        (
            "flags: {nvidiaDriverRoot: run/nvidia/driver}",
            "c.yaml:1: flags.nvidiaDriverRoot",
        ),
        ("imex: {channelIDs: [2]}", "c.yaml:1: imex.channelIDs"),
        ("imex: {channelIDs: 0}", "c.yaml:1: imex.channelIDs"),
        # resources
        ("resources: {gpus: [{pattern: a}]}", "c.yaml:1: resources.gpus[0].name"),
        ("resources: {mig: [{name: a}]}", "c.yaml:1: resources.mig[0].pattern"),
        (
            "resources:\n  gpus:\n  - pattern: '*'\n    name: A100",
            "c.yaml:4: resources.gpus[0].name",
        ),
        (
            "resources: {gpus: [{pattern: '', name: a}]}",
            "c.yaml:1: resources.gpus[0].pattern",
        ),
        (
            "resources:\n  gpus:\n  - {pattern: '*', name: a}\n  - {pattern: x, name: b}",
            "c.yaml:4: resources.gpus[1]",
        ),
        (
            "resources:\n  mig:\n  - {pattern: x, name: a}\n  - {pattern: x, name: b}",
            "c.yaml:4: resources.mig[1]",
        ),
        # health
        ("health: {probePeriods: 5s}", "c.yaml:1:"),
        ("probePeriod: 5s", "c.yaml:1:"),
        ("health: {probePeriod: 49ms}", "c.yaml:1: health.probePeriod"),
        ("health: {probePeriod: 0}", "c.yaml:1: health.probePeriod"),
        ("health: {probePeriod: 3601}", "c.yaml:1: health.probePeriod"),
        ("health: {probePeriod: soon}", "c.yaml:1: health.probePeriod"),
        ('health: {probePeriod: "5"}', "c.yaml:1: health.probePeriod"),
        ("health: {probePeriod: 5 s}", "c.yaml:1: health.probePeriod"),
        ("health: {probePeriod: -5s}", "c.yaml:1: health.probePeriod"),
        ("health: {probePeriod: true}", "c.yaml:1: health.probePeriod"),
        ("health: {probePeriod: .inf}", "c.yaml:1: health.probePeriod"),
        (
            "health:\n  faults:\n    xid-94: {gracePeriod: -1}",
            "c.yaml:3: health.faults.xid-94.gracePeriod",
        ),
        (
            "health: {faults: {ecc-storm: {clearAfter: 1w}}}",
            "c.yaml:1: health.faults.ecc-storm.clearAfter",
        ),
        (
            "health:\n  faults:\n    xid-94:\n      severity: unhelthy",
            "c.yaml:4: health.faults.xid-94.severity",
        ),
        (
            "health: {faults: {xid-94: {end: time}}}",
            "c.yaml:1:",
        ),
        (
            "health:\n  faults:\n    xid-94: {clearAfter: 5m}",
            "c.yaml:3: health.faults.xid-94",
        ),
        (
            "health: {faults: {xid-94: {clearAfter: 5m, clearWhen: time-pased}}}",
            "c.yaml:1: health.faults.xid-94.clearWhen",
        ),
        (
            "health:\n  faults:\n    nvlink_down: {}",
            "c.yaml:3: health.faults.nvlink_down",
        ),
        ("health: {faults: {94: {}}}", "c.yaml:1: health.faults.94"),
        ("health: {faults: {XID-94: {}}}", "c.yaml:1: health.faults.XID-94"),
        ("health: {faults: {xid-100000: {}}}", "c.yaml:1: health.faults.xid-100000"),
        ("health: {faults: {xid-949: {}}}", "c.yaml:1: health.faults.xid-949"),
        ("health: {faults: {xid-256: {}}}", "c.yaml:1: health.faults.xid-256"),
        ("health: {faults: {xid-999: {}}}", "c.yaml:1: health.faults.xid-999"),
        ("health: {faults: {xid-497: {}}}", "c.yaml:1: health.faults.xid-497"),
        ("health: {faults: {xid-094: {}}}", "c.yaml:1: health.faults.xid-094"),
        ("health: {faults: {xid079: {}}}", "c.yaml:1: health.faults.xid079"),
        ("health: {faults: {quux: {}}}", "c.yaml:1: health.faults.quux"),
        ("health: {faults: [xid-94]}", "c.yaml:1: health.faults"),
        # sharing
        (
            "sharing:\n  timeSlicing: {resources: [{name: gpu, replicas: 2}]}\n  mps: {renameByDefault: true}",
            "c.yaml:3: sharing.mps",
        ),
        (
            "sharing: {mps: {multiUser: true}}",
            "c.yaml:1: sharing.mps",
        ),
        (
            "sharing: {mps: {resources: [{name: gpu, replicas: 49}]}}",
            "c.yaml:1: sharing.mps.resources[0].replicas",
        ),
        (
            "sharing: {mps: {resources: [{name: gpu, replicas: 4, distinctGPUs: true}]}}",
            "c.yaml:1: sharing.mps.resources[0].distinctGPUs",
        ),
        (
            "sharing: {mps: {resources: [{name: gpu, replicas: 4, devices: [0]}]}}",
            "c.yaml:1: sharing.mps.resources[0]",
        ),
        (
            "sharing: {mps: {resources: [{name: gpu, replicas: 4, timeSlice: long}]}}",
            "c.yaml:1:",
        ),
        (
            "sharing: {mps: {activeThreadPercentage: 0, resources: [{name: gpu, replicas: 4}]}}",
            "c.yaml:1: sharing.mps.activeThreadPercentage",
        ),
        (
            "sharing: {mps: {computeMode: exclusiv, resources: [{name: gpu, replicas: 4}]}}",
            "c.yaml:1: sharing.mps.computeMode",
        ),
        (
            "sharing: {timeSlicing: {timeSlice: longer, resources: [{name: gpu, replicas: 4}]}}",
            "c.yaml:1: sharing.timeSlicing.timeSlice",
        ),
        (
            "sharing: {memory: {unit: GiB}}",
            "c.yaml:1: sharing.memory",
        ),
        (
            "sharing: {memory: {unit: GB, resources: [{name: gpu}]}}",
            "c.yaml:1: sharing.memory.unit",
        ),
        (
            "sharing: {memory: {shareSize: 0, resources: [{name: gpu}]}}",
            "c.yaml:1: sharing.memory.shareSize",
        ),
        (
            "sharing: {memory: {unit: MiB, resources: [{name: gpu, shareSize: -1}]}}",
            "c.yaml:1: sharing.memory.resources[0].shareSize",
        ),
        (
            "sharing: {memory: {resources: [{name: gpu, rename: gpu}]}}",
            "c.yaml:1: sharing.memory.resources[0].rename",
        ),
        (
            "sharing: {memory: {resources: [{name: gpu, rename: mig-memory}]}}",
            "c.yaml:1: sharing.memory.resources[0].rename",
        ),
        (
            "sharing: {memory: {resources: [{name: gpus}]}}",
            "c.yaml:1: sharing.memory.resources[0].name",
        ),
        (
            "sharing: {memory: {resources: [{name: gpu, replicas: 2}]}}",
            "c.yaml:1:",
        ),
        (
            "sharing:\n  memory:\n    resources:\n    - {name: gpu, devices: 1}\n    - {name: gpu, shareSize: 2}",
            "c.yaml:5: sharing.memory.resources[1].name",
        ),
        (
            "sharing:\n  timeSlicing: {resources: [{name: gpu, replicas: 2, devices: 1, rename: part}]}\n"
            "  memory: {resources: [{name: gpu, rename: part}]}",
            "c.yaml:3: sharing.memory.resources[0].rename",
        ),
        (
            "sharing:\n  timeSlicing: {resources: [{name: gpu, replicas: 2}]}\n"
            "  memory: {resources: [{name: gpu, model: A100}]}",
            "c.yaml:3: sharing.memory.resources[0]",
        ),
        (
            "sharing: {timeSlicing: {}}",
            "c.yaml:1: sharing.timeSlicing",
        ),
        (
            "sharing: {timeSlicing: {resources: []}}",
            "c.yaml:1: sharing.timeSlicing",
        ),
        (
            "sharing: {timeSlicing: {strategy: bogus, resources: [{name: gpu, replicas: 2}]}}",
            "c.yaml:1:",
        ),
    ],
)
def test_each_error(text: str, where: str, golden: Golden) -> None:
    """Line, place, what is wrong and what to do."""
    [error] = errors(text)
    assert error.startswith(where)
    golden(error, text)


@pytest.mark.parametrize(
    ("entry", "where"),
    [
        ("name: gpu", ".replicas"),
        ("replicas: 2", ".name"),
        ("name: gpu, replicas: 0", ".replicas"),
        (
            "name: gpu, replicas: -1",
            ".replicas",
        ),
        (
            "name: gpu, replicas: 32769",
            ".replicas",
        ),
        ("name: gpu, replicas: 2.5", ".replicas"),
        ("name: gpu, replicas: 1e300", ".replicas"),
        ("name: gpu, replicas: '4'", ".replicas"),
        (
            "name: $invalid$, replicas: 2",
            ".name",
        ),
        (
            "name: gpu, replicas: 2, rename: $invalid$",
            ".rename",
        ),
        ("name: gpu, replicas: 2, rename: ''", ".rename"),
        (
            "name: gpus, replicas: 2",
            ".name",
        ),
        (
            "name: nvidia.com/gpu.shared, replicas: 2",
            ".name",
        ),
        ("name: gpu, replicas: 2, devices: not-all", ".devices"),
        ("name: gpu, replicas: 2, devices: -2", ".devices"),
        ("name: gpu, replicas: 2, devices: 0", ".devices"),
        (
            "name: gpu, replicas: 2, devices: 2.5",
            ".devices",
        ),
        ("name: gpu, replicas: 2, model: ''", ".model"),
        (
            "name: gpu, replicas: 2, distinctGPUs: 1",
            ".distinctGPUs",
        ),
        ("name: gpu, replicas: 2, devices: []", ".devices"),
        ("name: gpu, replicas: 2, devices: [-1]", ".devices[0]"),
        ("name: gpu, replicas: 2, devices: ['-1']", ".devices[0]"),
        ("name: gpu, replicas: 2, devices: [invalid-UUID]", ".devices[0]"),
        ("name: gpu, replicas: 2, devices: [GPU-UUID]", ".devices[0]"),
        ("name: gpu, replicas: 2, devices: [0, MIG-UUID]", ".devices[1]"),
        (
            "name: gpu, replicas: 2, devices: [MIG-GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c]",
            ".devices[0]",
        ),
        (
            "name: gpu, replicas: 2, devices: [true]",
            ".devices[0]",
        ),
    ],
)
def test_each_error_of_a_sharing_entry(entry: str, where: str, golden: Golden) -> None:
    """NVIDIA's grammar, and what they let pass in silence."""
    [error] = errors(f"sharing: {{timeSlicing: {{resources: [{{{entry}}}]}}}}")
    assert error.startswith(f"{ENTRY}{where}")
    golden(error, entry)


@pytest.mark.parametrize(
    ("entries", "where"),
    [
        (
            ["name: gpu, replicas: 2", "name: nvidia.com/gpu, replicas: 3, devices: [0]"],
            "[1]",
        ),
        (
            ["name: gpu, replicas: 2, devices: [0, 1]", "name: gpu, replicas: 3, devices: [2, '1']"],
            "[1].devices[1]",
        ),
        (
            ["name: gpu, replicas: 2, model: T4", "name: gpu, replicas: 3, model: T4, devices: [3]"],
            "[1]",
        ),
        (
            ["name: gpu, replicas: 2, model: T4, distinctGPUs: true", "name: gpu, replicas: 3"],
            "[1].name",
        ),
    ],
)
def test_entries_that_get_nothing(entries: list[str], where: str, golden: Golden) -> None:
    """An entry that can never have a device is a mistake of who wrote it."""
    lines = "".join(f"\n    - {{{entry}}}" for entry in entries)

    [error] = errors(f"sharing:\n  timeSlicing:\n    resources:{lines}\n")
    assert error.startswith(f"c.yaml:5: sharing.timeSlicing.resources{where}")
    golden(error, " / ".join(entries))


@pytest.mark.parametrize(
    "entries",
    [
        ["name: gpu, replicas: 2, model: T4", "name: gpu, replicas: 3, model: A100", "name: gpu, replicas: 4"],
        ["name: gpu, replicas: 2, model: T4, devices: [0]", "name: gpu, replicas: 3, devices: [0]"],
        ["name: gpu, replicas: 2, model: T4, devices: 1", "name: gpu, replicas: 3, model: T4"],
    ],
)
def test_entries_for_different_models_leave_each_other_devices(entries: list[str]) -> None:
    """What an entry with a model does not take is there for those below."""
    lines = ", ".join(f"{{{entry}}}" for entry in entries)

    assert (
        len(
            resolve_settings(
                f"sharing: {{timeSlicing: {{resources: [{lines}]}}}}".encode(), "c"
            ).sharing.replicated_resources
        )
        > 1
    )


def test_a_name_must_leave_room_for_shared(golden: Golden) -> None:
    """renameByDefault makes names longer, and that may be too long."""
    name = "x" * 50
    text = f"""
resources: {{gpus: [{{pattern: "*", name: {name}}}]}}
sharing:
  timeSlicing:
    renameByDefault: true
    resources:
    - {{name: {name}, replicas: 2}}
"""

    [error] = errors(text)
    assert error.startswith("c.yaml:7: sharing.timeSlicing.resources[0].name")
    golden(error)


def test_everything_at_once(golden: Golden) -> None:
    """Spelling, types and contradictions of one file, in the order of its lines."""
    text = """\
version: v2
flags:
  migStrategy: mixd
  plugin: {deviceListStrategy: [envar], passDeviceSpec: true}
resources:
  gpus:
  - {pattern: "*", name: GPU}
sharing:
  timeSlicing:
    resources:
    - name: gpu
      replicas: 0
      devices: [none]
    - {name: gpu, replicas: 2, rename: x/y}
imex: {channelIDs: [1]}
"""

    golden(errors(text))
    assert [error.split(": ")[0] + " " + error.split(": ")[1].partition(";")[0] for error in errors(text)] == [
        "c.yaml:1 version",
        "c.yaml:3 flags.migStrategy",
        "c.yaml:4 unknown key 'passDeviceSpec'",
        "c.yaml:4 flags.plugin.deviceListStrategy",
        "c.yaml:7 resources.gpus[0].name",
        "c.yaml:12 sharing.timeSlicing.resources[0].replicas",
        "c.yaml:13 sharing.timeSlicing.resources[0].devices[0]",
        "c.yaml:14 sharing.timeSlicing.resources[1].rename",
        "c.yaml:15 imex.channelIDs",
    ]
