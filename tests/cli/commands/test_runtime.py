"""What `gpuplane runtime configure` says, remembers and survives."""

import errno
import json
import os
import resource
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gpuplane.cli.commands.runtime import Report, configure
from gpuplane.cli.kit.agent import STATE_DIR
from gpuplane.node.host.runtimes import memories, sources
from tests.golden import Golden
from tests.node.core.runtimes.runs import FILES, copied, run, tree, unchanged

V = ("--runtime-version", "1.7.24")


def test_a_link_stays_and_what_it_leads_to_is_changed(tmp_path: Path, golden: Golden) -> None:
    """Mode and owner stay, too; that it was a link is said."""
    real = copied("kubeadm-1.7.toml", tmp_path)
    real.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(real, 1234, 4321)
    before, link = real.stat(), tmp_path / "config.toml"
    link.symlink_to(real.name)

    done = run("containerd", "--config", link, *V, "--state-dir", tmp_path / "state")

    after = real.stat()
    golden(done.output)
    assert link.is_symlink() and b"enable_cdi = true" in real.read_bytes()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)


def test_what_is_remembered_is_for_nobody_else(tmp_path: Path) -> None:
    """A runtime's file may hold passwords of registries."""
    run("containerd", "--config", copied("kubeadm-1.7.toml", tmp_path), *V, "--state-dir", tmp_path / "state")

    (kept,) = (tmp_path / "state/runtimes").glob("containerd-*.json")
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert stat.S_IMODE(kept.parent.stat().st_mode) == 0o700


def test_what_is_remembered_is_not_the_agents_to_write() -> None:
    """Its container has a directory of the node. What stands here decides what root writes where."""
    (option,) = [each for each in configure.params if each.name == "state_dir"]

    assert isinstance(option.default, Path)
    assert not option.default.is_relative_to(STATE_DIR)
    assert option.envvar != "GPUPLANE_STATE_DIR"


def test_what_somebody_else_could_remember_for_us_is_not_believed(tmp_path: Path, golden: Golden) -> None:
    """It says what root writes where: nothing is written, neither by a change nor on the way back."""
    file, state = copied("kubeadm-1.7.toml", tmp_path), tmp_path / "place/state"
    words = ("--config", file, *V, "--state-dir", state)
    run("containerd", *words)
    state.parent.chmod(0o757)
    with unchanged(tmp_path):
        done = run("containerd", *words, "--undo")
        assert done.exit_code == 1
        golden(done.output)
    state.parent.chmod(0o755)
    assert run("containerd", *words, "--undo").exit_code == 0
    assert file.read_bytes() == (FILES / file.name).read_bytes()


@pytest.mark.timeout(20)
def test_what_is_no_file_is_not_waited_for(tmp_path: Path, golden: Golden) -> None:
    os.mkfifo(tmp_path / "config.toml")
    done = run("containerd", "--config", tmp_path / "config.toml", *V, "--state-dir", tmp_path / "state")
    assert done.exit_code == 1
    golden(done.output)


def test_a_link_beside_the_file_is_not_written_through(tmp_path: Path) -> None:
    """Where others may write into the folder of the file, too."""
    file, other = copied("kubeadm-1.7.toml", tmp_path), tmp_path / "other"
    other.write_text("kept")
    (tmp_path / f".{file.name}.gpuplane").hardlink_to(other)

    assert run("containerd", "--config", file, *V, "--state-dir", tmp_path / "state").exit_code == 0
    assert other.read_text() == "kept"


def test_a_file_that_was_not_there_goes_again(tmp_path: Path, golden: Golden) -> None:
    """Made whole, with its version; removed by --undo."""
    file, state = tmp_path / "etc/config.toml", tmp_path / "state"
    run("containerd", "--config", file, *V, "--state-dir", state)
    assert file.read_text() == 'version = 2\n\n[plugins."io.containerd.grpc.v1.cri"]\n  enable_cdi = true\n'

    golden(run("containerd", "--config", file, "--undo", "--state-dir", state).output)
    assert not file.exists()


def test_undo_in_a_file_that_somebody_has_edited_takes_back_our_part_only(tmp_path: Path, golden: Golden) -> None:
    """Of each kind of change: what they wrote stays, and that this was so is said."""
    state = tmp_path / "state"
    cases = [
        ("containerd", copied("debian-1.6.toml", tmp_path), V, "\n# theirs\n"),
        ("containerd", copied("kubeadm-1.7.toml", tmp_path), V, "\n# theirs\n"),
        (
            "containerd",
            copied("version-3-off.toml", tmp_path),
            ("--runtime-version", "2.1"),
            "\n[debug]\nlevel = 'info'\n",
        ),
        ("docker", copied("docker-features.json", tmp_path), ("--runtime-version", "27"), "\n\n"),
        ("docker", copied("docker-nvidia.json", tmp_path), ("--runtime-version", "27.0"), "\n"),
        ("docker", copied("docker-directories.json", tmp_path), ("--runtime-version", "27.0"), "\n"),
    ]
    for runtime, file, version, theirs in cases:
        before = file.read_text()
        run(runtime, "--config", file, *version, "--state-dir", state)
        file.write_text(file.read_text() + theirs)
        done = run(runtime, "--config", file, "--undo", "--state-dir", state)

        assert (done.exit_code, file.read_text()) == (0, before + theirs), file.name
        golden(done.output, file.name)
        if version[1] == "27":  # no version at all
            continue
        golden(run(runtime, "--config", file, "--undo", "--state-dir", state).output, f"{file.name} once more")


def test_undo_leaves_what_somebody_has_decided_otherwise(tmp_path: Path, golden: Golden) -> None:
    """A key that is not as we left it is theirs."""
    file, state = copied("debian-1.6.toml", tmp_path), tmp_path / "state"
    run("containerd", "--config", file, *V, "--state-dir", state)
    theirs = file.read_text().replace("enable_cdi = true", "enable_cdi = false")
    file.write_text(theirs)

    golden(run("containerd", "--undo", "--state-dir", state).output)
    assert file.read_text() == theirs


def test_undo_after_two_changes_gives_the_bytes_before_both(tmp_path: Path) -> None:
    """A second directory is added later: what is remembered is what was there before us."""
    file, state = copied("kubeadm-1.7.toml", tmp_path), tmp_path / "state"
    before = file.read_bytes()
    run("containerd", "--config", file, *V, "--state-dir", state)
    run("containerd", "--config", file, *V, "--state-dir", state, "--cdi-dir", "/opt/cdi")
    assert b'cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi", "/opt/cdi"]' in file.read_bytes()

    assert run("containerd", "--undo", "--dry-run", "--state-dir", state).output.count("\n+") == 3
    run("containerd", "--undo", "--state-dir", state)
    assert file.read_bytes() == before


def test_nothing_remembered_is_said(tmp_path: Path, golden: Golden) -> None:
    """It is no error: undone is undone."""
    done = run("crio", "--undo", "--state-dir", tmp_path)

    assert done.exit_code == 0
    golden(done.output)


def test_undo_of_a_change_in_another_file_than_the_main_one(tmp_path: Path, golden: Golden) -> None:
    """A drop-in that is named is taken back; where it is not named, it is told that there is one."""
    main, drop_in, state = tmp_path / "config.toml", tmp_path / "conf.d/cdi.toml", tmp_path / "state"
    main.write_text(f'version = 2\nimports = ["{tmp_path}/conf.d/*.toml"]\n')
    asked = ("--config", main, "--state-dir", state)
    run("containerd", *asked, *V, "--drop-in-config", drop_in)
    assert drop_in.exists()

    golden(run("containerd", *asked, "--undo").output, "not named")
    assert drop_in.exists()
    golden(run("containerd", *asked, "--undo", "--drop-in-config", drop_in).output, "named")
    assert not drop_in.exists()


def test_who_only_looks_hears_that_nothing_was_written(tmp_path: Path, golden: Golden) -> None:
    """Otherwise what would be changed reads as if it had been. A real change names its strategy."""
    file = copied("kubeadm-1.7.toml", tmp_path)
    for only in ("--check", "--dry-run"):
        golden(run("containerd", "--config", file, *V, only).output, only)
    golden(run("containerd", "--config", file, *V, "--state-dir", tmp_path / "state").output, "changed")


DIES = """
import os, sys
from gpuplane.node.host.runtimes import memories
written, wrote = [], memories._replace_file
def write(path, data):
    if written:
        os._exit(9)
    wrote(path, data)
    written.append(path)
memories._replace_file = write
from gpuplane.cli import main
sys.argv[1:] = ["runtime", "configure", *sys.argv[1:]]
main()
"""


def test_a_run_that_dies_between_remembering_and_writing(tmp_path: Path, golden: Golden) -> None:
    """The file is as it was, --undo knows that, and the next run does all of it."""
    file, state = copied("kubeadm-1.7.toml", tmp_path), tmp_path / "state"
    before = file.read_bytes()
    asked = ["--runtime", "containerd", "--config", str(file), *V, "--state-dir", str(state)]

    assert subprocess.run([sys.executable, "-c", DIES, *asked], timeout=60).returncode == 9
    assert file.read_bytes() == before and len(list((state / "runtimes").glob("*.json"))) == 1
    golden(run("containerd", "--undo", "--state-dir", state).output)

    assert subprocess.run([sys.executable, "-c", DIES, *asked], timeout=60).returncode == 9
    assert run("containerd", *asked[2:]).exit_code == 0
    assert b"enable_cdi = true" in file.read_bytes()
    run("containerd", "--undo", "--state-dir", state)
    assert file.read_bytes() == before


def test_a_full_disk_changes_nothing(tmp_path: Path) -> None:
    """Exit status 2 and the path; neither half a file nor one beside it."""
    file, state = copied("kubeadm-1.7.toml", tmp_path), tmp_path / "state"
    asked = ["runtime", "configure", "--runtime", "containerd", "--config", str(file), *V, "--state-dir", str(state)]
    before = tree(tmp_path)
    done = subprocess.run(
        [sys.executable, "-B", "-c", "from gpuplane.cli import main; main()", *asked],  # else bytecode is cut off too
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)),
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 1 and os.strerror(errno.EFBIG) in done.stderr and "/state/runtimes/" in done.stderr
    assert tree(tmp_path) == before | {"state/runtimes/lock": b""}


def test_two_at_once(tmp_path: Path, golden: Golden) -> None:
    """The second says so and changes nothing; it does not wait."""
    file, state = copied("kubeadm-1.7.toml", tmp_path), tmp_path / "state"
    with memories.lock_memories(state), unchanged(tmp_path):
        done = run("containerd", "--config", file, *V, "--state-dir", state)

    assert done.exit_code == 1
    golden(done.output)


def test_what_is_no_file(tmp_path: Path) -> None:
    """A pipe, a folder, a link that leads in a circle: named, and not waited for."""
    pipe, circle, file = tmp_path / "pipe", tmp_path / "circle", copied("kubeadm-1.7.toml", tmp_path)
    os.mkfifo(pipe)
    circle.symlink_to(circle)
    for path in (pipe, tmp_path, circle):
        done = run("containerd", "--config", path, *V)
        assert done.exit_code == 1 and str(path) in done.output, done.output

    done = run("containerd", "--config", file, *V, "--state-dir", file)
    assert done.exit_code == 1 and f"{file}/runtimes: {os.strerror(errno.ENOTDIR)}" in done.output


def test_a_memory_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """Neither guessed at nor removed; nor is a folder that cannot be listed taken for an empty one."""
    (state := tmp_path / "state").mkdir()
    (state / "runtimes").write_text("")
    done = run("containerd", "--undo", "--state-dir", state)
    assert (done.exit_code, done.output) == (1, f"Error: {state}/runtimes: {os.strerror(errno.ENOTDIR)}\n")
    kept = tmp_path / "runtimes" / "containerd-0123456789abcdef.json"
    kept.parent.mkdir()
    for text in ("{", '{"version": 1}', '{"version": 9, "memory": {}}'):
        kept.write_text(text)
        done = run("containerd", "--undo", "--state-dir", tmp_path)
        assert done.exit_code == 1 and str(kept) in done.output
        assert kept.read_text() == text


def test_who_is_not_root_is_told_to_be(monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    """Where that is what it takes."""
    for user in (1000, 0):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        with pytest.raises(sources.NodeAccessFailed) as raised, sources.as_node_access_failure("/"):
            raise PermissionError(13, "Permission denied", "/x")
        golden(str(raised.value), f"user {user}")


def test_json(tmp_path: Path) -> None:
    """For programs: status, reason, the diff of each file; errors, too."""
    file = copied("kubeadm-1.7.toml", tmp_path)
    told = json.loads(run("containerd", "--config", file, *V, "--check", "--json").output)
    assert told["status"] == "needed" and told["version"] == "1.7.24" and f"{file}:31 " in told["reason"]
    assert [(each["path"], each["change"]) for each in told["changes"]] == [(str(file), "enable_cdi = true")]
    assert "-    enable_cdi = false\n+    enable_cdi = true\n" in told["changes"][0]["diff"]

    done = run("containerd", "--config", file, "--runtime-version", "1.6", "--json")
    assert done.exit_code == 1 and json.loads(done.output)["status"] == "failed"
    nothing = json.loads(run("containerd", "--config", file, "--runtime-version", "2.1", "--json").output)
    assert told.keys() == nothing.keys() == json.loads(done.output).keys() == set(Report.__struct_fields__)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--set-as-default",),
        ("--nvidia-set-as-default=true",),
        ("--nvidia-runtime-name", "nvidia"),
        ("--nvidia-runtime-path=/usr/bin/nvidia-container-runtime",),
        ("--config-mode=oci-hook",),
        ("--cdi.enabled=false",),
        ("--config-source=command",),
        ("--undo", "--check"),
    ],
)
def test_what_is_not_done_is_refused_with_the_reason(
    arguments: tuple[str, ...], tmp_path: Path, golden: Golden
) -> None:
    """The flags of NVIDIA's command that ask for something else, and what contradicts itself: nothing is written."""
    file = copied("kubeadm-1.7.toml", tmp_path)
    with unchanged(tmp_path):
        done = run("containerd", "--config", file, *arguments)

    assert done.exit_code == 2
    golden(done.output, " ".join(arguments))


@pytest.mark.parametrize("arguments", [("--runtime-version", "newest"), ("--executable-path", "/nowhere/x")])
def test_what_cannot_be_judged_is_said(arguments: tuple[str, ...], tmp_path: Path, golden: Golden) -> None:
    """Nothing is written then."""
    file = copied("kubeadm-1.7.toml", tmp_path)
    with unchanged(tmp_path):
        done = run("containerd", "--config", file, *arguments)

    assert done.exit_code == 1
    golden(done.stderr, " ".join(arguments))


def test_nvidias_flags_that_ask_for_what_is_done_are_taken(tmp_path: Path) -> None:
    """Their command line for CDI works here as it is."""
    file = copied("kubeadm-1.7.toml", tmp_path)
    asked = ("--config", file, "--config-source=file", "--enable-cdi", "--cdi.enabled", "--cdi.enabled=true", *V)

    assert run("containerd", *asked, "--dry-run").exit_code == 0


def test_the_program_is_asked_for_the_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    """As containerd, dockerd and crio say it; one that does not answer is not waited for."""
    program, file = tmp_path / "program", copied("debian-1.6.toml", tmp_path)
    for said, version in (
        ("containerd github.com/containerd/containerd 1.7.24~ds1 1.7.24~ds1-1+deb13u1", "1.7.24"),
        ("containerd github.com/containerd/containerd/v2 v2.1.4 75cb2b7193e4e490e9fbdc236c0e811ccaba3376", "2.1.4"),
        ("containerd github.com/k3s-io/containerd v1.7.23-k3s2 ", "1.7.23"),
        ("containerd containerd.io 1.7.27 05044ec0a9a75232cad458027ca83437aae3f4da", "1.7.27"),
        ("Docker version 28.2.2, build e6534b4", "28.2.2"),
        ("crio version 1.30.4\nVersion: 1.30.4", "1.30.4"),
    ):
        program.write_text(f"#!/bin/sh\ncat <<END\n{said}\nEND\n")
        program.chmod(0o755)
        done = run("containerd", "--config", file, "--executable-path", program, "--check", "--json")
        assert json.loads(done.output)["version"] == version, said

    program.write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(sources, "VERSION_TIMEOUT", 0.2)
    done = run("containerd", "--config", file, "--executable-path", program, "--check")
    assert done.exit_code == 1
    golden(done.output)


def test_docker_that_is_not_here_cannot_be_judged(tmp_path: Path, golden: Golden) -> None:
    """Neither a file nor a version: a file is not made for nobody."""
    with unchanged(tmp_path):
        done = run("docker", "--config", tmp_path / "daemon.json")
        golden(run("docker", "--drop-in-config", tmp_path / "x.json").output)

    assert done.exit_code in (1, 2)


def test_the_agent_does_without_tomlkit() -> None:
    """It is for this command alone."""
    code = "import sys, gpuplane.node.agent.main, gpuplane.cli.commands.agent.main; print('tomlkit' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout == "False\n"
