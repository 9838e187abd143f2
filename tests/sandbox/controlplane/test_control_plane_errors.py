"""What keeps a control plane from starting: one clear error. Scripts stand in for the programs."""

import asyncio
import json
import shutil
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuplane.sandbox.controlplane import controlplane, supervision
from gpuplane.sandbox.controlplane.certificates import Authority
from gpuplane.sandbox.controlplane.controlplane import ControlPlane, ControlPlaneError
from gpuplane.sandbox.controlplane.network import Network, choose_network
from gpuplane.sandbox.controlplane.programs import NAMES, ProgramsMissing


@pytest.fixture
def network() -> Iterator[Network]:
    """Of a cluster of our own."""
    found = choose_network()
    yield found
    found.close()


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """They say their versions, and end as soon as they start."""
    monkeypatch.setattr(supervision, "BACKOFF", (0.01, 0.01))
    folder = tmp_path / "programs"
    folder.mkdir()
    for name in NAMES:
        version = "etcd Version: 3.5.30" if name == "etcd" else "Kubernetes v1.36.2"
        words = f"#!/bin/sh\nif [ $1 = --version ]; then echo '{version}'; else echo {name} has no luck; exit 1; fi\n"
        (folder / name).write_text(words)
        (folder / name).chmod(0o755)
    return folder


@asynccontextmanager
async def started(state: Path, programs: Path, network: Network, **more: Any) -> AsyncIterator[ControlPlane]:
    async with ControlPlane(state, programs, Authority.load_or_make(state / "pki"), network, **more) as found:
        yield found


async def error_of(state: Path, programs: Path, network: Network, **more: Any) -> str:
    """What is said."""
    with pytest.raises(ControlPlaneError) as raised:
        async with started(state, programs, network, **more):
            pass
    return str(raised.value)


async def test_a_program_that_cannot_run(tmp_path: Path, programs: Path, network: Network) -> None:
    """Its last words are in the error, and nothing is left running."""
    said = await error_of(tmp_path / "state", programs, network)

    assert "has no luck" in said
    assert f"{tmp_path}/state/logs/" in said
    assert len(asyncio.all_tasks()) == 1
    assert not [path for path in (tmp_path / "state").iterdir() if path.is_socket()]


async def test_a_port_that_is_taken(tmp_path: Path, programs: Path, network: Network) -> None:
    """Also by one who listens at every address. One that nobody has chosen is another one then."""
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        said = await error_of(tmp_path / "state", programs, network, port=port)

    assert f"port {port} of {network.control_plane} is taken" in said


async def test_a_full_disk(tmp_path: Path, programs: Path, network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything starts."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=100 << 20))

    assert "has 100 MB left" in await error_of(tmp_path / "state", programs, network)


async def test_a_directory_of_others(tmp_path: Path, programs: Path, network: Network) -> None:
    """Whoever can put files there is the administrator. It is left as it is."""
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(0o1777)
    authority = Authority.load_or_make(tmp_path / "pki")
    with pytest.raises(ControlPlaneError, match="others could change the cluster"):
        async with ControlPlane(state, programs, authority, network):
            pass

    assert state.stat().st_mode & 0o7777 == 0o1777
    assert list(state.iterdir()) == []


async def test_a_directory_that_is_a_file(tmp_path: Path, programs: Path, network: Network) -> None:
    """With its path."""
    (tmp_path / "file").touch()
    authority = Authority.load_or_make(tmp_path / "pki")
    with pytest.raises(OSError, match="file"):
        async with ControlPlane(tmp_path / "file/state", programs, authority, network):
            pass


@pytest.mark.parametrize(("name", "version"), [("etcd", "3.6.1"), ("kube-apiserver", "1.37.0"), ("etcd", "4.0.0")])
async def test_what_a_newer_program_has_written(
    tmp_path: Path, programs: Path, network: Network, name: str, version: str
) -> None:
    """It is not touched; without it the cluster may start."""
    state = tmp_path / "state"
    state.mkdir()
    versions = {"etcd": "3.5.30", "kube-apiserver": "1.36.2"} | {name: version}
    (state / "etcd-versions.json").write_text(json.dumps(versions))
    said = await error_of(state, programs, network)

    assert f"{state}/etcd was written by {name} {version}" in said
    assert not (state / "logs/etcd.log").exists()
    assert "has no luck" in await error_of(state, programs, network, kept=False)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"etcd": 1, "kube-apiserver": []}', '{"etcd": "3.4.1"}', "\0"])
async def test_versions_that_are_older_or_unknown(
    tmp_path: Path, programs: Path, network: Network, content: str
) -> None:
    """etcd will say."""
    state = tmp_path / "state"
    state.mkdir()
    (state / "etcd-versions.json").write_text(content)

    assert "has no luck" in await error_of(state, programs, network)


async def test_what_is_no_program(tmp_path: Path, programs: Path, network: Network) -> None:
    """Of another machine."""
    (programs / "etcd").write_bytes(b"\x7fELF")
    with pytest.raises(ProgramsMissing, match="does not run here"):
        async with started(tmp_path / "state", programs, network):
            pass


async def test_it_does_not_wait_for_ever(
    tmp_path: Path, programs: Path, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs that run and never answer."""
    monkeypatch.setattr(controlplane, "SECONDS_TO_START", 0.3)
    for name in NAMES:
        (programs / name).write_text((programs / name).read_text().replace("exit 1", "exec sleep 60"))
    said = await error_of(tmp_path / "state", programs, network)

    assert "not ready after 0.3 s" in said


async def test_keys_are_ours_alone(tmp_path: Path, programs: Path, network: Network) -> None:
    """And so is what the programs make."""
    state = tmp_path / "state"
    (programs / "etcd").write_text((programs / "etcd").read_text().replace("exit 1", "umask > umask; exit 1"))
    await error_of(state, programs, network)

    assert (state / "umask").read_text() == "0077\n"
    assert {path.stat().st_mode & 0o777 for path in (state, state / "pki", state / "logs")} == {0o700}
    keys = [*state.glob("*.json"), state / "kubeconfig", *state.glob("pki/*.pem"), *state.glob("pki/*.kubeconfig")]
    assert len(keys) == 14
    assert {path.stat().st_mode & 0o777 for path in keys} == {0o600}


async def test_data_that_is_not_kept_is_elsewhere(tmp_path: Path, programs: Path, network: Network) -> None:
    """And never that of a cluster that is."""
    state = tmp_path / "state"
    for name in ("etcd", "etcd-temporary"):
        (state / name).mkdir(parents=True)
    await error_of(state, programs, network, kept=False)

    assert (state / "etcd").exists()
    assert not (state / "etcd-temporary").exists()
