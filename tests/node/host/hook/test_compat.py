"""CUDA forward compatibility: an image's libcuda is taken where it is newer than the driver and made for it."""

import os
from collections.abc import Callable

import pytest

from tests.node.host.hook.elf import compatible, library
from tests.node.host.hook.world import COMPAT, LIBRARIES, VERSION, Container

CONF = "/etc/ld.so.conf.d/00-gpuplane-compat.conf"
ASKED = (f"--folder={LIBRARIES}", f"--compat={COMPAT}")


def taken(container: Container, driver: str, cuda: str = "13.0") -> bool:
    """Whether the hook takes the image's, and says so where the loader reads it."""
    container.well(*ASKED, f"--driver={driver}", f"--cuda={cuda}")
    if container.inside(CONF).exists():
        assert container.inside(CONF).read_text() == f"{COMPAT}\n"
        return True
    return False


@pytest.mark.parametrize(
    ("version", "content", "driver", "cuda", "expected"),
    [
        # What it says of drivers holds, for one that is newer.
        ("590.44.01", compatible("13.1", [535, 550, 580, 590]), "580.95.05", "13.0", True),
        ("590.44.01", compatible("13.1", [535, 550, 580, 590]), "565.57.01", "12.7", False),
        ("590.44.01", compatible("13.1", [535, 550, 580, 590]), "590.44.01", "13.1", False),
        ("590.44.01", compatible("13.1", [535, 550, 580, 590]), "590.48.01", "13.1", False),
        ("590.44.01", compatible("13.1", [535, 550, 580, 590]), "590.9", "13.1", True),
        ("590.44.01", compatible("13.1", [535, 550, 580, 590]), "600.10", "13.2", False),
        ("590.44.01", compatible("13.1", [535, 550, 580, 590], align=8), "580.95.05", "13.0", True),
        ("590.44.01", compatible("13.1", [535, 550, 580, 590], align=1), "580.95.05", "13.0", True),
        # Where it names no drivers, CUDA's versions decide.
        ("590.44.01", compatible("13.1", []), "580.95.05", "13.0", True),
        ("590.44.01", compatible("13.1", None), "580.95.05", "13.1", False),
        ("590.44.01", compatible("13.10", None), "580.95.05", "13.9", True),
        ("590.44.01", compatible(None, None), "580.95.05", "13.0", False),
        # Tegra's library has no driver's version.
        ("1.1", compatible("13.2", None), "540.4.0", "13.0", True),
        ("1.1", compatible("13.0", None), "540.4.0", "13.0", False),
        # Older libraries say nothing: the majors decide.
        ("535.129.03", b"no ELF at all", "470.82.01", "11.4", True),
        ("535.129.03", b"\x7fELF", "535.54.03", "12.2", False),
        ("535.129.03", b"", "550.54.14", "12.4", False),
        # A note that cannot be understood allows nothing.
        ("590.44.01", library(b'{"driver": [580'), "580.95.05", "13.0", False),
        ("590.44.01", library(b'{"driver": ["580", 5.8e2, -580]}'), "580.95.05", "13.0", False),
        ("590.44.01", library(b"[580]"), "580.95.05", "13.0", False),
    ],
)
def test_who_is_taken(
    container: Container, version: str, content: bytes, driver: str, cuda: str, expected: bool
) -> None:
    """One row a rule."""
    container.put(f"{COMPAT}/libcuda.so.{version}", content)

    assert taken(container, driver, cuda) == expected


@pytest.mark.parametrize("spelled", [str.lower, str.upper, str.title], ids=["lower", "upper", "title"])
def test_the_case_of_a_key_does_not_count(container: Container, spelled: Callable[[str], str]) -> None:
    """NVIDIA's reader takes "driver" for "Driver" and "CUDA version" for "CUDA Version"; of two the last counts."""
    note = compatible("13.1", [535, 550, 580, 590], spelled=spelled)
    container.put(f"{COMPAT}/libcuda.so.590.44.01", note)
    assert taken(container, "580.95.05")
    assert not taken(container, "565.57.01", "12.7")

    container.put(f"{COMPAT}/libcuda.so.590.44.01", compatible("13.1", None, spelled=spelled))
    assert taken(container, "580.95.05", "13.0")
    assert not taken(container, "580.95.05", "13.1")

    container.put(f"{COMPAT}/libcuda.so.590.44.01", library(b'{"driver": [580], "DRIVER": [550]}'))
    assert taken(container, "550.54.14")
    assert not taken(container, "580.95.05")


def test_the_loader_takes_it_first(container: Container) -> None:
    """It comes before the driver's own folder."""
    container.library(f"{COMPAT}/libcuda.so.590.44.01", "libcuda.so.1")
    container.point(f"{COMPAT}/libcuda.so.1", "libcuda.so.590.44.01")
    container.well(
        *ASKED, f"--link=libcuda.so.{VERSION}::{LIBRARIES}/libcuda.so.1", "--driver=580.95.05", "--cuda=13.0"
    )

    assert container.cached()["libcuda.so.1"] == f"{COMPAT}/libcuda.so.1"


def test_it_is_found_through_the_images_links(container: Container) -> None:
    """/usr/local/cuda is a link by way of /etc/alternatives in NVIDIA's images."""
    container.put("/usr/local/cuda-13.1/compat/libcuda.so.590.44.01", compatible("13.1", [580]))
    container.point("/etc/alternatives/cuda", "/usr/local/cuda-13.1")
    container.point("/usr/local/cuda", "/etc/alternatives/cuda")

    assert taken(container, "580.95.05")


def test_of_two_libraries_none_is_taken(container: Container) -> None:
    """Who knows which the image means."""
    for version in ("590.44.01", "590.48.01"):
        container.put(f"{COMPAT}/libcuda.so.{version}", compatible("13.1", [580]))

    assert not taken(container, "580.95.05")


def test_a_new_driver_ends_it(container: Container) -> None:
    """A container is started again in its old root, after the node has been upgraded."""
    container.put(f"{COMPAT}/libcuda.so.590.44.01", compatible("13.1", [580, 590]))

    assert taken(container, "580.95.05")
    assert not taken(container, "590.48.01")


@pytest.mark.parametrize("kind", ["fifo", "device", "folder", "socketless link"])
def test_what_is_no_file_is_no_library(container: Container, kind: str) -> None:
    """It is not opened, and nobody waits for it."""
    path = container.inside(f"{COMPAT}/libcuda.so.590.44.01")
    path.parent.mkdir(parents=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        os.mknod(path, 0o20666, os.makedev(1, 5))
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")

    assert not taken(container, "580.95.05")
