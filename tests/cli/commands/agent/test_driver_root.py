"""Where the agent looks for the driver, and what it says of that: which option decided, and which one helps."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpuplane.cli.commands.agent import driverroot
from gpuplane.cli.commands.agent.driverroot import driver_root, seen
from gpuplane.cli.kit.machine import NVML
from gpuplane.node.core.config.flags import FLAG_BY_NAME
from gpuplane.node.hardware.described.machinefile import read_machine
from gpuplane.node.hardware.described.profiles import find_machine_file
from gpuplane.sandbox.agent import Agent
from gpuplane.sandbox.kubelet import Kubelet
from tests.golden import Golden
from tests.node.hardware.nvidia.driver.standin import StandIn

HERE = "driver-root-ctr-path"


@pytest.fixture
def default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The default of --driver-root-ctr-path, which is not there."""
    path = tmp_path / "default"
    monkeypatch.setitem(FLAG_BY_NAME, HERE, FLAG_BY_NAME[HERE].but(default=str(path)))
    return path


def decided(flags: Mapping[str, str], *, contained: bool = False, **environment: str) -> tuple[str, str]:
    """The path, and what decided."""
    root = driver_root(flags, environment, contained)
    return str(root.path), root.why


@pytest.mark.parametrize("contained", [False, True])
def test_what_is_said_of_the_path_here_decides(default: Path, tmp_path: Path, contained: bool, golden: Golden) -> None:
    """Whether it is there yet or not: a driver may be installed later, and another one is not meant."""
    default.mkdir()
    nowhere = str(tmp_path / "nowhere")
    path, why = decided({HERE: nowhere, "driver-root": "/"}, contained=contained)
    assert path == nowhere
    golden(why, "the option")
    path, why = decided({}, contained=contained, DRIVER_ROOT_CTR_PATH=nowhere)
    assert path == nowhere
    golden(why, "the variable")


@pytest.mark.parametrize("contained", [False, True])
def test_the_default_is_taken_where_it_is_there(default: Path, contained: bool, golden: Golden) -> None:
    """As in every pod whose manifest mounts the driver there."""
    default.mkdir()
    path, why = decided({"driver-root": "/run/nvidia/driver"}, contained=contained)
    assert path == str(default)
    golden(why, "")


@pytest.mark.parametrize("there", [False, True])
def test_on_a_host_the_driver_root_is_taken_itself(default: Path, tmp_path: Path, there: bool, golden: Golden) -> None:
    """There both are the same place. A driver that is found in / would not be the one that was meant."""
    root = tmp_path / "driver"
    if there:
        root.mkdir()
    path, why = decided({"driver-root": str(root)})
    assert path == str(root)
    golden(why, "")


def test_in_a_container_the_driver_root_is_taken_where_it_is_seen(
    default: Path, tmp_path: Path, golden: Golden
) -> None:
    """Else it is a path of the host, and the driver is in our own root, where NVIDIA's runtime puts it."""
    root = tmp_path / "driver"
    path, why = decided({}, contained=True, NVIDIA_DRIVER_ROOT=str(root))
    assert path == "/"
    golden(why)
    root.mkdir()
    assert decided({}, contained=True, NVIDIA_DRIVER_ROOT=str(root))[0] == str(root)


@pytest.mark.parametrize("said", [{}, {"driver-root": "/"}, {"driver-root": "//"}, {HERE: ""}])
def test_where_nothing_is_said_it_is_our_own_root(default: Path, said: Mapping[str, str], golden: Golden) -> None:
    """And the option is named by which another one is said."""
    path, why = decided(said)
    assert path == "/"
    golden(why, "")


def test_a_pod_is_a_container() -> None:
    """Also one that shares the process ids of its node."""
    assert driverroot.contained({"KUBERNETES_SERVICE_HOST": "10.0.0.1"})


def test_of_a_described_machine_a_driver_root_is_seen_only_where_it_is_there(default: Path, tmp_path: Path) -> None:
    """A machine that is only played has no driver in our own root."""
    assert seen(driver_root({}, {}, False), "hgx-h100") is None
    assert seen(driver_root({HERE: str(tmp_path / "nowhere")}, {}, False), "hgx-h100") is None
    assert seen(driver_root({HERE: "/"}, {}, False), "hgx-h100") == Path("/")
    assert seen(driver_root({HERE: str(tmp_path / "nowhere")}, {}, False), "nvml") == tmp_path / "nowhere"
    assert seen(driver_root({}, {}, False), "nvml") == Path("/")


async def test_an_agent_on_a_host_looks_where_the_driver_root_is(tmp_path: Path, compiled: Path) -> None:
    """From the command line to the reason that kubelet's user reads. The stand-in has no libcuda there."""
    driver = StandIn(tmp_path / "d", compiled)
    driver.describe(read_machine(find_machine_file("t4").read_bytes(), "t4.yaml"))
    (tmp_path / "x/usr").mkdir(parents=True)
    (tmp_path / "x/usr/lib64").symlink_to(driver.folder)
    agent = Agent(
        "--machine", "nvml", "--driver-root", tmp_path / "x", "--host-root", driver.root, "--cdi-dir", tmp_path / "cdi",
        "--kubelet-root", tmp_path / "k", "--state-dir", tmp_path / "s",
        "--device-list-strategy", "cdi-cri",
    )  # fmt: skip
    async with Kubelet(tmp_path / "k"), agent as running:
        await running.until_says(f"{tmp_path}/x ", "libcuda.so.", "--driver-root ")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
@pytest.mark.parametrize("contained", [False, True])
def test_what_is_closed_to_us_is_not_seen(default: Path, tmp_path: Path, contained: bool) -> None:
    """The way to a directory may be: that is told of the driver, and ends nobody."""
    closed = tmp_path / "closed"
    closed.mkdir(0o700)
    os.seteuid(65534)
    try:
        root = driver_root({"driver-root": str(closed / "driver")}, {}, contained)
        assert seen(root, "t4") is None
        assert seen(root, NVML) == (Path("/") if contained else closed / "driver")
    finally:
        os.seteuid(0)
