"""Where the programs of a control plane are looked for, and what is said where they are not."""

from pathlib import Path

import pytest

from gpuplane.sandbox.controlplane.programs import (
    NAMES,
    ProgramsMissing,
    find_programs,
    own_architecture,
    parse_version,
    program_version,
)


def put(directory: Path, *names: str, said: str = "") -> Path:
    """Programs that say something."""
    directory.mkdir(parents=True)
    for name in names:
        (directory / name).write_text(f"#!/bin/sh\necho '{said}'\n")
        (directory / name).chmod(0o755)
    return directory


def test_whoever_names_a_directory_is_heeded_in_this_order(tmp_path: Path) -> None:
    """The option, our variable, envtest's, what was fetched last."""
    option, ours, theirs = (put(tmp_path / name, *NAMES) for name in ("option", "ours", "theirs"))
    arch = own_architecture()
    for version in ("1.9.0", "1.36.2", "1.36.10"):
        fetched = put(tmp_path / f"cache/gpuplane/control-plane/{version}-linux-{arch}", *NAMES)
    put(tmp_path / "cache/gpuplane/control-plane/1.99.0-linux-other", *NAMES)
    environment = {"XDG_CACHE_HOME": f"{tmp_path}/cache"}

    assert find_programs(None, environment) == fetched
    (put(tmp_path / f"cache/gpuplane/control-plane/1.99.0-linux-{arch}", *NAMES) / "etcd").unlink()
    assert find_programs(None, environment) == fetched
    environment["KUBEBUILDER_ASSETS"] = str(theirs)
    assert find_programs(None, environment) == theirs
    environment["GPUPLANE_CONTROL_PLANE"] = str(ours)
    assert find_programs(None, environment) == ours
    assert find_programs(option, environment) == option


def test_envtests_directory_is_recognised(tmp_path: Path) -> None:
    """It is said what is missing; what was fetched is used rather."""
    few = put(tmp_path / "few", "etcd", "kube-apiserver", "kubectl")
    environment = {"XDG_CACHE_HOME": f"{tmp_path}/cache", "KUBEBUILDER_ASSETS": str(few)}
    for option, variables in ((few, {}), (None, environment)):
        with pytest.raises(ProgramsMissing) as raised:
            find_programs(option, variables)
        assert str(few) in str(raised.value)
        assert "kube-controller-manager and kube-scheduler are missing" in str(raised.value)

    fetched = put(tmp_path / f"cache/gpuplane/control-plane/1.36.2-linux-{own_architecture()}", *NAMES)
    assert find_programs(None, environment) == fetched


@pytest.mark.parametrize("what", ["none", "empty", "file", "unexecutable"])
def test_a_directory_that_is_named_has_to_have_them(tmp_path: Path, what: str) -> None:
    """Nothing else is used in its place."""
    put(tmp_path / f"cache/gpuplane/control-plane/1.36.2-linux-{own_architecture()}", *NAMES)
    put(tmp_path / "empty")
    (tmp_path / "file").write_text("")
    (put(tmp_path / "unexecutable", *NAMES) / "etcd").chmod(0o644)
    environment = {"XDG_CACHE_HOME": f"{tmp_path}/cache"}
    for option, variables in ((tmp_path / what, {}), (None, {"GPUPLANE_CONTROL_PLANE": f"{tmp_path}/{what}"})):
        with pytest.raises(ProgramsMissing, match="sandbox fetch"):
            find_programs(option, environment | variables)


def test_without_any_it_is_said_what_to_type(tmp_path: Path) -> None:
    """A cache that is not there is no error of its own."""
    with pytest.raises(ProgramsMissing, match="`gpuplane sandbox fetch`"):
        find_programs(None, {"XDG_CACHE_HOME": f"{tmp_path}/none"})


async def test_a_program_says_its_version(tmp_path: Path) -> None:
    """As Kubernetes and as etcd say it."""
    put(tmp_path / "a", "kube-apiserver", said="Kubernetes v1.36.2")
    put(tmp_path / "b", "etcd", said="etcd Version: 3.5.30\nGit SHA: 1\nGo Version: go1.26.4")

    assert await program_version(tmp_path / "a", "kube-apiserver") == "1.36.2"
    assert await program_version(tmp_path / "b", "etcd") == "3.5.30"


@pytest.mark.parametrize(
    "content", [b"\x7fELF\2\1\1" + bytes(100), b"#!/bin/sh\necho soon\n", b"#!/bin/sh\nyes\n", b""]
)
async def test_one_that_does_not_run_here_is_an_error(tmp_path: Path, content: bytes) -> None:
    """Of another machine, of another kind, without an end."""
    put(tmp_path / "a", "etcd")
    (tmp_path / "a/etcd").write_bytes(content)

    with pytest.raises(ProgramsMissing, match="a/etcd does not run here"):
        await program_version(tmp_path / "a", "etcd")


def test_versions_are_numbers() -> None:
    """They are compared."""
    assert parse_version("v1.36.10-rc.1") == (1, 36, 10)
    for wrong in ("", "v1.36", "one"):
        with pytest.raises(ValueError, match="no version"):
            parse_version(wrong)
