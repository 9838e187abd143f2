"""`gpuplane config`, as people run it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuplane.cli.config import command
from gpuplane.core.config.flags import FLAGS
from gpuplane.core.config.resolve import trace
from gpuplane.core.explanation import explain
from gpuplane.core.health.catalogue import CATALOGUE
from gpuplane.core.health.judge import xid
from gpuplane.model.machine import Fault, Gpu, Machine, Mig, MigDevice

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


def test_explain_shows_every_unit_with_the_line_that_decided(files: tuple[Path, Path]) -> None:
    """Away from a terminal: one line a thing, columns apart by tabs."""
    config, machine = files
    status, out, err = run("explain", config, "--machine", machine)

    assert (status, err) == (0, "")
    strategy, *lines = out.splitlines()
    assert strategy.startswith("strategy\tauto\tcdi-cri where")
    assert lines == [
        "resource\tnvidia.com/half\t2\t2 healthy\tadvised: as many GPUs as there are, the least used first",
        "resource\tnvidia.com/gpu\t1\t0 healthy\tadvised: the GPUs with the best links",
        f"unit\t0\tNVIDIA A100\tnvidia.com/half\t{UUID}0::0…1\tpattern '*A100' ({config}:5), 2 shares ({config}:10)",
        f"unit\t1\tNVIDIA T4\tnvidia.com/gpu\t{UUID}1\ta whole GPU that no pattern matches\tgpu-lost: fell off",
        f"unit\t2\tNVIDIA A100\t-\t{UUID}2\tit is in MIG mode and has no MIG devices",
        f"note\t{config}:6: no model here matches '*H100'",
    ]


def test_explain_as_json_has_all_of_it(files: tuple[Path, Path]) -> None:
    """The explanation and the settings that it explains, with flags laid over the file."""
    status, out, _ = run(
        "explain", files[0], "--machine", files[1], "--json", "--pass-device-specs", "--mig-strategy=none"
    )
    document = json.loads(out)

    assert status == 0
    assert document["explanation"]["resources"]["nvidia.com/half"] == {
        "devices": 2,
        "healthy": 2,
        "advised": "as many GPUs as there are, the least used first",
    }
    assert document["explanation"]["units"][0]["ids"] == [f"{UUID}0::0", f"{UUID}0::1"]
    assert document["resolved"]["settings"]["pass_device_specs"] is True
    assert document["resolved"]["sources"]["mig_strategy"] == "--mig-strategy"
    assert document["resolved"].keys() == {"settings", "sources", "idle", "warnings"}


def test_check_says_all_that_is_wrong_and_its_status(files: tuple[Path, Path], tmp_path: Path) -> None:
    """0 good, 1 wrong; a directory is all files in it, a dash is standard input."""
    config, _ = files
    named = tmp_path / "named"
    named.mkdir()
    (named / "a").write_text(CONFIG)
    (named / "b").write_text("flagz: {}\nversion: v3\n")
    (named / "..data").write_text("{")
    wrong = [
        f"{named}/b:1: unknown key 'flagz'; did you mean 'flags'?",
        f"{named}/b:2: version: 'v3' is not known; this is v1",
    ]

    assert run("check", config) == (0, f"{config}: good\n", "")
    assert run("check", named) == (1, f"{named}/a: good\n", "\n".join(wrong) + "\n")
    assert json.loads(run("check", "--json", named)[1]) == {
        f"{named}/a": {"errors": [], "warnings": [], "notes": []},
        f"{named}/b": {"errors": wrong, "warnings": [], "notes": []},
    }
    status, out, err = run("check", "-", stdin="flags: {failOnInitError: false}")
    assert (status, out) == (0, "-: good\n")
    assert err.startswith("-:1: no effect")


def test_what_is_taken_otherwise_than_written_is_a_warning(files: tuple[Path, Path]) -> None:
    """The file is good, and the line says how to write it; `explain` has it among its notes."""
    config, machine = files
    config.write_text("flags:\n  migstrategy: mixed\n")
    warning = f"{config}:2: flags.migstrategy is taken as flags.migStrategy; write it so"

    assert run("check", config) == (0, f"{config}: good, 1 warning\n", f"{warning}\n")
    assert json.loads(run("check", "--json", config)[1])[str(config)]["warnings"] == [warning]
    assert f"note\t{warning}" in run("explain", config, "--machine", machine)[1].splitlines()


def test_the_flags_that_are_settings_are_those_of_the_agent(files: tuple[Path, Path]) -> None:
    """Each of them, and no other; a list may be given in parts, as there."""
    config, machine = files
    for flag in FLAGS:
        for name in flag.names:
            value = flag.default or (flag.choices[0] if flag.choices else "/x")
            found = CliRunner().invoke(command, ["check", str(config), f"--{name}={value}"])
            assert found.exit_code == (0 if flag.setting else 2), (name, found.output)
    parts = ("--device-list-strategy=envvar", "--device-list-strategy=cdi-cri")
    assert "strategy\tenvvar,cdi-cri\t--device-list-strategy" in run("explain", config, "--machine", machine, *parts)[1]


def test_check_goes_on_after_what_cannot_be_read(files: tuple[Path, Path], tmp_path: Path) -> None:
    """It is one of the things that are wrong, as is a directory with nothing in it."""
    config, machine = files
    none, empty = tmp_path / "none", tmp_path / "empty"
    empty.mkdir()
    missing, nothing = f"{none}: No such file or directory", f"{empty}: a directory without a configuration in it"

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

    assert run("explain", config, "--machine", machine)[::2] == (
        1,
        f"Error: {machine}:2: unknown key 'uid'; did you mean 'uuid'?\n",
    )
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
    - {name: gpu, replicas: 2, model: A, distinct: true}
  memory:
    unit: MiB
    grain: %d
    resources:
    - {name: gpu}
"""


@pytest.mark.parametrize(
    ("grain", "ids", "why"),
    [
        (300, 3, "a whole GPU, 3 shares of 300 MiB (100 MiB left over) (c:11)"),
        (1000, 1, "a whole GPU, 1 share of 1000 MiB (c:11)"),
        (1001, 0, "it has 1000 MiB of memory, and one share is 1001 MiB; make the grain smaller (c:11)"),
    ],
)
def test_shares_are_explained(grain: int, ids: int, why: str) -> None:
    """How many, of what, what is left over, and the line; where none can be, that too."""
    gpus = (A, B.but(memory_mib=1000))
    slices, memory = explain(Machine(gpus=gpus), trace((SHARED % grain).encode(), "c")).units

    assert slices.why == "a whole GPU, 2 shares, each of a container's of another GPU, time slice short (c:6)"
    assert (len(memory.ids), memory.why) == (ids, why)


def test_mps_is_explained_as_if_its_daemons_ran() -> None:
    """What would be: a configuration is not at fault for what does not run yet."""
    text = b"sharing: {mps: {resources: [{name: gpu, replicas: 3}]}}"
    explained = explain(Machine(gpus=(A,)), trace(text, "c"))

    assert explained.resources["nvidia.com/gpu"].healthy == 3
    assert [each.why for each in explained.units] == ["a whole GPU, 3 shares by MPS (c:1)"]
    assert len(explained.notes) == 2
    assert explained.notes[0].startswith(
        "c:1: MPS is shown as if its daemons served; they need the supervisor, gpuplane mps"
    )
    assert explained.notes[1].startswith("c:1: MPS does not isolate")


def test_how_mps_is_set_up_is_shown_where_it_is_said() -> None:
    """By the names of the keys; what is left at its default is not."""
    how = "computeMode: leave, multiUser: true, activeThreadPercentage: 20"
    text = f"sharing: {{mps: {{{how}, resources: [{{name: gpu, replicas: 3}}]}}}}"
    (unit,) = explain(Machine(gpus=(A,)), trace(text.encode(), "c")).units

    assert unit.why == "a whole GPU, 3 shares by MPS, computeMode leave, multiUser, activeThreadPercentage 20 (c:1)"


@pytest.mark.parametrize("machine", ["gpus: []", "gpus:", "{}"])
def test_a_machine_without_gpus_is_no_silence(machine: str, files: tuple[Path, Path]) -> None:
    """Nothing is advertised, and that is said."""
    files[1].write_text(machine + "\n")
    status, out, _ = run("explain", files[0], "--machine", files[1])

    assert status == 0
    assert "note\tthis machine has no GPU, so nothing would be advertised" in out.splitlines()


@pytest.mark.parametrize(
    ("mps", "kept"), [("false", "nothing keeps"), ("true", "an MPS daemon keeps each process, not")]
)
def test_what_keeps_a_container_within_its_memory_is_noted(mps: str, kept: str) -> None:
    """And, where there are several GPUs, what the scheduler does not see."""
    text = f"sharing: {{memory: {{mps: {mps}, resources: [{{name: gpu}}]}}}}"
    one, two = (gpu.but(memory_mib=2048) for gpu in (A, B))

    assert notes(text, one)[0].partition(": ")[2].startswith(kept)
    assert "a container's memory comes from one GPU, 2 GiB at most" in notes(text, one, two)[1]


@pytest.mark.parametrize(
    ("policy", "sharing", "advised"),
    [
        ("distributed", "", "the GPUs with the best links"),
        ("numa", "", "the GPUs with the best links, on as few NUMA nodes as possible (c:1)"),
        (
            "packed",
            "timeSlicing: {resources: [{name: gpu, replicas: 2}]}",
            "as few GPUs as there can be, the most used first (c:1)",
        ),
        (
            "topology",
            "timeSlicing: {resources: [{name: gpu, replicas: 2, distinct: true}]}",
            "as many GPUs as there are, those that lie best (c:1); one of each GPU",
        ),
        ("packed", "memory: {resources: [{name: gpu}]}", "all of the one device where the least is left over"),
    ],
)
def test_what_is_advised_is_explained(policy: str, sharing: str, advised: str) -> None:
    """By the policy, with the line that names it, where it has a say."""
    text = f"flags: {{plugin: {{sharedDevicesAllocationPolicy: {policy}}}}}\nsharing: {{{sharing}}}"
    gpus = tuple(gpu.but(memory_mib=2048) for gpu in (A, B))

    assert [each.advised for each in explain(Machine(gpus=gpus), trace(text.encode(), "c")).resources.values()] == [
        advised
    ]


def notes(text: str, *gpus: Gpu) -> list[str]:
    """What of a configuration does nothing on a machine."""
    return list(explain(Machine(gpus=gpus), trace(text.encode(), "c")).notes)


A, B = Gpu(index=0, uuid="GPU-a", model="A"), Gpu(index=1, uuid="GPU-b", model="B")
CUT = Gpu(
    index=2, uuid="GPU-c", mig=Mig(enabled=True, devices=(MigDevice(uuid="MIG-a", profile="1g", gpu_instance=0),))
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("resources: {gpus: [{pattern: A, name: a}]}", []),
        ("resources: {gpus: [{pattern: C, name: a}]}", ["c:1: no model here matches 'C'"]),
        (
            "resources: {gpus: [{pattern: 'A*', name: a}, {pattern: A, name: b}]}",
            ["c:1: what 'A' matches here is not offered, or goes by a pattern above it"],
        ),
        (
            "resources: {mig: [{pattern: 1g, name: a}]}",
            ["c:1: migStrategy is none, so patterns of resources.mig do nothing"],
        ),
        ("flags: {migStrategy: mixed}\nresources: {mig: [{pattern: 1g, name: a}]}", []),
        (
            "flags: {migStrategy: mixed}\nresources: {mig: [{pattern: 2g, name: a}]}",
            ["c:2: no profile here matches '2g'"],
        ),
        (
            "sharing: {timeSlicing: {resources: [{name: mig-1g, replicas: 2}]}}",
            ["c:1: no device here is named nvidia.com/mig-1g"],
        ),
        ("sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2}]}}", []),
        (
            "sharing: {timeSlicing: {resources: [{name: gpu, model: 'T*', replicas: 2}]}}",
            ["c:1: no device here is named nvidia.com/gpu with a model that matches 'T*'"],
        ),
        (
            "sharing:\n  timeSlicing:\n    resources:\n"
            "    - {name: gpu, replicas: 2, model: 'A*'}\n    - {name: gpu, replicas: 2, model: B}\n"
            "    - {name: gpu, replicas: 3, devices: 2}\n    - {name: gpu, replicas: 3, model: '*A'}\n"
            "    - {name: gpu, replicas: 3, devices: [1, 9]}\n    - {name: gpu, replicas: 1}",
            [
                "c:6: 2 devices of nvidia.com/gpu wanted, 0 here; taken before, by c:4 and c:5: 2",
                "c:7: all that is named nvidia.com/gpu with a model that matches '*A' here is taken before, by c:4",
                "c:8: no device of nvidia.com/gpu here is 9; taken before, by c:5: 1",
                "c:9: all that is named nvidia.com/gpu here is taken before, by c:4 and c:5",
            ],
        ),
        (
            "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, devices: 3, rename: x}]}}",
            ["c:1: 3 devices of nvidia.com/gpu wanted, 2 here"],
        ),
        (
            "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, devices: [1, 5, 2:0], rename: x}]}}",
            ["c:1: no device of nvidia.com/gpu here is 5, 2:0"],
        ),
        (
            "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, devices: [1]}]}}",
            [
                "nvidia.com/gpu has whole devices and shares of others, and a pod cannot choose which it gets; "
                "rename the shares"
            ],
        ),
    ],
)
def test_what_does_nothing_here_is_noted(text: str, expected: list[str]) -> None:
    """Good configuration, but not for this machine: no error, since one file serves many nodes."""
    assert notes(text, A, B, CUT) == expected


RULED = """\
health:
  faults:
    xid-48: {severity: note}
    xid-94: {severity: degraded, patience: 30s}
    xid-95: {severity: unhealthy}
    nvlink-down:
      advice: call Ann
      patience: 1m
"""


@pytest.mark.parametrize(
    ("text", "environment", "expected"),
    [
        ("", {}, []),
        ("", {"DP_DISABLE_HEALTHCHECKS": "13", "DP_ENABLE_HEALTHCHECKS": "79"}, []),
        (
            RULED,
            {},
            [
                (
                    ("nvlink-down",),
                    f"advice 'call Ann' instead of {CATALOGUE['nvlink-down'].advice!r}, patience 60 s instead of 10 s",
                    ("c:6",),
                ),
                (("xid-48",), "severity note instead of unhealthy", ("c:3",)),
                (("xid-94",), "severity degraded instead of unhealthy, patience 30 s instead of 0 s", ("c:4",)),
            ],
        ),
        (
            "health: {faults: {xid-94: {ends: time, lasts: 10m}}}",
            {},
            [(("xid-94",), "ends time instead of process, lasts 600 s", ("c:1",))],
        ),
        (
            "health: {faults: {xid-94: {patience: 30s}}}",
            {"DP_DISABLE_HEALTHCHECKS": "94,48,900", "DP_ENABLE_HEALTHCHECKS": "13"},
            [
                (("xid-13",), "severity unhealthy instead of note", ("DP_ENABLE_HEALTHCHECKS",)),
                (("xid-48", "xid-900"), "severity note instead of unhealthy", ("DP_DISABLE_HEALTHCHECKS",)),
                (
                    ("xid-94",),
                    "severity note instead of unhealthy, patience 30 s instead of 0 s",
                    ("DP_DISABLE_HEALTHCHECKS", "c:1"),
                ),
            ],
        ),
        (
            "",
            {"DP_DISABLE_HEALTHCHECKS": "all", "DP_ENABLE_HEALTHCHECKS": "79"},
            [
                (
                    (*(c for c, e in CATALOGUE.items() if xid(c) not in (None, 79) and e.severity != "note"), "xid-…"),
                    "severity note instead of unhealthy",
                    ("DP_DISABLE_HEALTHCHECKS",),
                )
            ],
        ),
    ],
)
def test_faults_that_are_judged_otherwise_are_explained(
    text: str, environment: dict[str, str], expected: list[tuple[tuple[str, ...], str, tuple[str, ...]]]
) -> None:
    """Which, how, and where it was said; those that are judged as by the catalogue are not in it."""
    explained = explain(Machine(gpus=(A,)), trace(text.encode(), "c", {}, environment))

    assert [(each.codes, each.how, each.said) for each in explained.faults] == expected


def test_the_commands_hear_the_environment(files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """As the agent does: what it says of faults is shown, and the words of it that mean nothing."""
    config, machine = files
    monkeypatch.setenv("DP_DISABLE_HEALTHCHECKS", "48,fourtynine")
    why = "DP_DISABLE_HEALTHCHECKS: passes over 'fourtynine': it takes XIDs (1 to 99999) and all"

    assert run("check", config) == (0, f"{config}: good\n", f"{why}\n")
    lines = run("explain", config, "--machine", machine)[1].splitlines()
    assert "fault\txid-48\tseverity note instead of unhealthy\tDP_DISABLE_HEALTHCHECKS" in lines
    assert f"note\t{why}" in lines


def test_a_machine_without_driver_would_advertise_nothing_yet() -> None:
    """The explanation waits as the agent would, with the reason."""
    away = Machine(faults=(Fault("no-driver", "not loaded"),))

    assert explain(away, trace(None, "c")).waiting == "no-driver: not loaded"
