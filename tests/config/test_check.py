"""Bad configuration files, each with its errors word for word."""

import pytest

from gpuplane.core.config.resolve import resolve
from gpuplane.core.strict import Invalid

RULE = "after nvidia.com/ it has small letters, digits, - and ., and begins and ends with a letter or digit"
REFERENCE = "must be an index (0), a MIG index (0:1) or a UUID (GPU-…, MIG-…), not"
TIME = "is no time; write 500ms, 5s, 2m, 1h or a number of seconds"
NO_FAULT = "there is no such fault: the fault catalogue's, or xid-1 to xid-255"
REMEDY = "leave one out, or say in the first which devices or model it shares"
ENTRY = "c.yaml:1: sharing.timeSlicing.resources[0]"


def errors(text: str) -> list[str]:
    """What is wrong with a file."""
    with pytest.raises(Invalid) as caught:
        resolve(text.encode(), "c.yaml")
    return caught.value.errors


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("version: v2", "c.yaml:1: version: 'v2' is not known; this is v1"),
        ("version: 1", "c.yaml:1: version: must be text, not the number 1; put it in quotes"),
        ("flag: {}", "c.yaml:1: unknown key 'flag'; did you mean 'flags'?"),
        ("migStrategy: single", "c.yaml:1: unknown key 'migStrategy'; did you mean flags.migStrategy?"),
        ("flags:\n  migstrateg: single", "c.yaml:2: unknown key 'migstrateg'; did you mean 'migStrategy'?"),
        # which of the two is meant?
        (
            "flags:\n  migStrategy: single\n  migstrategy: mixed",
            "c.yaml:3: unknown key 'migstrategy'; did you mean 'migStrategy'?",
        ),
        (
            "flags: {migStrategy: single}\nflags: {migStrategy: mixed}",
            "c.yaml:2: key 'flags' stands twice, first on line 1; leave one out",
        ),
        # where NVIDIA's plugin drops another case
        (
            "sharing: {mps: {failrequestsGreaterThanOne: false, resources: [{name: gpu, replicas: 2}]}}",
            "c.yaml:1: unknown key 'failrequestsGreaterThanOne'; did you mean 'failRequestsGreaterThanOne'?",
        ),
        (
            "sharing: {timeSlicing: {renamebydefault: true, resources: [{name: gpu, replicas: 2}]}}",
            "c.yaml:1: unknown key 'renamebydefault'; did you mean 'renameByDefault'?",
        ),
        ("health: {ProbePeriod: 5s}", "c.yaml:1: unknown key 'ProbePeriod'; did you mean 'probePeriod'?"),
        (
            "flags: {plugin: {cdiAnnotationPrefix: 'cdi k8s'}}",
            "c.yaml:1: flags.plugin.cdiAnnotationPrefix: must be what an annotation's key can begin with, as "
            "'cdi.k8s.io/', not 'cdi k8s'",
        ),
        (
            "flags: {migStrategy: sometimes}",
            "c.yaml:1: flags.migStrategy: must be one of none, single, mixed, not the text 'sometimes'",
        ),
        (
            'flags: {failOnInitError: "true"}',
            "c.yaml:1: flags.failOnInitError: must be true or false, not the text 'true'; write it without quotes",
        ),
        (
            "flags: {deviceDiscoveryStrategy: wsl}",
            "c.yaml:1: flags.deviceDiscoveryStrategy: must be one of auto, nvml, tegra, vfio, not 'wsl'",
        ),
        (
            "flags: {plugin: {deviceListStrategy: [envvar, cdi]}}",
            "c.yaml:1: flags.plugin.deviceListStrategy: must be one of auto, envvar, volume-mounts, "
            "cdi-annotations, cdi-cri, not 'cdi'; did you mean 'cdi-cri'?",
        ),
        (
            "flags:\n  plugin:\n    deviceListStrategy: [envvar, auto, cdi-cri]",
            "c.yaml:3: flags.plugin.deviceListStrategy: 'auto' stands alone, and chooses itself: leave it or 'envvar', "
            "'cdi-cri' out",
        ),
        (
            "flags: {plugin: {deviceListStrategy: []}}",
            "c.yaml:1: flags.plugin.deviceListStrategy: is empty, so that containers would be told of no device; "
            "say one of auto, envvar, volume-mounts, cdi-annotations, cdi-cri, or leave it out",
        ),
        (
            "flags: {gfd: {sleepInterval: soon}}",
            "c.yaml:1: flags.gfd.sleepInterval: 'soon' is no time; write 60s, 5m or infinite",
        ),
        (
            "flags: {nvidiaDriverRoot: run/nvidia/driver}",
            "c.yaml:1: flags.nvidiaDriverRoot: must be an absolute path, not 'run/nvidia/driver': "
            "the host has nothing that it is relative to",
        ),
        ("imex: {channelIDs: [2]}", "c.yaml:1: imex.channelIDs: must be 0, not '2'"),
        ("imex: {channelIDs: 0}", "c.yaml:1: imex.channelIDs: must be a list, not the number 0"),
        # resources
        ("resources: {gpus: [{pattern: a}]}", "c.yaml:1: resources.gpus[0].name is missing"),
        ("resources: {mig: [{name: a}]}", "c.yaml:1: resources.mig[0].pattern is missing"),
        (
            "resources:\n  gpus:\n  - pattern: '*'\n    name: A100",
            f"c.yaml:4: resources.gpus[0].name: 'nvidia.com/A100' is no resource name: {RULE}; "
            "did you mean 'nvidia.com/a100'?",
        ),
        (
            "resources: {gpus: [{pattern: '', name: a}]}",
            "c.yaml:1: resources.gpus[0].pattern: is empty and matches nothing; * matches everything",
        ),
        (
            "resources:\n  gpus:\n  - {pattern: '*', name: a}\n  - {pattern: x, name: b}",
            "c.yaml:4: resources.gpus[1]: is never reached: resources.gpus[0] takes all that it could match",
        ),
        (
            "resources:\n  mig:\n  - {pattern: x, name: a}\n  - {pattern: x, name: b}",
            "c.yaml:4: resources.mig[1]: is never reached: resources.mig[0] takes all that it could match",
        ),
        # health
        ("health: {probePeriods: 5s}", "c.yaml:1: unknown key 'probePeriods'; did you mean 'probePeriod'?"),
        ("probePeriod: 5s", "c.yaml:1: unknown key 'probePeriod'; did you mean health.probePeriod?"),
        ("health: {probePeriod: 49ms}", "c.yaml:1: health.probePeriod: must be 50ms to 1h, not '49ms'"),
        ("health: {probePeriod: 0}", "c.yaml:1: health.probePeriod: must be 50ms to 1h, not 0"),
        ("health: {probePeriod: 3601}", "c.yaml:1: health.probePeriod: must be 50ms to 1h, not 3601"),
        ("health: {probePeriod: soon}", f"c.yaml:1: health.probePeriod: 'soon' {TIME}"),
        ('health: {probePeriod: "5"}', f"c.yaml:1: health.probePeriod: '5' {TIME}"),
        ("health: {probePeriod: 5 s}", f"c.yaml:1: health.probePeriod: '5 s' {TIME}"),
        ("health: {probePeriod: -5s}", f"c.yaml:1: health.probePeriod: '-5s' {TIME}"),
        ("health: {probePeriod: true}", "c.yaml:1: health.probePeriod: must be text or a number, not true"),
        ("health: {probePeriod: .inf}", "c.yaml:1: health.probePeriod: inf is no time that ends"),
        (
            "health:\n  faults:\n    xid-94: {patience: -1}",
            "c.yaml:3: health.faults.xid-94.patience: -1 is less than nothing",
        ),
        (
            "health: {faults: {ecc-storm: {lasts: 1w}}}",
            f"c.yaml:1: health.faults.ecc-storm.lasts: '1w' {TIME}",
        ),
        (
            "health:\n  faults:\n    xid-94:\n      severity: unhelthy",
            "c.yaml:4: health.faults.xid-94.severity: must be one of note, degraded, unhealthy, "
            "not the text 'unhelthy'; did you mean 'unhealthy'?",
        ),
        (
            "health: {faults: {xid-94: {end: time}}}",
            "c.yaml:1: unknown key 'end'; did you mean 'ends'?",
        ),
        (
            "health:\n  faults:\n    xid-94: {lasts: 5m}",
            "c.yaml:3: health.faults.xid-94: lasts has no effect on what ends with process; say ends: time, "
            "or leave it out",
        ),
        (
            "health: {faults: {xid-94: {lasts: 5m, ends: tim}}}",
            "c.yaml:1: health.faults.xid-94.ends: must be one of nothing, process, reset, reboot, time, operator, "
            "not the text 'tim'; did you mean 'time'?",
        ),
        (
            "health:\n  faults:\n    nvlink_down: {}",
            f"c.yaml:3: health.faults.nvlink_down: {NO_FAULT}; did you mean 'nvlink-down'?",
        ),
        ("health: {faults: {94: {}}}", f"c.yaml:1: health.faults.94: {NO_FAULT}; did you mean 'xid-94'?"),
        ("health: {faults: {XID-94: {}}}", f"c.yaml:1: health.faults.XID-94: {NO_FAULT}; did you mean 'xid-94'?"),
        ("health: {faults: {xid-100000: {}}}", f"c.yaml:1: health.faults.xid-100000: {NO_FAULT}"),
        ("health: {faults: {xid-949: {}}}", f"c.yaml:1: health.faults.xid-949: {NO_FAULT}; did you mean 'xid-94'?"),
        ("health: {faults: {xid-256: {}}}", f"c.yaml:1: health.faults.xid-256: {NO_FAULT}"),
        ("health: {faults: {xid-999: {}}}", f"c.yaml:1: health.faults.xid-999: {NO_FAULT}"),
        ("health: {faults: {xid-497: {}}}", f"c.yaml:1: health.faults.xid-497: {NO_FAULT}"),
        ("health: {faults: {xid-094: {}}}", f"c.yaml:1: health.faults.xid-094: {NO_FAULT}; did you mean 'xid-94'?"),
        ("health: {faults: {xid079: {}}}", f"c.yaml:1: health.faults.xid079: {NO_FAULT}; did you mean 'xid-79'?"),
        ("health: {faults: {quux: {}}}", f"c.yaml:1: health.faults.quux: {NO_FAULT}"),
        ("health: {faults: [xid-94]}", "c.yaml:1: health.faults: must be a mapping, not a list"),
        # sharing
        (
            "sharing:\n  timeSlicing: {resources: [{name: gpu, replicas: 2}]}\n  mps: {renameByDefault: true}",
            "c.yaml:3: sharing.mps: contradicts sharing.timeSlicing: devices are shared by one of them; leave one out",
        ),
        (
            "sharing: {mps: {multiUser: true}}",
            "c.yaml:1: sharing.mps: names no resources; leave it out where nothing is shared",
        ),
        (
            "sharing: {mps: {resources: [{name: gpu, replicas: 49}]}}",
            "c.yaml:1: sharing.mps.resources[0].replicas: must be 1 (not shared) to 48, as many clients as MPS has, "
            "not 49",
        ),
        (
            "sharing: {mps: {resources: [{name: gpu, replicas: 4, distinct: true}]}}",
            "c.yaml:1: sharing.mps.resources[0].distinct: has no effect while mps.failRequestsGreaterThanOne refuses "
            "every request for more than one share; say failRequestsGreaterThanOne: false",
        ),
        (
            "sharing: {mps: {resources: [{name: gpu, replicas: 4, devices: [0]}]}}",
            "c.yaml:1: sharing.mps.resources[0]: the devices that it does not select would go by the same name and "
            "have no MPS daemon; give the shares a rename",
        ),
        (
            "sharing: {mps: {resources: [{name: gpu, replicas: 4, timeSlice: long}]}}",
            "c.yaml:1: unknown key 'timeSlice'; did you mean sharing.timeSlicing.timeSlice?",
        ),
        (
            "sharing: {mps: {activeThreadPercentage: 0, resources: [{name: gpu, replicas: 4}]}}",
            "c.yaml:1: sharing.mps.activeThreadPercentage: must be 1 to 100, not 0",
        ),
        (
            "sharing: {mps: {computeMode: exclusiv, resources: [{name: gpu, replicas: 4}]}}",
            "c.yaml:1: sharing.mps.computeMode: must be one of exclusive, leave, not the text 'exclusiv'; "
            "did you mean 'exclusive'?",
        ),
        (
            "sharing: {timeSlicing: {timeSlice: longer, resources: [{name: gpu, replicas: 4}]}}",
            "c.yaml:1: sharing.timeSlicing.timeSlice: must be one of default, short, medium, long, "
            "not the text 'longer'; did you mean 'long'?",
        ),
        (
            "sharing: {memory: {unit: GiB}}",
            "c.yaml:1: sharing.memory: names no resources; leave it out where no memory is shared",
        ),
        (
            "sharing: {memory: {unit: GB, resources: [{name: gpu}]}}",
            "c.yaml:1: sharing.memory.unit: must be one of MiB, GiB, not the text 'GB'; did you mean 'GiB'?",
        ),
        (
            "sharing: {memory: {grain: 0, resources: [{name: gpu}]}}",
            "c.yaml:1: sharing.memory.grain: must be 1 GiB or more, not 0",
        ),
        (
            "sharing: {memory: {unit: MiB, resources: [{name: gpu, grain: -1}]}}",
            "c.yaml:1: sharing.memory.resources[0].grain: must be 1 MiB or more, not -1",
        ),
        (
            "sharing: {memory: {resources: [{name: gpu, rename: gpu}]}}",
            "c.yaml:1: sharing.memory.resources[0].rename: 'nvidia.com/gpu' is what devices are called that are not "
            "shared; memory needs a name of its own",
        ),
        (
            "sharing: {memory: {resources: [{name: gpu, rename: mig-memory}]}}",
            "c.yaml:1: sharing.memory.resources[0].rename: 'nvidia.com/mig-memory' is what devices are called that are "
            "not shared; memory needs a name of its own",
        ),
        (
            "sharing: {memory: {resources: [{name: gpus}]}}",
            "c.yaml:1: sharing.memory.resources[0].name: no device is named 'nvidia.com/gpus' before it is shared; "
            "did you mean 'nvidia.com/gpu'?",
        ),
        (
            "sharing: {memory: {resources: [{name: gpu, replicas: 2}]}}",
            "c.yaml:1: unknown key 'replicas'; did you mean sharing.timeSlicing.resources[].replicas?",
        ),
        (
            "sharing:\n  memory:\n    resources:\n    - {name: gpu, devices: 1}\n    - {name: gpu, grain: 2}",
            "c.yaml:5: sharing.memory.resources[1].name: nvidia.com/gpu.mem is memory in shares of 2 GiB here, and "
            "memory in shares of 1 GiB in sharing.memory.resources[0]; give one of them another name",
        ),
        (
            "sharing:\n  timeSlicing: {resources: [{name: gpu, replicas: 2, devices: 1, rename: part}]}\n"
            "  memory: {resources: [{name: gpu, rename: part}]}",
            "c.yaml:3: sharing.memory.resources[0].rename: nvidia.com/part is memory in shares of 1 GiB here, and "
            "shares of which a container's are not always of different GPUs in sharing.timeSlicing.resources[0]; "
            "give one of them another name",
        ),
        (
            "sharing:\n  timeSlicing: {resources: [{name: gpu, replicas: 2}]}\n"
            "  memory: {resources: [{name: gpu, model: A100}]}",
            "c.yaml:3: sharing.memory.resources[0]: is never reached: sharing.timeSlicing.resources[0] shares all "
            f"devices of that name; {REMEDY}",
        ),
        (
            "sharing: {timeSlicing: {}}",
            "c.yaml:1: sharing.timeSlicing: names no resources; leave it out where nothing is shared",
        ),
        (
            "sharing: {timeSlicing: {resources: []}}",
            "c.yaml:1: sharing.timeSlicing: names no resources; leave it out where nothing is shared",
        ),
        (
            "sharing: {timeSlicing: {strategy: bogus, resources: [{name: gpu, replicas: 2}]}}",
            "c.yaml:1: unknown key 'strategy'; known here: failRequestsGreaterThanOne, renameByDefault, resources, "
            "timeSlice",
        ),
    ],
)
def test_each_error_word_for_word(text: str, error: str) -> None:
    """Line, place, what is wrong and what to do."""
    assert errors(text) == [error]


@pytest.mark.parametrize(
    ("entry", "error"),
    [
        ("name: gpu", ".replicas is missing"),
        ("replicas: 2", ".name is missing"),
        ("name: gpu, replicas: 0", ".replicas: must be 1 (not shared) to 32768, what kubelet takes in one list, not 0"),
        (
            "name: gpu, replicas: -1",
            ".replicas: must be 1 (not shared) to 32768, what kubelet takes in one list, not -1",
        ),
        (
            "name: gpu, replicas: 32769",
            ".replicas: must be 1 (not shared) to 32768, what kubelet takes in one list, not 32769",
        ),
        ("name: gpu, replicas: 2.5", ".replicas: must be a whole number, not the number 2.5"),
        ("name: gpu, replicas: 1e300", ".replicas: must be a whole number, not the number 1e+300"),
        ("name: gpu, replicas: '4'", ".replicas: must be a whole number, not the text '4'; write it without quotes"),
        (
            "name: $invalid$, replicas: 2",
            f".name: 'nvidia.com/$invalid$' is no resource name: {RULE}; did you mean 'nvidia.com/invalid'?",
        ),
        (
            "name: gpu, replicas: 2, rename: $invalid$",
            f".rename: 'nvidia.com/$invalid$' is no resource name: {RULE}; did you mean 'nvidia.com/invalid'?",
        ),
        ("name: gpu, replicas: 2, rename: ''", f".rename: 'nvidia.com/' is no resource name: {RULE}"),
        (
            "name: gpus, replicas: 2",
            ".name: no device is named 'nvidia.com/gpus' before it is shared; did you mean 'nvidia.com/gpu'?",
        ),
        (
            "name: nvidia.com/gpu.shared, replicas: 2",
            ".name: no device is named 'nvidia.com/gpu.shared' before it is shared; did you mean 'nvidia.com/gpu'?",
        ),
        ("name: gpu, replicas: 2, devices: not-all", ".devices: must be all, a count or a list, not 'not-all'"),
        ("name: gpu, replicas: 2, devices: -2", ".devices: a count must be 1 or more, not -2"),
        ("name: gpu, replicas: 2, devices: 0", ".devices: a count must be 1 or more, not 0"),
        (
            "name: gpu, replicas: 2, devices: 2.5",
            ".devices: must be text or a whole number or a list, not the number 2.5",
        ),
        ("name: gpu, replicas: 2, model: ''", ".model: is empty and matches nothing; leave it out for any"),
        (
            "name: gpu, replicas: 2, distinct: 1",
            ".distinct: must be true or false, not the number 1",
        ),
        ("name: gpu, replicas: 2, devices: []", ".devices: an empty list selects nothing; leave it out for all"),
        ("name: gpu, replicas: 2, devices: [-1]", f".devices[0]: {REFERENCE} -1"),
        ("name: gpu, replicas: 2, devices: ['-1']", f".devices[0]: {REFERENCE} '-1'"),
        ("name: gpu, replicas: 2, devices: [invalid-UUID]", f".devices[0]: {REFERENCE} 'invalid-UUID'"),
        ("name: gpu, replicas: 2, devices: [GPU-UUID]", f".devices[0]: {REFERENCE} 'GPU-UUID'"),
        ("name: gpu, replicas: 2, devices: [0, MIG-UUID]", f".devices[1]: {REFERENCE} 'MIG-UUID'"),
        (
            "name: gpu, replicas: 2, devices: [MIG-GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c]",
            f".devices[0]: {REFERENCE} 'MIG-GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c'",
        ),
        (
            "name: gpu, replicas: 2, devices: [true]",
            ".devices[0]: must be a whole number or text, not true",
        ),
    ],
)
def test_each_error_of_a_sharing_entry(entry: str, error: str) -> None:
    """NVIDIA's grammar, and what they let pass in silence."""
    assert errors(f"sharing: {{timeSlicing: {{resources: [{{{entry}}}]}}}}") == [f"{ENTRY}{error}"]


@pytest.mark.parametrize(
    ("entries", "error"),
    [
        (
            ["name: gpu, replicas: 2", "name: nvidia.com/gpu, replicas: 3, devices: [0]"],
            f"[1]: is never reached: sharing.timeSlicing.resources[0] shares all devices of that name; {REMEDY}",
        ),
        (
            ["name: gpu, replicas: 2, devices: [0, 1]", "name: gpu, replicas: 3, devices: [2, '1']"],
            "[1].devices[1]: 1 is shared by sharing.timeSlicing.resources[0] already",
        ),
        (
            ["name: gpu, replicas: 2, model: T4", "name: gpu, replicas: 3, model: T4, devices: [3]"],
            "[1]: is never reached: sharing.timeSlicing.resources[0] shares all devices of that name and model 'T4'; "
            f"{REMEDY}",
        ),
        (
            ["name: gpu, replicas: 2, model: T4, distinct: true", "name: gpu, replicas: 3"],
            "[1].name: nvidia.com/gpu is shares of which a container's are not always of different GPUs here, and "
            "shares of which a container's are always of different GPUs in sharing.timeSlicing.resources[0]; "
            "give one of them another name",
        ),
    ],
)
def test_entries_that_get_nothing(entries: list[str], error: str) -> None:
    """An entry that can never have a device is a mistake of who wrote it."""
    lines = "".join(f"\n    - {{{entry}}}" for entry in entries)

    assert errors(f"sharing:\n  timeSlicing:\n    resources:{lines}\n") == [
        f"c.yaml:5: sharing.timeSlicing.resources{error}"
    ]


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

    assert len(resolve(f"sharing: {{timeSlicing: {{resources: [{lines}]}}}}".encode(), "c").sharing.resources) > 1


def test_a_name_must_leave_room_for_shared() -> None:
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

    assert errors(text) == [
        "c.yaml:7: sharing.timeSlicing.resources[0].name: renameByDefault: "
        f"'nvidia.com/{name}.shared' is longer than 63 characters"
    ]


def test_everything_at_once() -> None:
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

    assert [error.split(": ")[0] + " " + error.split(": ")[1] for error in errors(text)] == [
        "c.yaml:1 version",
        "c.yaml:3 flags.migStrategy",
        "c.yaml:4 unknown key 'passDeviceSpec'; did you mean 'passDeviceSpecs'?",
        "c.yaml:4 flags.plugin.deviceListStrategy",
        "c.yaml:7 resources.gpus[0].name",
        "c.yaml:12 sharing.timeSlicing.resources[0].replicas",
        "c.yaml:13 sharing.timeSlicing.resources[0].devices[0]",
        "c.yaml:14 sharing.timeSlicing.resources[1].rename",
        "c.yaml:15 imex.channelIDs",
    ]
