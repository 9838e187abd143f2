"""Configuration files as they are found on nodes: the smallest change, and back to the byte."""

import difflib
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.golden import Golden
from tests.node.core.runtimes.runs import FILES, copied, run, tree, unchanged, without_parser_words

CHANGED = [
    ("containerd", "debian-1.6.toml", "1.7.24"),
    ("containerd", "kubeadm-1.7.toml", "1.7.24"),
    ("containerd", "runtimes-1.7.toml", "1.7.24"),
    ("containerd", "version-1.toml", "1.7.24"),
    ("containerd", "docker-package-1.7.toml", "1.7.24"),
    ("containerd", "inline-1.7.toml", "1.7.24"),
    ("containerd", "subtables-1.7.toml", "1.7.24"),
    ("containerd", "crlf-1.7.toml", "1.7.24"),
    ("containerd", "empty.toml", "1.7.24"),
    ("containerd", "comments.toml", "1.7.24"),
    ("containerd", "version-3-off.toml", "2.1.4"),
    ("containerd", "directories-2.toml", "2.1.4"),
    ("containerd", "kubeadm-1.7.toml", "2.1.4"),
    ("containerd", "config.toml.tmpl", "1.7.24"),
    ("docker", "docker-features.json", "27.5.1"),
    ("docker", "docker-nvidia.json", "25.0.0"),
    ("docker", "docker-off.json", "28.2.2"),
    ("docker", "docker-directories.json", "27.5.1"),
]
NOTHING = [
    ("containerd", "debian-1.6.toml", "2.0.0"),
    ("containerd", "runtimes-1.7.toml", "2.1.4"),
    ("containerd", "version-1.toml", "2.1.4"),
    ("containerd", "empty.toml", "2.1.4"),
    ("containerd", "version-3.toml", "2.1.4"),
    ("docker", "docker-features.json", "28.2.0"),
    ("docker", "docker-nvidia.json", "29.0"),
]
REFUSED = [
    ("containerd", "broken.toml", "1.7.24", "broken.toml:2: "),
    ("containerd", "twice.toml", "1.7.24", "twice.toml:4: "),
    ("containerd", "text.toml", "1.7.24", "text.toml:3: "),
    ("containerd", "debian-1.6.toml", "1.6.20", " 1.6.20 "),
    ("containerd", "version-3.toml", "1.7.24", "version-3.toml:1: "),
    ("docker", "docker-broken.json", "27.5.1", "docker-broken.json:3: "),
    ("docker", "docker-features.json", "24.0.9", " 24.0.9 "),
]


@pytest.mark.parametrize(("runtime", "name", "version"), CHANGED)
def test_the_smallest_change_and_back_to_the_byte(runtime: str, name: str, version: str, tmp_path: Path) -> None:
    """The file becomes what the golden file beside it is; once more changes nothing; --undo gives the bytes back."""
    file, state = copied(name, tmp_path), tmp_path / "state"
    before = file.read_bytes()
    asked = ("--config", file, "--runtime-version", version, "--state-dir", state)

    assert run(runtime, *asked, "--check").exit_code == 1
    assert run(runtime, *asked, "--dry-run").exit_code == 0
    assert file.read_bytes() == before and not state.exists()

    assert run(runtime, *asked).exit_code == 0
    assert file.read_bytes() == (FILES / f"{name}.expected").read_bytes()

    with unchanged(tmp_path):
        assert run(runtime, *asked, "--check").exit_code == 0
        assert json.loads(run(runtime, *asked, "--json").output)["changes"] == []

    assert run(runtime, "--undo", "--state-dir", state).exit_code == 0
    assert tree(tmp_path) == {name: before, "state/runtimes/lock": b""}


@pytest.mark.parametrize("name", sorted({name for _, name, _ in CHANGED}))
def test_a_golden_file_differs_in_nothing_but_the_key(name: str) -> None:
    """At most one line goes, the one that has the key or a neighbour that needs a comma; those that come are few."""
    before, after = ((FILES / each).read_text().splitlines() for each in (name, f"{name}.expected"))
    lines = [line for line in difflib.ndiff(before, after) if line[0] in "+-"]

    assert sum(line[0] == "-" for line in lines) <= 2
    assert sum(line[0] == "+" for line in lines) <= 5
    assert any("cdi" in line for line in lines if line[0] == "+")


@pytest.mark.parametrize(("runtime", "name", "version"), NOTHING)
def test_nothing_where_nothing_is_needed(runtime: str, name: str, version: str, tmp_path: Path, golden: Golden) -> None:
    """The reason is said, and nothing is written, neither the file nor a memory of it."""
    asked = ("--config", copied(name, tmp_path), "--runtime-version", version, "--state-dir", tmp_path / "state")

    with unchanged(tmp_path):
        done = run(runtime, *asked)
        assert run(runtime, *asked, "--check").exit_code == 0

    assert done.exit_code == 0
    golden(done.output)


@pytest.mark.parametrize(("runtime", "name", "version", "where"), REFUSED)
def test_what_cannot_be_judged_is_left_alone(
    runtime: str, name: str, version: str, where: str, tmp_path: Path, golden: Golden
) -> None:
    """Exit status 1, with file and line or the version; nothing is written."""
    asked = ("--config", copied(name, tmp_path), "--runtime-version", version, "--state-dir", tmp_path / "state")

    with unchanged(tmp_path):
        for more in ((), ("--check",), ("--dry-run",)):
            done = run(runtime, *asked, *more)
            assert done.exit_code == 1
            assert where in done.output
            golden(without_parser_words(done.output), f"{name} {version}")


def test_containerd_reads_the_result_as_it_read_the_file(tmp_path: Path) -> None:
    """Debian's containerd 1.6 takes what becomes of each file; all that it knows is as before."""
    if shutil.which("containerd") is None:
        pytest.skip("no containerd here (Debian: apt install containerd)")
    seen = 0
    for runtime, name, version in CHANGED:
        if runtime != "containerd" or "version = 3" in (FILES / name).read_text() or name.endswith(".tmpl"):
            continue
        file = tmp_path / "config.toml"
        dumps = []
        for each in (name, f"{name}.expected"):
            shutil.copy(FILES / each, file)
            dump = subprocess.run(["containerd", "--config", file, "config", "dump"], capture_output=True, timeout=60)
            assert dump.returncode == 0, (version, each, dump.stderr)
            dumps.append([line for line in dump.stdout.decode().splitlines() if "cdi" not in line])
        assert dumps[0] == dumps[1], name
        seen += 1

    assert seen >= 9
