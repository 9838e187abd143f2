"""`gpuplane cdi list`, `validate` and `explain`: what a person and a program read."""

import json
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gpuplane.cli.commands.cdi import command
from gpuplane.node.core.advertising import offer
from gpuplane.node.model.control import ControlResponse, NodeState
from gpuplane.node.model.encoding import encode
from gpuplane.node.model.machine import Machine
from gpuplane.node.model.snapshot import Snapshot
from tests.cli.terminals import run_command
from tests.golden import Golden

DATA = Path(__file__).parents[3] / "node/core/containers/registry/testdata"
BAD = "cdiVersion: 0.3.0\nkind: nvidia.com/gpu\ndevices:\n- name: '0'\n  containerEdits: {env: [A]}\n"


def cdi(*arguments: object, **options: Any) -> Result:
    return CliRunner().invoke(command, list(map(str, arguments)), **options)


def shown(*arguments: object) -> str:
    """What a person sees at a wide terminal, without colours."""
    plain = {"TERM": "dumb", "NO_COLOR": "1"}
    done = run_command("cdi", *arguments, columns=400, apart=False, environment=plain)
    assert done.status in (0, 1)
    return done.out


@pytest.fixture
def crowd(tmp_path: Path) -> Path:
    """Two directories: NVIDIA's file, twice in the first; a broken one and one of another kind in the second."""
    for name, source in {"a/x.yaml": "nvidia.yaml", "a/y.yaml": "nvidia.yaml", "b/z.json": "foreign.json"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((DATA / source).read_bytes())
    (tmp_path / "b/bad.yaml").write_text(BAD)
    return tmp_path


def test_names_are_listed_and_what_is_wrong_stands_beside(crowd: Path, golden: Golden) -> None:
    """Problems and conflicts on standard error, sorted names on standard output, and the exit status is 0."""
    listed = cdi("list", "--spec-dir", crowd / "a", "--spec-dir", crowd / "b")

    assert listed.exit_code == 0
    assert listed.stdout == "accelerators.example.com/npu.v2=npu:0\n"
    problem, conflict = listed.stderr.splitlines()
    assert problem.startswith(f"{crowd}/b/bad.yaml:1: cdiVersion: ")
    assert all(each in conflict for each in (f"{crowd}/a/x.yaml", f"{crowd}/a/y.yaml", "nvidia.com/gpu=all"))
    golden(listed.stderr)


def test_a_list_for_programs(crowd: Path) -> None:
    """One document, with the file of each device; nothing on standard error."""
    listed = cdi("list", "--json", "--spec-dir", crowd / "a", "--spec-dir", crowd / "b")
    document = json.loads(listed.stdout)

    assert listed.stderr == ""
    assert document["devices"] == {"accelerators.example.com/npu.v2=npu:0": f"{crowd}/b/z.json"}
    assert document["conflicts"]["nvidia.com/gpu=0"] == [f"{crowd}/a/x.yaml", f"{crowd}/a/y.yaml"]
    assert list(document["problems"]) == [f"{crowd}/b/bad.yaml"]


def test_the_directories_may_stand_in_the_environment(crowd: Path) -> None:
    """In NVIDIA's variable, with commas between; what is said on the command line comes before it."""
    env = {"NVIDIA_CTK_CDI_SPEC_DIRS": f"{crowd}/nowhere, {DATA},"}

    assert len(cdi("list", env=env).stdout.splitlines()) == 4
    assert cdi("list", "--spec-dir", crowd / "b", env=env).stdout == "accelerators.example.com/npu.v2=npu:0\n"


def test_a_list_at_a_terminal(crowd: Path, golden: Golden) -> None:
    """With the file of each; and where nothing is defined, that is said."""
    golden((line.rstrip() for line in shown("list", "--spec-dir", crowd / "b").splitlines()), "one directory")
    golden(shown("list", "--spec-dir", crowd / "c"), "no directory")
    golden(shown("list", "--spec-dir", crowd / "a").splitlines()[-1], "conflicts alone")


def test_a_list_of_nothing_says_where_it_looked(crowd: Path, golden: Golden) -> None:
    """On standard error; standard output stays empty. A document has empty parts, and the directories."""
    (crowd / "empty").mkdir()
    where = [word for each in ("empty", "none", "b") for word in ("--spec-dir", str(crowd / each))]
    (crowd / "b/z.json").unlink()
    listed, document = cdi("list", *where), cdi("list", "--json", *where)

    assert (listed.exit_code, listed.stdout) == (0, "")
    [where_it_looked] = listed.stderr.splitlines()[1:]
    assert all(f"{crowd}/{each} " in where_it_looked for each in ("empty", "none", "b"))
    golden(where_it_looked)
    assert document.stderr == ""
    found = json.loads(document.stdout)
    assert (found["devices"], found["conflicts"]) == ({}, {})
    assert found["directories"] == [str(crowd / each) for each in ("empty", "none", "b")]


def test_good_files_are_told_what_they_define(golden: Golden) -> None:
    """And which version would have been enough; standard input is a file too."""
    plain = (DATA / "nvidia.yaml").read_bytes().replace(b"cdiVersion: 0.5.0", b"cdiVersion: 1.0.0")
    judged = cdi("validate", DATA / "foreign.json", "-", input=plain)

    assert (judged.exit_code, judged.stderr) == (0, "")
    assert [line.split(": ")[:2] for line in judged.stdout.splitlines()] == [
        [f"{DATA}/foreign.json", "good"],
        ["-", "good"],
    ]
    golden(judged.stdout)


def test_a_wrong_file_is_told_with_lines(tmp_path: Path, golden: Golden) -> None:
    """Status 1; whether runtimes refuse it whole, or only stumble over it."""
    refused, careless = tmp_path / "r.yaml", tmp_path / "c.json"
    refused.write_text(BAD)
    careless.write_text(
        '{"cdiVersion": "0.3.0", "kind": "nvidia.com/gpu",\n"devices": [{"name": "a",\n'
        '"containerEdits": {"hooks": [{"hookName": "prestart", "path": "x"}]}}]}'
    )
    judged = cdi("validate", refused, careless)

    assert (judged.exit_code, judged.stdout) == (1, "")
    assert [line.split(": ")[0] for line in judged.stderr.splitlines()] == [
        f"{refused}:1", f"{refused}:5", f"{refused}", f"{careless}:3", f"{careless}"
    ]  # fmt: skip
    golden(judged.stderr)


def test_a_file_that_cannot_be_read_is_no_good_one(tmp_path: Path, golden: Golden) -> None:
    """Also beside good and wrong ones, which are judged all the same."""
    (tmp_path / "wrong.yaml").write_text(BAD)
    judged = cdi("validate", tmp_path / "none.yaml", DATA / "nvidia.yaml", tmp_path / "wrong.yaml", tmp_path)

    assert judged.exit_code == 1
    assert judged.stdout.startswith(f"{DATA}/nvidia.yaml: ")
    assert judged.stdout.count("\n") == 1
    assert judged.stderr.splitlines()[0].startswith(f"{tmp_path}/none.yaml: ")
    assert judged.stderr.splitlines()[-1].startswith(f"{tmp_path}: ")
    golden(judged.stderr)
    assert cdi("validate").exit_code == 2


def test_programs_are_told_how_files_stand(tmp_path: Path) -> None:
    """Each file with its mistakes, and the same status; standard error is left alone."""
    (tmp_path / "wrong.yaml").write_text(BAD)
    judged = cdi("validate", "--json", DATA / "nvidia.yaml", tmp_path / "wrong.yaml", tmp_path / "none.yaml")

    assert (judged.exit_code, judged.stderr) == (1, "")
    good, wrong, none = json.loads(judged.stdout)["files"]
    assert good == {
        "file": f"{DATA}/nvidia.yaml", "state": "good", "errors": [], "refused": False,
        "kind": "nvidia.com/gpu", "devices": 3, "version": "0.5.0", "sufficient_version": "0.5.0",
    }  # fmt: skip
    assert (wrong["state"], wrong["refused"], len(wrong["errors"])) == ("wrong", True, 2)
    assert (none["state"], len(none["errors"])) == ("unreadable", 1)
    assert none["errors"][0].startswith(f"{tmp_path}/none.yaml: ")


def test_what_a_container_gets_is_told_line_by_line(golden: Golden) -> None:
    """Whose gift each thing is, what it is for, and what hooks do; two devices together."""
    told = cdi("explain", "nvidia.com/gpu=1", "nvidia.com/gpu=all", "--spec-dir", DATA)
    lines = told.stdout.splitlines()

    assert (told.exit_code, told.stderr) == (0, "")
    assert [line.split("\t")[:3] for line in lines[:2]] == [
        ["device", f"nvidia.com/gpu={name}", f"{DATA}/nvidia.yaml"] for name in ("1", "all")
    ]
    givers = {(line.split("\t")[0], line.split("\t")[1]): line.split("\t")[3] for line in lines if line.count("\t") > 2}
    assert givers["node", "/dev/nvidiactl"] == "nvidia.com/gpu"
    assert givers["node", "/dev/nvidia1"] == "nvidia.com/gpu=all"
    assert givers["env", "NVIDIA_VISIBLE_DEVICES=void"] == "nvidia.com/gpu"
    assert "mount\t/usr/bin/nvidia-smi\t(ro,nosuid,nodev,rbind,rprivate)\tnvidia.com/gpu" in lines
    assert "hook\t/usr/bin/nvidia-cdi-hook\tcreateContainer\tnvidia.com/gpu" in lines
    golden(told.stdout)


def test_a_device_that_cannot_be_resolved_is_told_with_what_to_do(crowd: Path, golden: Golden) -> None:
    """Status 1; what the others give is told beside it."""
    told = cdi("explain", "nvidia.com/gpu=0", "npu:0", "--spec-dir", crowd / "a", "--spec-dir", crowd / "b")

    assert told.exit_code == 1
    assert [line.split("\t")[:2] for line in told.stdout.splitlines()] == [
        ["unresolvable", "nvidia.com/gpu=0"],
        ["unresolvable", "npu:0"],
    ]
    golden(told.stdout)


def test_a_device_of_several_directories_is_that_of_the_last(crowd: Path, golden: Golden) -> None:
    """And which files it has priority over is told."""
    (crowd / "a/y.yaml").unlink()
    (crowd / "b/new.yaml").write_text(BAD.replace("0.3.0", "0.5.0").replace("[A]", "[A=1]"))
    directories = ("--spec-dir", crowd / "a", "--spec-dir", crowd / "b")
    device, env = cdi("explain", "nvidia.com/gpu=0", *directories).stdout.splitlines()
    assert device.split("\t")[:3] == ["device", "nvidia.com/gpu=0", f"{crowd}/b/new.yaml"]
    assert device.split("\t")[4] == f"{crowd}/a/x.yaml"
    assert env == "env\tA=1\t\tnvidia.com/gpu=0"
    golden([device, shown("explain", "nvidia.com/gpu=0", *directories).splitlines()[1]])


KIND = "k8s.device-plugin.nvidia.com/gpu"


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Path]:
    """The state directory of an agent that has left out a link, two files and a socket; beside its specification."""
    theirs = dict.fromkeys(("/usr/lib/a.so", "/usr/lib/b.so"), "/usr/lib is writable by its group")
    left = {"/tmp/nvidia-mps": "/tmp/nvidia-mps is owned by uid 65534", **theirs}
    snapshot = Snapshot(machine=Machine(gpus=(), insecure_files=left))
    said = encode(ControlResponse(state=NodeState(snapshot, offer(snapshot), 0.0))) + b"\n"

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.rfile.readline()
            self.wfile.write(said)

    document = {"cdiVersion": "0.5.0", "kind": KIND, "devices": [{"name": "GPU-a", "containerEdits": {"env": ["A=1"]}}]}
    (tmp_path / "ours.json").write_text(json.dumps(document))
    with socketserver.ThreadingUnixStreamServer(str(tmp_path / "control.sock"), Handler) as server:
        threading.Thread(target=server.serve_forever).start()
        yield tmp_path
        server.shutdown()


def test_what_the_agent_leaves_out_is_told(agent: Path, golden: Golden) -> None:
    """With its own devices, as it sees the machine now: what could be there, and why it is not."""
    asked = ("explain", f"{KIND}=GPU-a", "--spec-dir", agent, "--state-dir", agent)
    told = cdi(*asked)

    assert (told.exit_code, told.stderr) == (0, "")
    assert [line.split("\t")[:2] for line in told.stdout.splitlines()[2:]] == [
        ["left out", "/tmp/nvidia-mps"],
        ["left out", "/usr/lib/a.so"],
        ["left out", "/usr/lib/b.so"],
    ]
    golden(told.stdout.splitlines()[2:], "for programs")
    golden(shown(*asked).splitlines()[-3:], "at a terminal")
    assert list(json.loads(cdi(*asked, "--json").stdout)["insecure_files"]) == [
        "/tmp/nvidia-mps",
        "/usr/lib/a.so",
        "/usr/lib/b.so",
    ]


def test_without_its_agent_what_is_left_out_is_not_known(agent: Path) -> None:
    """Which is told, once; other devices are none of its."""
    (agent / "foreign.json").write_bytes((DATA / "foreign.json").read_bytes())
    nowhere = ("--spec-dir", agent, "--state-dir", agent / "nowhere")
    told = cdi("explain", f"{KIND}=GPU-a", *nowhere)

    assert told.exit_code == 0
    assert f"{agent}/nowhere/" in told.stderr
    for other in ("accelerators.example.com/npu.v2=npu:0", f"{KIND}=GPU-b"):
        assert cdi("explain", other, *nowhere).stderr == ""
    assert json.loads(cdi("explain", f"{KIND}=GPU-a", *nowhere, "--json").stdout)["insecure_files"] is None


def test_files_that_count_for_nothing_are_told(crowd: Path) -> None:
    """They may be what somebody wonders about."""
    told = cdi("explain", "accelerators.example.com/npu.v2=npu:0", "--spec-dir", crowd / "b")

    assert told.exit_code == 0
    assert told.stderr.startswith(f"{crowd}/b/bad.yaml:1: cdiVersion: ")


def test_an_explanation_for_programs() -> None:
    """The devices, each thing that a container gets, and the edits as CDI has them. Every key is always there."""
    document = json.loads(cdi("explain", "--json", "nvidia.com/gpu=0", "--spec-dir", DATA).stdout)

    assert document["devices"] == [
        {
            "name": "nvidia.com/gpu=0",
            "file": f"{DATA}/nvidia.yaml",
            "version": "0.5.0",
            "version_features": ["a name that begins with a digit"],
            "overridden_files": [],
            "problem": "",
        }
    ]
    assert (document["insecure_files"], document["problems"]) == ({}, {})
    assert {piece["kind"] for piece in document["edit_explanations"]} == {"node", "env", "mount", "hook"}
    assert document["edits"]["deviceNodes"][4] == {"path": "/dev/nvidia0"}


def test_an_explanation_at_a_terminal(golden: Golden) -> None:
    """By sort and by giver; mounts by their folders."""
    seen = shown("explain", "accelerators.example.com/npu.v2=npu:0", "nvidia.com/gpu=2", "--spec-dir", DATA)

    assert [line for line in seen.splitlines() if line.startswith("    /dev/")] == [
        "    /dev/npu0  c 240:0, on the host /dev/accel/npu0, rw"
    ]
    golden(seen)


def test_names_are_not_broken_at_a_terminal(tmp_path: Path) -> None:
    """People copy them."""
    name = f"nvidia.com/gpu={'x' * 90}"
    (tmp_path / "x.yaml").write_text(
        f"cdiVersion: 0.3.0\nkind: nvidia.com/gpu\ndevices:\n- name: {'x' * 90}\n  containerEdits: {{env: [A=1]}}\n"
    )
    assert f"\n  with {name}\n" in shown("explain", name, "--spec-dir", tmp_path)


def test_nothing_that_a_terminal_would_obey_is_shown(tmp_path: Path) -> None:
    """Whatever stands in a file: a line stays a line."""
    bad = "\x1b[31m\n\tnode\t/x"
    edits = {
        "env": [f"A={bad}"],
        "hooks": [{"hookName": "prestart", "path": "/a", "args": ["a", bad]}],
        "mounts": [{"hostPath": f"/{bad}", "containerPath": f"/{bad}"}],
    }
    document = {"cdiVersion": "0.5.0", "kind": "lab.io/dev", "devices": [{"name": "a", "containerEdits": edits}]}
    (tmp_path / "a.json").write_text(json.dumps(document))
    asked = ("explain", "lab.io/dev=a", "--spec-dir", tmp_path)

    for told in (cdi(*asked).stdout, shown(*asked)):
        assert "\x1b" not in told
        assert not [line for line in told.splitlines() if line.startswith("node")]
    assert len(cdi(*asked).stdout.splitlines()) == 5
