"""Who has a GPU open: processes, by the driver's lists and by their descriptors, and kernel modules.

Our own processes are left out: a change of the mode is made through the handle that one of them has, and before a reset
it is ended.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress

from gpuplane.files import read
from gpuplane.model.partitions import GpuUser

MODULES = ("nvidia_drm",)
"""Kernel modules that keep GPUs open, for displays: /sys/module/NAME/refcnt counts their users."""
MOST = 32  # users that are named
LARGEST = 1 << 16  # bytes of these files


def openers(root: str, minor: int | None, pids: Iterable[int], ours: Iterable[int] = ()) -> tuple[GpuUser, ...]:
    """Who has the GPU of this minor number open. `root`: what holds /proc and /sys; `pids`: whom the driver lists;
    `ours`: our other processes."""
    folder, node = os.path.join(root, "proc"), f"/dev/nvidia{minor}"
    own = {os.getpid(), os.getppid(), *ours}
    found = dict.fromkeys(each for each in pids if each not in own)
    if minor is not None:
        found |= dict.fromkeys(pid for pid in _numbers(folder) if pid not in own and _has_open(folder, pid, node))
    users = [_process(folder, pid) for pid in list(found)[:MOST]]
    return (*users, *_modules(root))


def _numbers(folder: str) -> Iterator[int]:
    with suppress(OSError):
        yield from (int(name) for name in os.listdir(folder) if name.isdecimal())


def _has_open(folder: str, pid: int, node: str) -> bool:
    """Whether a process has a descriptor of the node. Of others' processes only the privileged see it."""
    place = f"{folder}/{pid}/fd"
    with suppress(OSError):
        for name in os.listdir(place):
            with suppress(OSError):
                if os.readlink(f"{place}/{name}") == node:
                    return True
    return False


def _process(folder: str, pid: int) -> GpuUser:
    name, cgroups = "", tuple[str, ...]()
    with suppress(OSError):
        name = read(f"{folder}/{pid}/comm", LARGEST).decode(errors="replace").strip()
    with suppress(OSError):
        lines = read(f"{folder}/{pid}/cgroup", LARGEST).decode(errors="replace").splitlines()
        cgroups = tuple(dict.fromkeys(line.split(":", 2)[2] for line in lines if line.count(":") >= 2))
    return GpuUser(name=name or f"process {pid}", pid=pid, cgroups=cgroups)


def _modules(root: str) -> Iterator[GpuUser]:
    for name in MODULES:
        with suppress(OSError, ValueError):
            if int(read(os.path.join(root, "sys/module", name, "refcnt"), LARGEST)) > 0:
                yield GpuUser(name=name)
