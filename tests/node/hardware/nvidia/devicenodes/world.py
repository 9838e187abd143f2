"""A host of the test's own: what the kernel says of the driver, and a /dev."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

DEVICES = """Character devices:
  1 mem
195 nvidia
195 nvidiactl
508 nvidia-caps
511 nvidia-uvm

Block devices:
259 blkext
"""


def host(root: Path) -> Path:
    """A host whose driver is loaded, with the node of one GPU, for which nobody has made the others."""
    (root / "dev/char").mkdir(parents=True)
    (root / "proc/driver/nvidia").mkdir(parents=True)
    (root / "proc/devices").write_text(DEVICES)
    node(root, "/dev/nvidia0", 195, 0)
    return root


def node(root: Path, path: str, major: int, minor: int) -> None:
    os.mknod(root / path[1:], stat.S_IFCHR | 0o600, os.makedev(major, minor))


def parameters(root: Path, text: str) -> None:
    (root / "proc/driver/nvidia/params").write_text(text)


def standing(root: Path) -> dict[str, str]:
    """All that is under /dev: path → what it is."""
    return dict(_each(root, root / "dev"))


def _each(root: Path, folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(folder.rglob("*")):
        found, name = path.lstat(), f"/{path.relative_to(root)}"
        if stat.S_ISLNK(found.st_mode):
            yield name, f"-> {path.readlink()}"
        elif stat.S_ISCHR(found.st_mode):
            numbers = f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}"
            yield name, f"{numbers} {stat.S_IMODE(found.st_mode):o} {found.st_uid}:{found.st_gid}"
        elif not stat.S_ISDIR(found.st_mode):
            yield name, path.read_text()
