"""Links stand in the container's root, and nothing else of it changes."""

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.golden import Golden
from tests.node.host.hook.world import LIBRARIES, Container, snapshot

CUDA = f"--link=libcuda.so.580.95.05::{LIBRARIES}/libcuda.so.1"
CARD = "--link-if=../card1::/dev/dri/by-path/pci-0000:1b:00.0-card"


def test_links_are_made_with_their_folders(container: Container) -> None:
    """A link has the very target that was asked for; the folders that it needs are root's and can be read by all."""
    container.well(CUDA, f"--link=../libnvidia-allocator.so.1::{LIBRARIES}/deep/gbm/nvidia-drm_gbm.so")

    assert container.links(f"{LIBRARIES}/libcuda.so.1") == "libcuda.so.580.95.05"
    assert container.links(f"{LIBRARIES}/deep/gbm/nvidia-drm_gbm.so") == "../libnvidia-allocator.so.1"
    assert container.inside(f"{LIBRARIES}/deep").stat().st_mode & 0o777 == 0o755


def test_a_second_time_changes_nothing(container: Container) -> None:
    """A link that stands is left alone, to its inode and times."""
    container.well(CUDA, CARD)
    before = snapshot(container.root)
    container.well(CUDA, CARD)

    assert snapshot(container.root) == before


@pytest.mark.parametrize("there", ["file", "fifo", "libcuda.so.470.1", "/nowhere/at/all"])
def test_what_is_there_is_replaced(container: Container, there: str) -> None:
    """An old driver of the image makes place for the node's."""
    path = container.inside(f"{LIBRARIES}/libcuda.so.1")
    if there == "fifo":
        os.mkfifo(path)
    elif there == "file":
        path.write_text("an old driver")
    else:
        path.symlink_to(there)
    container.well(CUDA)

    assert container.links(f"{LIBRARIES}/libcuda.so.1") == "libcuda.so.580.95.05"


def test_a_folder_is_never_replaced(container: Container) -> None:
    """It is an error that names it, and what is in it stays."""
    container.put(f"{LIBRARIES}/libcuda.so.1/kept", "kept")
    code, said = container.run(CUDA)

    assert (code, said.count("\n")) == (1, 1)
    assert f" {LIBRARIES}/libcuda.so.1: {os.strerror(errno.EISDIR)}" in said
    assert container.inside(f"{LIBRARIES}/libcuda.so.1/kept").read_text() == "kept"


@pytest.mark.parametrize(
    ("target", "made"),
    [
        ("../card1", True),
        ("../card2", False),
        ("/dev/dri/card1", True),
        ("/dev/dri/card2", False),
        ("../../../x", False),
    ],
)
def test_a_conditional_link_needs_its_target(container: Container, target: str, made: bool) -> None:
    """Only where the target exists, as seen from the folder of the link, which need not be there yet."""
    container.well(f"--link-if={target}::/dev/dri/by-path/pci-0000:1b:00.0-card")

    assert container.inside("/dev/dri/by-path/pci-0000:1b:00.0-card").is_symlink() == made
    assert container.inside("/dev/dri/by-path").exists() == made


def test_links_are_made_through_links_of_the_image(container: Container) -> None:
    """/lib64 is a link to usr/lib64 in many images; absolute ones are the image's own, too."""
    container.point("/usr/lib64", f"/usr/lib/{Path(LIBRARIES).name}")
    container.well("--link=libcuda.so.580.95.05::/usr/lib64/libcuda.so.1")

    assert container.links(f"{LIBRARIES}/libcuda.so.1") == "libcuda.so.580.95.05"


def test_folders_of_other_owners_are_no_hindrance(container: Container) -> None:
    """Images have folders that belong to users, and that nobody may write to."""
    container.inside(LIBRARIES).chmod(0o555)
    os.chown(container.inside(LIBRARIES), 1000, 1000)
    container.well(CUDA)

    assert container.inside(f"{LIBRARIES}/libcuda.so.1").is_symlink()


def test_a_root_that_cannot_be_written_is_said(container: Container) -> None:
    """Which path, why, and what to do. Where the links stand already there is nothing to write."""
    root = container.root
    readonly = f"mount --bind {root} {root}; mount -o remount,bind,ro {root}; mount --bind {root} {root}"
    code, said = container.run(CUDA, prepare=readonly)

    assert code == 1
    assert f" {LIBRARIES}/libcuda.so.1: {os.strerror(errno.EROFS)}" in said
    assert "--cdi-hook=none" in said

    container.well(CUDA)
    container.well(CUDA, prepare=readonly)


def test_what_is_mounted_where_a_link_goes_is_said(container: Container, golden: Golden) -> None:
    """A pod that mounts something at a library's name is told so."""
    path = container.inside(f"{LIBRARIES}/libcuda.so.1")
    path.touch()
    code, said = container.run(CUDA, prepare=f"mount --bind {container.outside}/libcuda.so.1 {path}")

    assert code == 1
    golden(said)


def test_containers_of_one_root_start_at_once(container: Container) -> None:
    """As podman's --rootfs allows: none of them fails, and what is there in the end is what was asked for."""
    container.library("/usr/lib64/libx.so.1.0", "libx.so.1")
    links = [f"/usr/lib64/link{each}" for each in range(20)]
    options = [*(f"--link=of{Path(link).name}::{link}" for link in links), "--folder=/opt/x", "--folder=/usr/lib64"]
    for _ in range(5):
        for link in links:
            container.point(link, "old")
        with ThreadPoolExecutor(4) as at_once:
            ended = [at_once.submit(container.run, *options) for _ in range(4)]

        assert {each.result() for each in ended} == {(0, "")}
        assert container.cached()["libx.so.1"] == "/usr/lib64/libx.so.1"


def test_a_root_that_is_read_only_before_its_time(container: Container) -> None:
    """crun before 1.26 mounts a root over itself, read-only, and calls hooks then. For us alone it can be written."""
    root = container.root
    container.well(CUDA, prepare=f"mount --bind {root} {root}; mount -o remount,bind,ro {root}")

    assert container.links(f"{LIBRARIES}/libcuda.so.1") == "libcuda.so.580.95.05"


@pytest.mark.parametrize("over_itself", [False, True])
def test_a_root_that_is_read_only_stays_as_it_is(container: Container, over_itself: bool) -> None:
    """As a snapshot that others have too: what is mounted there cannot be written at all."""
    snapshotted, root = container.root.rename(container.folder / "snapshot"), container.root
    root.mkdir()
    mounts = f"mount --bind {snapshotted} {root}; mount -o remount,bind,ro {root}"
    before = snapshot(snapshotted)
    code, said = container.run(CUDA, prepare=mounts + f"; mount --bind {root} {root}" * over_itself)

    assert code == 1
    assert os.strerror(errno.EROFS) in said
    assert snapshot(snapshotted) == before


def test_a_file_system_over_another_stays_as_it_is(container: Container) -> None:
    """Both are mounted whole at the same place, and the upper one is read-only."""
    root, other = container.root, container.folder / "other"
    other.mkdir()
    mounts = f"""
        mount -t tmpfs none {root}; mount -t tmpfs none {other}
        mount --bind {other} {root}; mount -o remount,bind,ro {root}
        set -- sh -euc '"$@" || {{ ls -A {other} >&2; exit 3; }}' sh "$@"
    """
    code, said = container.run(CUDA, prepare=mounts)

    assert code == 3
    assert os.strerror(errno.EROFS) in said.splitlines()[0]
    assert said.count("\n") == 1, "it is as empty as before"
