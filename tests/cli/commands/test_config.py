"""`gpuplane config`, as people run it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuplane.cli.commands.config import command
from gpuplane.node.core.config.flags import FLAGS
from gpuplane.node.core.config.nvidia import differences_from_nvidia
from gpuplane.node.core.config.resolve import resolve_with_sources
from gpuplane.node.core.explanation import explain_node
from gpuplane.node.core.kinds.nvidia.faults import CATALOGUE
from gpuplane.node.core.kinds.nvidia.xids import xid_number
from gpuplane.node.model.machine import Fault, Gpu, Machine, Mig, MigDevice
from tests.golden import Golden
from tests.texts import as_shown

MACHINE = """
driver: {version: 580.95.05}
gpus:
- {index: 0, uuid: GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c160, model: NVIDIA A100}
- index: 1
  uuid: GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c161
  model: NVIDIA T4
  faults: [{code: gpu-lost, message: fell off}]
- index: 2
  uuid: GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c162
  model: NVIDIA A100
  mig: {enabled: true}
"""
CONFIG = """\
flags:
  migStrategy: mixed
resources:
  gpus:
  - {pattern: "*A100", name: a100}
  - {pattern: "*H100", name: h100}
sharing:
  timeSlicing:
    resources:
    - {name: a100, replicas: 2, rename: half}
"""
UUID = "GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16"


def run(*arguments: object, stdin: str = "") -> tuple[int, str, str]:
    """Exit status, standard output and standard error of `gpuplane config …`."""
    command = [sys.executable, "-c", "from gpuplane.cli import main; main()", "config", *map(str, arguments)]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A configuration and a machine."""
    config, machine = tmp_path / "config.yaml", tmp_path / "machine.yaml"
    config.write_text(CONFIG)
    machine.write_text(MACHINE)
    return config, machine


def test_explain_shows_every_unit_with_the_line_that_decided(files: tuple[Path, Path], golden: Golden) -> None:
    """Away from a terminal: one line a thing, columns apart by tabs."""
    config, machine = files
    status, out, err = run("explain", config, "--machine", machine)

    assert (status, err) == (0, "")
    lines = [line.split("\t") for line in out.splitlines()]
    assert [line[:2] for line in lines[:-1]] == [
        ["strategy", "auto"], ["resource", "nvidia.com/half"], ["resource", "nvidia.com/gpu"],
        ["unit", "0"], ["unit", "1"], ["unit", "2"],
    ]  # fmt: skip
    assert lines[-1][0] == "note"
    assert lines[-1][1].startswith(f"{config}:6: ")
    golden(out)


def test_explain_as_json_has_all_of_it(files: tuple[Path, Path], golden: Golden) -> None:
    """The explanation and the settings that it explains, with flags laid over the file."""
    status, out, _ = run(
        "explain", files[0], "--machine", files[1], "--json", "--pass-device-specs", "--mig-strategy=none"
    )
    document = json.loads(out)

    assert status == 0
    half = document["explanation"]["resources"]["nvidia.com/half"]
    assert half == {"devices": 2, "healthy": 2, "preference": half["preference"]}
    golden(half["preference"])
    assert document["explanation"]["units"][0]["ids"] == [f"{UUID}0::0", f"{UUID}0::1"]
    assert document["resolved"]["settings"]["pass_device_specs"] is True
    assert document["resolved"]["sources"]["mig_strategy"] == "--mig-strategy"
    assert document["resolved"].keys() == {"settings", "sources", "ignored_settings", "warnings"}


def test_check_says_all_that_is_wrong_and_its_status(files: tuple[Path, Path], tmp_path: Path) -> None:
    """0 good, 1 wrong; a directory is all files in it, a dash is standard input."""
    config, _ = files
    named = tmp_path / "named"
    named.mkdir()
    (named / "a").write_text(CONFIG)
    (named / "b").write_text("flagz: {}\nversion: v3\n")
    (named / "..data").write_text("{")

    notes = [*differences_from_nvidia(CONFIG.encode(), f"{named}/a")]
    assert len(notes) > 1
    assert run("check", config) == (
        0,
        f"{config}: good\n",
        "".join(f"{each}\n" for each in notes).replace(f"{named}/a", f"{config}"),
    )
    status, out, err = run("check", named)
    assert (status, out) == (1, f"{named}/a: good\n")
    told = err.splitlines()
    assert told[: len(notes)] == notes
    errors = told[len(notes) :]
    assert [error.rpartition("/")[2].split(" ")[0] for error in errors] == ["b:1:", "b:2:"]
    assert json.loads(run("check", "--json", named)[1]) == {
        f"{named}/a": {"errors": [], "warnings": [], "notes": notes},
        f"{named}/b": {"errors": errors, "warnings": [], "notes": []},
    }
    status, out, err = run("check", "-", stdin="flags: {failOnInitError: false}")
    assert (status, out) == (0, "-: good\n")
    assert err.startswith("-:1: no effect")


def test_what_is_read_differently_than_written_is_a_warning(files: tuple[Path, Path]) -> None:
    """The file is good, and the warning has the line; `explain` has it among its notes."""
    config, machine = files
    config.write_text("flags:\n  migstrategy: mixed\n")

    exit_status, out, err = run("check", config)
    assert (exit_status, out) == (0, f"{config}: good, 1 warning\n")
    assert err.startswith(f"{config}:2: flags.migstrategy ")
    assert json.loads(run("check", "--json", config)[1])[str(config)]["warnings"] == [err.rstrip("\n")]
    assert f"note\t{err}" in run("explain", config, "--machine", machine)[1]


def test_the_flags_that_are_settings_are_those_of_the_agent(files: tuple[Path, Path]) -> None:
    """Each of them, and no other; a list may be given in parts, as there."""
    config, machine = files
    for flag in FLAGS:
        for name in flag.names:
            value = flag.default or (flag.choices[0] if flag.choices else "x/y" if flag.value_kind == "taint" else "/x")
            found = CliRunner().invoke(command, ["check", str(config), f"--{name}={value}"])
            assert found.exit_code == (0 if flag.settings_field else 2), (name, found.output)
    parts = ("--device-list-strategy=envvar", "--device-list-strategy=cdi-cri")
    assert "strategy\tenvvar,cdi-cri\t--device-list-strategy" in run("explain", config, "--machine", machine, *parts)[1]


def test_check_goes_on_after_what_cannot_be_read(files: tuple[Path, Path], tmp_path: Path) -> None:
    """It is one of the things that are wrong, as is a directory with nothing in it."""
    config, machine = files
    none, empty = tmp_path / "none", tmp_path / "empty"
    empty.mkdir()
    missing, nothing = f"{none}: No such file or directory", f"{empty}: the directory has no configuration"

    assert run("check", none) == (1, "", f"{missing}\n")
    assert run("check", empty) == (1, "", f"{nothing}\n")
    status, out, _ = run("check", "--json", none, config, machine, empty)
    found = json.loads(out)
    assert status == 1
    assert [found[str(each)]["errors"] for each in (none, config, empty)] == [[missing], [], [nothing]]
    assert found[str(machine)]["errors"][0].startswith(f"{machine}:2: unknown key 'driver'")


def test_explain_refuses_what_it_cannot_read(files: tuple[Path, Path]) -> None:
    """A wrong machine file is told by its line, an unknown profile by those that there are."""
    config, machine = files
    machine.write_text("gpus:\n- {index: 0, uid: x}\n")

    status, _, err = run("explain", config, "--machine", machine)
    assert status == 1
    assert err.startswith(f"Error: {machine}:2: ")
    assert "'uid'" in err
    status, _, err = run("explain", config, "--machine", "dgx-a10")
    assert status == 2
    assert "dgx-a100" in err


def test_a_profile_is_found_by_its_name(files: tuple[Path, Path]) -> None:
    """Eight A100s, two shares each."""
    assert "resource\tnvidia.com/half\t0" not in run("explain", files[0], "--machine", "dgx-a100")[1]


SHARED = """\
flags: {migStrategy: mixed}
sharing:
  timeSlicing:
    timeSlice: short
    resources:
    - {name: gpu, replicas: 2, model: A, distinctGPUs: true}
  memory:
    unit: MiB
    shareSize: %d
    resources:
    - {name: gpu}
"""


@pytest.mark.parametrize(
    ("grain", "ids"),
    [
        (300, 3),
        (1000, 1),
        (1001, 0),
    ],
)
def test_shares_are_explained(grain: int, ids: int, golden: Golden) -> None:
    """How many, of what, what is left over, and the line; where none can be, that too."""
    gpus = (A, B.but(memory_mib=1000))
    slices, memory = explain_node(Machine(gpus=gpus), resolve_with_sources((SHARED % grain).encode(), "c")).units

    assert as_shown(slices.assignment_reason).endswith("(c:6)")
    assert as_shown(memory.assignment_reason).endswith("(c:11)")
    assert len(memory.ids) == ids
    golden([slices.assignment_reason, memory.assignment_reason])


def test_mps_is_explained_as_if_its_daemons_ran(golden: Golden) -> None:
    """What would be: a configuration is not at fault for what does not run yet."""
    text = b"sharing: {mps: {resources: [{name: gpu, replicas: 3}]}}"
    explained = explain_node(Machine(gpus=(A,)), resolve_with_sources(text, "c"))

    assert explained.resources["nvidia.com/gpu"].healthy == 3
    assert [as_shown(note)[:5] for note in explained.notes] == ["c:1: ", "c:1: "]
    golden([*(each.assignment_reason for each in explained.units), *explained.notes])


def test_how_mps_is_set_up_is_shown_where_it_is_said(golden: Golden) -> None:
    """By the names of the keys; what is left at its default is not."""
    how = "computeMode: leave, multiUser: true, activeThreadPercentage: 20"
    text = f"sharing: {{mps: {{{how}, resources: [{{name: gpu, replicas: 3}}]}}}}"
    (unit,) = explain_node(Machine(gpus=(A,)), resolve_with_sources(text.encode(), "c")).units

    assert all(
        key in as_shown(unit.assignment_reason)
        for key in ("computeMode leave", "multiUser", "activeThreadPercentage 20", "c:1")
    )
    golden(unit.assignment_reason)


@pytest.mark.parametrize("machine", ["gpus: []", "gpus:", "{}"])
def test_a_machine_without_gpus_is_no_silence(machine: str, files: tuple[Path, Path], golden: Golden) -> None:
    """Nothing is advertised, and that is said."""
    files[1].write_text(machine + "\n")
    status, out, _ = run("explain", files[0], "--machine", files[1])

    assert status == 0
    [note] = [line for line in out.splitlines() if line.startswith("note\t") and str(files[0]) not in line]
    golden(note, "any")


@pytest.mark.parametrize("mps", ["false", "true"])
def test_what_keeps_a_container_within_its_memory_is_noted(mps: str, golden: Golden) -> None:
    """And, where there are several GPUs, what the scheduler does not see."""
    text = f"sharing: {{memory: {{enforcedByMPS: {mps}, resources: [{{name: gpu}}]}}}}"
    one, two = (gpu.but(memory_mib=2048) for gpu in (A, B))

    assert len(notes(text, one)) < len(notes(text, one, two))
    assert "2 GiB" in notes(text, one, two)[1]
    golden(notes(text, one, two))


@pytest.mark.parametrize(
    ("policy", "sharing"),
    [
        ("distributed", ""),
        ("numa", ""),
        (
            "packed",
            "timeSlicing: {resources: [{name: gpu, replicas: 2}]}",
        ),
        (
            "topology",
            "timeSlicing: {resources: [{name: gpu, replicas: 2, distinctGPUs: true}]}",
        ),
        ("packed", "memory: {resources: [{name: gpu}]}"),
    ],
)
def test_what_is_advised_is_explained(policy: str, sharing: str, golden: Golden) -> None:
    """By the policy, with the line that names it, where it has a say."""
    text = f"flags: {{plugin: {{sharedDevicesAllocationPolicy: {policy}}}}}\nsharing: {{{sharing}}}"
    gpus = tuple(gpu.but(memory_mib=2048) for gpu in (A, B))

    golden(
        each.preference
        for each in explain_node(Machine(gpus=gpus), resolve_with_sources(text.encode(), "c")).resources.values()
    )


def notes(text: str, *gpus: Gpu) -> list[str]:
    """What of a configuration does nothing on a machine."""
    return list(map(as_shown, explain_node(Machine(gpus=gpus), resolve_with_sources(text.encode(), "c")).notes))


A, B = Gpu(index=0, uuid="GPU-a", model="A"), Gpu(index=1, uuid="GPU-b", model="B")
CUT = Gpu(
    index=2, uuid="GPU-c", mig=Mig(enabled=True, devices=(MigDevice(uuid="MIG-a", profile="1g", gpu_instance=0),))
)


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("", []),
        ("resources: {gpus: [{pattern: A, name: a}]}", []),
        ("resources: {gpus: [{pattern: C, name: a}]}", ["c:1"]),
        (
            "resources: {gpus: [{pattern: 'A*', name: a}, {pattern: A, name: b}]}",
            ["c:1"],
        ),
        (
            "resources: {mig: [{pattern: 1g, name: a}]}",
            ["c:1"],
        ),
        ("flags: {migStrategy: mixed}\nresources: {mig: [{pattern: 1g, name: a}]}", []),
        (
            "flags: {migStrategy: mixed}\nresources: {mig: [{pattern: 2g, name: a}]}",
            ["c:2"],
        ),
        (
            "sharing: {timeSlicing: {resources: [{name: mig-1g, replicas: 2}]}}",
            ["c:1"],
        ),
        ("sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2}]}}", []),
        (
            "sharing: {timeSlicing: {resources: [{name: gpu, model: 'T*', replicas: 2}]}}",
            ["c:1"],
        ),
        (
            "sharing:\n  timeSlicing:\n    resources:\n"
            "    - {name: gpu, replicas: 2, model: 'A*'}\n    - {name: gpu, replicas: 2, model: B}\n"
            "    - {name: gpu, replicas: 3, devices: 2}\n    - {name: gpu, replicas: 3, model: '*A'}\n"
            "    - {name: gpu, replicas: 3, devices: [1, 9]}\n    - {name: gpu, replicas: 1}",
            ["c:6", "c:7", "c:8", "c:9"],
        ),
        (
            "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, devices: 3, rename: x}]}}",
            ["c:1"],
        ),
        (
            "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, devices: [1, 5, 2:0], rename: x}]}}",
            ["c:1"],
        ),
        (
            "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, devices: [1]}]}}",
            ["nvidia.com/gpu"],
        ),
    ],
)
def test_what_does_nothing_here_is_noted(text: str, places: list[str], golden: Golden) -> None:
    """Good configuration, but not for this machine: no error, since one file serves many nodes."""
    found = notes(text, A, B, CUT)
    assert [each.partition(": " if each.startswith("c:") else " ")[0] for each in found] == places
    golden(found, text)


RULED = """\
health:
  faults:
    xid-48: {severity: note}
    xid-94: {severity: degraded, gracePeriod: 30s}
    xid-95: {severity: unhealthy}
    nvlink-down:
      advice: call Ann
      gracePeriod: 1m
"""


ALL_XIDS = (
    *(c for c, e in CATALOGUE.items() if xid_number(c) not in (None, 79) and e.severity == "unhealthy"),
    "xid-…",
)


@pytest.mark.parametrize(
    ("text", "environment", "expected"),
    [
        ("", {}, []),
        ("", {"DP_DISABLE_HEALTHCHECKS": "13", "DP_ENABLE_HEALTHCHECKS": "79"}, []),
        (RULED, {}, [(("nvlink-down",), ("c:6",)), (("xid-48",), ("c:3",)), (("xid-94",), ("c:4",))]),
        ("health: {faults: {xid-94: {clearWhen: time-passed, clearAfter: 10m}}}", {}, [(("xid-94",), ("c:1",))]),
        (
            "health: {faults: {xid-94: {gracePeriod: 30s}}}",
            {"DP_DISABLE_HEALTHCHECKS": "94,48,900", "DP_ENABLE_HEALTHCHECKS": "13"},
            [
                (("xid-13",), ("DP_ENABLE_HEALTHCHECKS",)),
                (("xid-48", "xid-900"), ("DP_DISABLE_HEALTHCHECKS",)),
                (("xid-94",), ("DP_DISABLE_HEALTHCHECKS", "c:1")),
            ],
        ),
        (
            "",
            {"DP_DISABLE_HEALTHCHECKS": "all", "DP_ENABLE_HEALTHCHECKS": "79"},
            [(ALL_XIDS, ("DP_DISABLE_HEALTHCHECKS",)), (("xid-63", "xid-92", "xid-157"), ("DP_DISABLE_HEALTHCHECKS",))],
        ),
    ],
    ids=["nothing", "as they are", "rules", "another end", "rules and variables", "all"],
)
def test_faults_that_are_judged_otherwise_are_explained(
    text: str, environment: dict[str, str], expected: list[tuple[tuple[str, ...], tuple[str, ...]]], golden: Golden
) -> None:
    """Which, how, and where it was said; those that are judged as by the catalogue are not in it."""
    explained = explain_node(Machine(gpus=(A,)), resolve_with_sources(text.encode(), "c", {}, environment))

    assert [(each.codes, each.sources) for each in explained.faults] == expected
    golden(f"{each.codes[0]}: {each.change}" for each in explained.faults)


def test_the_commands_hear_the_environment(files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """As the agent does: what it says of faults is shown, and the words of it that mean nothing."""
    config, machine = files
    monkeypatch.setenv("DP_DISABLE_HEALTHCHECKS", "48,fourtynine")
    status, out, err = run("check", config)
    assert (status, out) == (0, f"{config}: good\n")
    assert err.startswith("DP_DISABLE_HEALTHCHECKS: ")
    assert "'fourtynine'" in err
    lines = run("explain", config, "--machine", machine)[1].splitlines()
    assert [(line.split("\t")[1], line.split("\t")[3]) for line in lines if line.startswith("fault\t")] == [
        ("xid-48", "DP_DISABLE_HEALTHCHECKS")
    ]
    assert f"note\t{err.splitlines()[0]}" in lines


def test_a_machine_without_driver_would_advertise_nothing_yet() -> None:
    """The explanation waits as the agent would, with the reason."""
    away = Machine(faults=(Fault("no-driver", "not loaded"),))

    assert explain_node(away, resolve_with_sources(None, "c")).waiting_reason == "no-driver: not loaded"
