"""Our own image's command as a process of this machine: its paths, its address, its machine."""

import sys
from pathlib import Path, PurePosixPath

import pytest

from gpuplane.sandbox.node.environment import Variable
from gpuplane.sandbox.node.ownimage import (
    SERVICE_ACCOUNT,
    HostPaths,
    Site,
    is_own_image,
    make_process,
    make_rootfs,
    own_command,
)

HOST = HostPaths(Path("/s/tree"), Path("/l/1"), Path("/s/run"), Path("/s/machine.yaml"))
SITE = Site(HOST, "127.2.1.7", Path("/s/run/uid/agent"), Path("/s/run/uid/kubeconfig"))
MOUNTS = {
    "/var/lib/kubelet/device-plugins": Path("/l/1/device-plugins"),
    "/var/lib/kubelet/plugins": Path("/l/1/plugins"),
    "/var/lib/gpuplane": Path("/s/tree/var/lib/gpuplane"),
    "/etc/gpuplane/configs": Path("/s/run/uid/volumes/configs"),
}


def argument(text: str, mounts: dict[str, Path] = MOUNTS) -> str:
    [found] = make_process(["gpuplane", text], {}, mounts, SITE).command[3:]
    return found


@pytest.mark.parametrize(
    ("text", "real"),
    [
        ("--kubelet-root=/var/lib/kubelet", "--kubelet-root=/l/1"),
        ("/var/lib/kubelet/plugins/gpu", "/l/1/plugins/gpu"),
        ("--state-dir=/var/lib/gpuplane", "--state-dir=/s/tree/var/lib/gpuplane"),
        ("--config=/etc/gpuplane/configs/default", "--config=/s/run/uid/volumes/configs/default"),
        ("--config=/etc/gpuplane", "--config=/s/run/uid/agent/etc/gpuplane"),
        ("--hook-path=/opt/gpuplane/bin/hook", "--hook-path=/opt/gpuplane/bin/hook"),
        ("--root=/", "--root=/"),
        ("--metrics-address=0.0.0.0:9410", "--metrics-address=127.2.1.7:9410"),
        ("--metrics-address=:9410", "--metrics-address=127.2.1.7:9410"),
        ("--metrics-address=127.0.0.1:9410", "--metrics-address=127.0.0.1:9410"),
        ("--machine=nvml", "--machine=/s/machine.yaml"),
        ("--machine=t4", "--machine=t4"),
    ],
)
def test_what_is_a_path_in_the_container_is_where_it_lies(text: str, real: str) -> None:
    assert argument(text) == real


def test_arguments_refer_to_the_environment_which_has_paths_too() -> None:
    environment = {"CDI_DIR": Variable("/var/lib/gpuplane/cdi"), "LEVEL": Variable("1")}
    process = make_process(["gpuplane", "agent", "--cdi-dir=$(CDI_DIR)"], environment, MOUNTS, SITE)
    assert process.command == [sys.executable, "-m", "gpuplane", "agent", "--cdi-dir=/s/tree/var/lib/gpuplane/cdi"]
    assert process.environment == {"CDI_DIR": "/s/tree/var/lib/gpuplane/cdi", "LEVEL": "1"}


def test_the_agent_finds_the_api_server_by_its_service_account() -> None:
    mounts = {**MOUNTS, SERVICE_ACCOUNT: Path("/s/run/uid/volumes/token")}
    found = f"--kubeconfig={SITE.kubeconfig}"
    assert make_process(["gpuplane", "agent"], {}, mounts, SITE).command[-1] == found
    assert make_process(["gpuplane", "cdi", "list"], {}, mounts, SITE).command[-1] == "list"


@pytest.mark.parametrize(
    ("image", "is_ours"),
    [
        ("gpuplane:0.1.0", True),
        ("registry.example:5000/team/gpuplane@sha256:00", True),
        ("gpuplane", True),
        ("gpuplane/other:1", False),
        ("gpuplane-test", False),
    ],
)
def test_an_image_is_ours_by_its_name(image: str, is_ours: bool) -> None:
    assert is_own_image(image) == is_ours


def test_without_a_command_the_image_runs_the_agent() -> None:
    assert own_command({"args": ["--machine=nvml"]}) == ["gpuplane", "agent", "--machine=nvml"]
    assert own_command({"command": ["/usr/bin/gpuplane", "mps"]}) == ["/usr/bin/gpuplane", "mps"]
    assert own_command({"command": ["gpuplane-hook", "install"]}) is None


def test_a_directory_above_mounts_has_links_to_them(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    mounts = {"/etc/x/a": tmp_path / "a", "/etc/x/b": tmp_path / "b", "/etc/x/a/inner": tmp_path / "b"}
    for _ in range(2):  # a container starts again
        make_rootfs(tmp_path / "rootfs", mounts)
    assert {each.name: each.resolve() for each in (tmp_path / "rootfs/etc/x").iterdir()} == {
        "a": tmp_path / "a",
        "b": tmp_path / "b",
    }
    assert list((tmp_path / "a").iterdir()) == []


def test_kubelets_directory_has_a_short_path() -> None:
    assert HOST.host(PurePosixPath("/var/lib/kubelet/pod-resources")) == Path("/l/1/pod-resources")
    assert HOST.host(PurePosixPath("/var/lib/kubelet2")) == Path("/s/tree/var/lib/kubelet2")
