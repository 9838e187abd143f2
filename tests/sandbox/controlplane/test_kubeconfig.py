"""A context of ours in a file that others use, too."""

import subprocess
from pathlib import Path
from shutil import which
from typing import Any

import pytest
import yaml

from gpuplane.sandbox.controlplane import kubeconfig
from gpuplane.sandbox.controlplane.certificates import KeyPair
from gpuplane.sandbox.controlplane.kubeconfig import (
    InvalidKubeconfig,
    change_file,
    make_kubeconfig,
    merge,
    remove,
    shared_file,
)

OURS = make_kubeconfig("https://127.7.0.1:6443", b"authority", KeyPair(b"certificate", b"key"))
THEIRS = b"""\
# a comment
apiVersion: v1
kind: Config
preferences: {colors: true}
made: 2026-01-01T00:00:00Z
octal: 0123
clusters:
- name: work
  cluster: {server: https://work.example, unknown: [1, 2.50, yes]}
users:
- name: work
  user:
    exec: {apiVersion: client.authentication.k8s.io/v1, command: get-token, args: null}
contexts:
- context: {cluster: work, user: work, namespace: "on"}
  name: work
current-context: work
extensions:
- name: x
  extension: "\\u00e9"
"""


def load(data: bytes) -> Any:
    return yaml.safe_load(data)


def test_what_is_there_stays() -> None:
    """Unknown fields too, and times, numbers and words as they were written."""
    merged, before = merge(THEIRS, OURS), load(THEIRS)
    after = load(merged)

    for key in ("clusters", "users", "contexts"):
        assert after[key][:-1] == before[key]
        assert after[key][-1]["name"] == "gpuplane-sandbox"
    assert after.pop("current-context") == "gpuplane-sandbox"
    assert {key: after[key] for key in after if key not in ("clusters", "users", "contexts")} == {
        key: before[key] for key in before if key not in ("clusters", "users", "contexts", "current-context")
    }
    for written in ("2026-01-01T00:00:00Z", "0123", "2.50", "yes", '"on"'):
        assert written in merged.decode()


def test_ours_is_replaced_and_removed_again() -> None:
    """As often as somebody likes; then no context is current."""
    other = make_kubeconfig("https://127.8.0.1:6443", b"", KeyPair(b"", b""))
    merged = merge(merge(THEIRS, other), OURS)

    assert load(merged) == load(merge(THEIRS, OURS))
    assert load(remove(merged)) == load(THEIRS) | {"current-context": ""}
    assert load(remove(THEIRS)) == load(THEIRS)  # another one is current


@pytest.mark.parametrize("before", [b"", b"\n", b"clusters: null\n", b"apiVersion: v1\nclusters: []\n", b"{}"])
def test_a_new_file_and_one_without_entries(before: bytes) -> None:
    """What is missing is added."""
    assert load(merge(before, OURS)) == load(OURS)


def test_json_is_yaml() -> None:
    """Some kubeconfigs are."""
    merged = load(merge(b'{"apiVersion": "v1", "clusters": [{"name": "a", "cluster": {"server": "b"}}]}', OURS))

    assert [each["name"] for each in merged["clusters"]] == ["a", "gpuplane-sandbox"]


@pytest.mark.parametrize(
    "wrong",
    [
        b"a: [",
        b"\xff",
        b"- a",
        b"text",
        b"clusters: text",
        b"clusters: {a: b}",
        b"users: [a]",
        b"a: b\n---\nc: d",
        b"[" * 100_000,
        b"\0",
    ],
    ids=lambda wrong: str(wrong[:8]),
)
def test_what_is_no_kubeconfig_is_an_error_and_stays(tmp_path: Path, wrong: bytes) -> None:
    """With its path."""
    path = tmp_path / "config"
    path.write_bytes(wrong)
    for change in (lambda data: merge(data, OURS), remove):
        with pytest.raises(InvalidKubeconfig, match=str(path)):
            change_file(path, change)

    assert path.read_bytes() == wrong
    assert [each.name for each in tmp_path.iterdir()] == ["config"]


def test_a_file_keeps_its_mode_and_its_link(tmp_path: Path) -> None:
    """A new one is ours alone, and so is its directory."""
    (tmp_path / "real").write_bytes(THEIRS)
    (tmp_path / "real").chmod(0o640)
    (tmp_path / "link").symlink_to("real")
    change_file(tmp_path / "link", lambda data: merge(data, OURS))
    change_file(tmp_path / "new/config", lambda data: merge(data, OURS))

    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "new/config").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    assert load((tmp_path / "real").read_bytes())["current-context"] == "gpuplane-sandbox"


def test_a_file_that_another_program_changes_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for ever: the lock may be a dead one's."""
    monkeypatch.setattr(kubeconfig, "SECONDS_FOR_LOCK", 0.1)
    path = tmp_path / "config"
    path.write_bytes(THEIRS)
    (tmp_path / "config.lock").touch()
    with pytest.raises(OSError, match="another program changes config"):
        change_file(path, remove)

    assert path.read_bytes() == THEIRS
    assert (tmp_path / "config.lock").exists()


def test_the_file_is_the_one_that_kubectl_would_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several in KUBECONFIG the first that is there."""
    monkeypatch.setenv("HOME", str(tmp_path))
    first, second = tmp_path / "first", tmp_path / "second"
    variables = {"KUBECONFIG": f"{first}:{second}:"}

    assert shared_file({}) == tmp_path / ".kube/config"
    assert shared_file(variables) == second
    second.touch()
    assert shared_file(variables) == second
    first.touch()
    assert shared_file(variables) == first


@pytest.mark.skipif(which("kubectl") is None, reason="kubectl is not installed")
def test_kubectl_reads_it(tmp_path: Path) -> None:
    """Both what we made and what we changed."""
    for name, content, contexts in (
        ("ours", OURS, ["gpuplane-sandbox"]),
        ("merged", merge(THEIRS, OURS), ["gpuplane-sandbox", "work"]),
        ("removed", remove(merge(THEIRS, OURS)), ["work"]),
    ):
        (tmp_path / name).write_bytes(content)
        command = ["kubectl", "config", "get-contexts", "-o", "name", "--kubeconfig", f"{tmp_path}/{name}"]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == contexts
