"""The loader finds the driver's libraries, and the image's own where it found them before."""

import errno
import os
from pathlib import Path

import pytest

from tests.golden import Golden
from tests.node.host.hook.world import ARCHITECTURE, LIBRARIES, LOADER, MUSL, VERSION, Container, snapshot

FOLDER = f"--folder={LIBRARIES}"
LINK = f"--link=libcuda.so.{VERSION}::{LIBRARIES}/libcuda.so.1"
CONF, CONF_D = "/etc/ld.so.conf", "/etc/ld.so.conf.d"
FIRST, LAST = f"{CONF_D}/00-gpuplane.conf", f"{CONF_D}/zz-gpuplane.conf"
PATHS = f"/etc/ld-musl-{ARCHITECTURE}.path"


def test_the_cache_has_the_libraries(container: Container) -> None:
    """By the name that programs ask for, in the folder that was given; the configuration says so, too."""
    container.well(LINK, FOLDER)

    assert container.cached()["libcuda.so.1"] == f"{LIBRARIES}/libcuda.so.1"
    assert container.inside(CONF).read_text() == "include /etc/ld.so.conf.d/*.conf\n"
    assert container.inside(FIRST).read_text() == f"{LIBRARIES}\n"
    assert container.inside(LAST).read_text() == "/lib64\n/usr/lib64\n"
    assert container.inside(FIRST).stat().st_mode & 0o777 == 0o644


def test_a_second_time_changes_nothing_but_the_cache(container: Container) -> None:
    """Files of the configuration are left alone to their inodes, and the cache is the same, byte for byte."""
    container.well(LINK, FOLDER)
    before, cache = snapshot(container.inside(CONF_D)), container.inside("/etc/ld.so.cache").read_bytes()
    container.well(LINK, FOLDER)

    assert snapshot(container.inside(CONF_D)) == before
    assert container.inside("/etc/ld.so.cache").read_bytes() == cache


def test_the_nodes_driver_comes_before_an_old_one_of_the_image(container: Container) -> None:
    """A stub, or a driver that somebody baked into an image, is not taken where its folder is not the driver's."""
    container.library("/usr/local/cuda/lib64/stubs/libcuda.so.1", "libcuda.so.1")
    container.put(f"{CONF_D}/000_cuda.conf", "/usr/local/cuda/lib64/stubs\n")
    container.put(CONF, f"include {CONF_D}/*.conf\n")
    container.well(LINK, FOLDER)

    assert container.cached()["libcuda.so.1"] == f"{LIBRARIES}/libcuda.so.1"


def test_a_folder_that_the_image_searches_keeps_its_place(container: Container) -> None:
    """A library in /usr/local/lib goes on being the one that the image's programs load."""
    for folder in ("/usr/local/lib", LIBRARIES):
        container.library(f"{folder}/libssl.so.3", "libssl.so.3")
    container.put(CONF, "# as Debian has it\ninclude ld.so.conf.d/*.conf  # relative\n")
    container.put(f"{CONF_D}/libc.conf", "/usr/local/lib\n")
    container.put(f"{CONF_D}/x86.conf", f"  {LIBRARIES}/\t# ours\n")
    container.well(LINK, FOLDER)

    assert container.cached()["libssl.so.3"] == "/usr/local/lib/libssl.so.3"
    assert container.cached()["libcuda.so.1"] == f"{LIBRARIES}/libcuda.so.1"
    assert not container.inside(FIRST).exists()


def test_default_folders_are_those_of_the_images_distribution(container: Container) -> None:
    """Debian's loader looks in /usr/lib/TRIPLET by itself, Red Hat's in /usr/lib64; an ldconfig knows one kind."""
    container.put("/etc/debian_version", "12.1\n")
    container.well(FOLDER, "--folder=/usr/lib64")

    assert container.inside(FIRST).read_text() == "/usr/lib64\n"
    assert LIBRARIES in container.inside(LAST).read_text().split()


def test_what_an_earlier_start_wrote_does_not_stay(container: Container) -> None:
    """After a change of the driver a container is started again in its old root."""
    container.well("--folder=/opt/old")
    container.well(FOLDER)

    assert container.inside(FIRST).read_text() == f"{LIBRARIES}\n"


def test_a_configuration_that_includes_nothing_is_enough(container: Container) -> None:
    """The cache has the libraries though the image's ld.so.conf does not read ld.so.conf.d."""
    container.put(CONF, "/usr/local/lib\n")
    container.well(LINK, FOLDER)

    assert container.cached()["libcuda.so.1"] == f"{LIBRARIES}/libcuda.so.1"
    assert container.inside(CONF).read_text() == "/usr/local/lib\n"


@pytest.mark.parametrize("odd", ["folder", "nowhere", "loop"])
def test_what_ldconfig_passes_over_is_no_hindrance(container: Container, odd: str) -> None:
    """A folder, or a link to nothing or to itself, among the image's configuration files."""
    container.put(CONF, f"include {CONF_D}/*.conf\n")
    if odd == "folder":
        container.inside(f"{CONF_D}/odd.conf").mkdir(parents=True)
    else:
        container.point(f"{CONF_D}/odd.conf", "odd.conf" if odd == "loop" else "/nowhere")
    container.well(LINK, FOLDER)

    assert container.cached()["libcuda.so.1"] == f"{LIBRARIES}/libcuda.so.1"


@pytest.mark.parametrize("before", [None, "/opt/lib\n/lib", "/opt/lib:/lib:"])
def test_musl_reads_a_list_of_folders(container: Container, before: str | None) -> None:
    """The driver's come first, what was searched before stays, musl's defaults where the image says nothing."""
    container.inside(LOADER).unlink()
    container.inside("/etc/ld.so.cache").unlink()
    container.put(MUSL)
    if before is not None:
        container.put(PATHS, before)
    container.well(FOLDER)
    kept = ["/lib", "/usr/local/lib", "/usr/lib"] if before is None else ["/opt/lib", "/lib"]

    assert container.inside(PATHS).read_text().split() == [LIBRARIES, *kept]
    assert not container.inside(CONF).exists()
    was = snapshot(container.root)
    container.well(FOLDER)
    assert snapshot(container.root) == was


def test_an_image_without_a_loader_is_left_alone(container: Container) -> None:
    """A static program in an empty image needs no cache."""
    container.inside(LOADER).unlink()
    container.inside("/etc/ld.so.cache").unlink()
    before = snapshot(container.root)
    container.well(FOLDER, "--compat=/usr/local/cuda/compat", "--driver=580.1", "--cuda=13.0")

    assert snapshot(container.root) == before


@pytest.mark.parametrize("kind", ["none", "script", "dynamic"])
def test_a_node_without_a_static_ldconfig_is_said(
    container: Container, tmp_path: Path, kind: str, golden: Golden
) -> None:
    """An interpreter would be the image's: a script or a dynamic program is never run. It says what to do."""
    program = tmp_path / "ldconfig"
    program.write_bytes(
        {"none": b"", "script": b"#!/bin/sh\ntouch /mark\n", "dynamic": Path("/bin/true").read_bytes()}[kind]
    )
    program.chmod(0o755)
    container.put("/bin/sh", Path("/bin/true").read_bytes())
    code, said = container.run(FOLDER, prepare=f"mount --bind {program} /sbin/ldconfig")

    assert code == 1
    golden(said, kind)
    assert "--cdi-hook=none" in said


def test_nothing_half_written_is_left(container: Container) -> None:
    """Where a file cannot take its place, what was prepared is gone."""
    container.inside(FIRST).mkdir(parents=True)
    code, said = container.run(FOLDER)

    assert (code, said.count("\n")) == (1, 1)
    assert f" {FIRST}: {os.strerror(errno.EISDIR)}" in said
    assert list(container.inside(CONF_D).iterdir()) == [container.inside(FIRST)]


def test_a_red_hat_image_on_a_debian_node_keeps_its_own_libraries(container: Container) -> None:
    """They are in /usr/lib64, where a node's ldconfig from Debian does not look by itself."""
    container.inside("/lib64").rename(container.inside("/usr/lib64"))
    container.point("/lib64", "usr/lib64")
    container.library("/usr/lib64/libz.so.1.2.13", "libz.so.1")
    container.point("/usr/lib64/libz.so.1", "libz.so.1.2.13")
    container.put(CONF, "include ld.so.conf.d/*.conf\n")
    container.well(LINK, FOLDER)

    assert container.cached()["libz.so.1"] in {"/usr/lib64/libz.so.1", "/lib64/libz.so.1"}
    assert container.cached()["libcuda.so.1"] == f"{LIBRARIES}/libcuda.so.1"
