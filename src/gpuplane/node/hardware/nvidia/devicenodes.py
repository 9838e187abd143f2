"""Reconcile the nodes and links in /dev with what has to be there (`core.devicenodes`).

What is there is never touched, whatever it is, and nothing is made outside of the /dev of one root. A node gets the
owner and the mode that nvidia-modprobe gives it (modprobe-utils/nvidia-modprobe-utils.c): those of the driver's
parameters, or its own where that passes them over. Where they tell everybody to leave device files alone, so do we.
Numbers are checked against the kernel's at the moment of making: the driver may be another one than was looked at.
"""

import asyncio
import errno
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path, PurePosixPath

from gpuplane.base import files
from gpuplane.base.pauses import Backoff
from gpuplane.node.core.devicenodes import DesiredNodes, DeviceNodeReconcileResult, desired_nodes, nodes_status
from gpuplane.node.hardware.nvidia.driver.devicenodes import parse_major_numbers
from gpuplane.node.model.facts import StatusChanged
from gpuplane.node.model.machine import DeviceNodeStat
from gpuplane.node.model.node import Node
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import DEVICE_NODES_PART

MAX_RETRY_INTERVAL = 60.0
"""Seconds between two tries where they fail."""

PROC_DEVICES, DRIVER_PARAMETERS = "proc/devices", "proc/driver/nvidia/params"
OWNER_NAMES = re.compile(r"nvidia.*|gdrdrv")
"""The names in /proc/devices of those whose nodes these are."""

NODES_BY_PARAMETERS = ("/dev/nvidiactl", "/dev/nvidia-modeset")
OPEN_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


async def keep_device_nodes(node: Node, root: Path, every: float = 5.0) -> None:
    """Make what is missing and may be made, and say what stays missing, for ever. `root`: its /dev is the host's."""
    pauses, made = Backoff(every, MAX_RETRY_INTERVAL), tuple[str, ...]()
    while True:
        if (wanted := desired_nodes(node.snapshot)) is None:
            node.apply(StatusChanged(DEVICE_NODES_PART, None))
            pauses.after(well=True)
        else:
            found = await asyncio.to_thread(reconcile_device_nodes, root, wanted)
            made = tuple(dict.fromkeys((*made, *found.created)))
            node.apply(StatusChanged(DEVICE_NODES_PART, nodes_status(found.but(created=made))))
            pauses.after(well=not found.problem)
        await node.wait_until(partial(_another, wanted), pauses.seconds)


def _another(before: DesiredNodes | None, snapshot: Snapshot) -> bool:
    return desired_nodes(snapshot) != before


def reconcile_device_nodes(root: Path, wanted: DesiredNodes) -> DeviceNodeReconcileResult:
    """Make what is missing under a root; what was found, and what came of it."""
    if not (root / "dev/char").is_dir():
        return DeviceNodeReconcileResult(is_hidden=True)
    round_ = _Round(root)
    missing = tuple(path for path, numbers in wanted.nodes.items() if round_.lacks(path, numbers))
    there = {path: number for path in wanted.linked_nodes if (number := _number(root, path)) is not None}
    return DeviceNodeReconcileResult(
        missing=missing,
        without_char_link=tuple(path for path, number in there.items() if round_.unlinked(path, *number)),
        stale=tuple(path for path, (major, _) in there.items() if round_.owned and major not in round_.owned),
        created=tuple(round_.made),
        problem=round_.problem,
    )


class _Round:
    """One round under a root: what was made, and why something was not."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.owned = {
            number
            for name, number in parse_major_numbers(_text(root / PROC_DEVICES)).items()
            if OWNER_NAMES.fullmatch(name)
        }
        self.parameters = _parameters(_text(root / DRIVER_PARAMETERS))
        self.made: list[str] = []
        self.problem = ""

    def lacks(self, path: str, numbers: DeviceNodeStat | None) -> bool:
        """Whether a node is not there, and cannot be made."""
        if os.path.lexists(_seen(self.root, path)):
            return False
        if numbers is None or numbers.major not in self.owned:
            self.problem = self.problem or f"the driver's module for {path} is not loaded"
            return True
        return not self._done(path, lambda: _make(self.root, path, numbers, self.parameters))

    def unlinked(self, path: str, major: int, minor: int) -> bool:
        """Whether systemd does not know a node by its numbers, and cannot be made to."""
        link = f"/dev/char/{major}:{minor}"
        if major not in self.owned or os.path.lexists(_seen(self.root, link)):
            return False
        return not self._done(link, lambda: _link(self.root, path, link))

    def _done(self, path: str, make: Callable[[], None]) -> bool:
        try:
            make()
        except FileExistsError:
            return True  # somebody else was faster
        except OSError as error:
            self.problem = self.problem or f"{path} cannot be created: {error.strerror}"
            return False
        self.made.append(path)
        return True


def _seen(root: Path, path: str) -> Path:
    return root / path.lstrip("/")


def _number(root: Path, path: str) -> tuple[int, int] | None:
    """(major, minor) of a node; None where none is there."""
    try:
        found = _seen(root, path).lstat()
    except OSError:
        return None
    return (os.major(found.st_rdev), os.minor(found.st_rdev)) if stat.S_ISCHR(found.st_mode) else None


def _make(root: Path, path: str, numbers: DeviceNodeStat, parameters: Mapping[str, int]) -> None:
    """Make a node: under a name of ours, and under its own once it is nobody else's to open. Raises OSError."""
    if not parameters.get("ModifyDeviceFiles", 1):
        raise OSError(errno.EPERM, f"/{DRIVER_PARAMETERS} says ModifyDeviceFiles: 0")
    told = parameters if path in NODES_BY_PARAMETERS else {}
    name = PurePosixPath(path).name
    aside = f".{name}.gpuplane"
    with _folder(root, path) as folder:
        with suppress(FileNotFoundError):
            os.unlink(aside, dir_fd=folder)
        os.mknod(aside, stat.S_IFCHR, os.makedev(numbers.major, numbers.minor), dir_fd=folder)
        try:
            os.chown(aside, told.get("DeviceFileUID", 0), told.get("DeviceFileGID", 0), dir_fd=folder)
            os.chmod(aside, stat.S_IMODE(told.get("DeviceFileMode", numbers.mode)) & 0o777, dir_fd=folder)
            os.link(aside, name, src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            os.unlink(aside, dir_fd=folder)


def _link(root: Path, path: str, link: str) -> None:
    """Make a link in /dev/char, as udev writes them. Raises OSError."""
    with _folder(root, link) as folder:
        os.symlink(f"../{path.removeprefix('/dev/')}", PurePosixPath(link).name, dir_fd=folder)


@contextmanager
def _folder(root: Path, path: str) -> Iterator[int]:
    """The folder of a path in /dev, opened; it is made where it is not there. No link leads out of /dev."""
    folder = os.open(root / "dev", OPEN_FOLDER_FLAGS)
    try:
        for part in PurePosixPath(path).parts[2:-1]:
            with suppress(FileExistsError):
                os.mkdir(part, dir_fd=folder)
                os.chmod(part, 0o755, dir_fd=folder)  # noqa: S103 (all shall find what is in it)
            outer, folder = folder, os.open(part, OPEN_FOLDER_FLAGS, dir_fd=folder)
            os.close(outer)
        yield folder
    finally:
        os.close(folder)


def _parameters(text: str) -> dict[str, int]:
    """The driver's parameters, so far as they are numbers."""
    return {name: int(number) for name, number in re.findall(r"^(\w+): (\d+)$", text, re.M | re.ASCII)}


def _text(path: Path) -> str:
    try:
        return files.read(path).decode(errors="replace")
    except OSError:
        return ""
