"""What server and clients of one daemon share as /dev/shm is no other daemon's."""

import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from gpuplane.node.host.mps.processes import Process
from gpuplane.node.model.mps import MpsDaemon
from tests.node.host.mps.world import World

ONE, OTHER = (
    MpsDaemon(name="nvidia.com/gpu", client_memory_mib_by_device={"GPU-a": 0}),
    MpsDaemon(name="nvidia.com/other", client_memory_mib_by_device={"GPU-b": 0}),
)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory for a supervisor that may mount; what it mounted is taken away at the end."""
    command = ["unshare", "--mount", "sh", "-c", "mount -t tmpfs tmpfs /tmp"]
    tried = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if tried.returncode:
        pytest.skip(f"needs the right to mount: {tried.stderr.strip()}")
    with TemporaryDirectory(prefix="mps-") as name:
        yield Path(name)
        for path in mounts(Path(name)):
            subprocess.run(["umount", path], check=True, timeout=60)


@pytest.fixture
async def world(folder: Path) -> AsyncIterator[World]:
    """A supervisor that gives each daemon a tmpfs of its own."""
    async with World(folder, shm="own") as world:
        await world.supervise()
        yield world


def mounts(root: Path) -> list[str]:
    """What is mounted below a directory."""
    points = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    return [point for point in points if Path(point).is_relative_to(root)]


def seen(running: Process) -> set[str]:
    """The names in /dev/shm, as a process sees it."""
    return set(os.listdir(f"/proc/{running.pid}/root/dev/shm"))  # noqa: PTH208


async def test_each_daemon_has_a_dev_shm_of_its_own(world: World) -> None:
    """A file in a resource's directory is there for its daemon, and neither for another's nor for the node."""
    world.want(ONE, OTHER)
    one, other = await world.until_ok(ONE.name), await world.until_ok(OTHER.name)
    (world.root / ONE.name / "shm/mine").touch()
    (world.root / OTHER.name / "shm/theirs").touch()

    assert (seen(one), seen(other)) == ({"mine"}, {"theirs"})
    assert not {"mine", "theirs"} & set(os.listdir("/dev/shm"))  # noqa: PTH208


async def test_it_is_a_tmpfs_and_goes_with_its_daemon(world: World) -> None:
    """Nothing stays mounted."""
    world.want(ONE)
    await world.until_ok(ONE.name)
    assert mounts(world.root) == [str(world.root / ONE.name / "shm")]
    world.want()
    await world.until(lambda: not world.pipe(ONE.name).parent.exists())
    assert mounts(world.root) == []


async def test_it_is_mounted_once(world: World) -> None:
    """A supervisor that finds it mounted leaves it, with what is in it."""
    world.want(ONE)
    await world.until_ok(ONE.name)
    (world.root / ONE.name / "shm/region").touch()
    await world.kill()
    await world.supervise()
    first = await world.until_ok(ONE.name)
    os.kill(first.pid, 9)
    again = await world.until_ok(ONE.name, but=first)
    assert seen(again) == {"region"}
    assert len(mounts(world.root)) == 1
