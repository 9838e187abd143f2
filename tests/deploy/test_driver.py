"""What the agent finds of the driver by the directories that components/cdi mounts: as much as by the host's root."""

import shutil
from pathlib import Path

import pytest

from gpuplane.node.hardware.described.profiles import layouts
from gpuplane.node.hardware.nvidia.driver.driverfiles import DriverFilesSearch
from gpuplane.node.hardware.nvidia.driver.driverroot import find_library, find_program
from gpuplane.node.hardware.nvidia.driver.kernelfiles import KernelFiles
from gpuplane.node.host.cdi import ldconfig
from gpuplane.node.model.machine import DriverFiles
from tests.deploy.kustomize import DEPLOY, apply, build
from tests.deploy.test_overlays import _container, _host_paths, _pod
from tests.node.hardware.nvidia.driver.standin import listing
from tests.trees import grow

VERSION = "580.95.05"
MERGED = "d /usr/lib\nd /usr/sbin\nl /lib -> usr/lib\nl /sbin -> usr/sbin\nl /bin -> usr/bin\nl /lib64 -> usr/lib64\n"


def mounted(host: Path, to: Path) -> Path:
    """A host's root as a pod with components/cdi sees it."""
    objects = apply(DEPLOY / "components/cdi", build(DEPLOY / "overlays/nvidia-runtime"))
    for path, (place, _) in _host_paths(_pod(objects), _container(objects)):
        if place.startswith("/driver-root/"):
            inside = to / place.removeprefix("/driver-root/")
            if (host / path[1:]).exists():
                shutil.copytree(host / path[1:], inside, symlinks=True)
            else:
                inside.mkdir(parents=True)  # as kubelet does (DirectoryOrCreate)
    return to


def found(root: Path) -> DriverFiles:
    files, why = DriverFilesSearch(str(root), KernelFiles("/nonexistent")).search(VERSION)
    assert files is not None, why
    return files


@pytest.mark.parametrize("layout", layouts.LAYOUTS)
def test_all_of_the_driver_but_sockets_is_seen(layout: str, tmp_path: Path) -> None:
    """Of each distribution's packages the same files, at the same paths of the host."""
    host = grow(tmp_path / "host", MERGED + "\n".join(listing(layouts.layout_files(layout, VERSION))))
    seen = mounted(host, tmp_path / "seen")

    assert found(host).sockets
    assert found(seen) == found(host).but(sockets=())
    assert (find_library(str(seen)) or "").removeprefix(str(seen)) == (find_library(str(host)) or "").removeprefix(
        str(host)
    )
    assert find_program(str(seen), "nvidia-smi")


def test_debians_alternatives_are_followed(tmp_path: Path) -> None:
    """Debian's own packages put links to /etc/alternatives into /usr/bin."""
    tree = f"""
        e /usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.{VERSION} libcuda.so.1
        f /usr/lib/nvidia/current/nvidia-smi
        l /etc/alternatives/nvidia--nvidia-smi -> /usr/lib/nvidia/current/nvidia-smi
        l /usr/bin/nvidia-smi -> /etc/alternatives/nvidia--nvidia-smi
    """
    host = grow(tmp_path / "host", MERGED + tree)
    (host / "usr/lib/nvidia/current/nvidia-smi").chmod(0o755)

    assert [each.container_path for each in found(host).files] == ["/usr/bin/nvidia-smi"]
    assert found(mounted(host, tmp_path / "seen")) == found(host)


def test_the_hosts_ldconfig_is_seen(tmp_path: Path) -> None:
    """The hook is named only where the agent sees the static program that it calls."""
    ours = next((Path(each) for each in ldconfig.LDCONFIG_PATHS if Path(each).is_file()), None)
    if ours is None or not ldconfig.has_usable_ldconfig(Path("/")):
        pytest.skip("this machine has no static ldconfig to copy")
    host = grow(tmp_path / "host", MERGED)
    shutil.copy2(ours.resolve(), host / "usr/sbin" / ours.name)

    assert ldconfig.has_usable_ldconfig(host)
    assert ldconfig.has_usable_ldconfig(mounted(host, tmp_path / "seen"))
