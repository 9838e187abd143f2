"""Who has a GPU open: processes, by the driver's lists and by their descriptors, and kernel modules.

Our own processes are left out: a change of the mode is made through the handle that one of them has, and before a reset
it is ended. A search through the descriptors ends after a while, and says no name that it does not know: numbers of
processes are looked up only where they mean here what they mean to the driver.
"""

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress

from gpuplane.base.files import read
from gpuplane.node.model.partitions import GpuUser

DISPLAY_MODULES = ("nvidia_drm", "nvidia_modeset")
"""Kernel modules that keep GPUs open, for displays: /sys/module/NAME/refcnt counts their users, of whichever GPUs."""
PERSISTENCE_DAEMON = "nvidia-persistenced"
"""Keeps all GPUs open, on most servers for ever. The kernel's name of it has 15 characters."""
MAX_LISTED_USERS = 32  # users that are named
SEARCH_TIMEOUT = 2.0  # seconds of a search through all descriptors
MAX_FILE_SIZE = 1 << 16  # bytes of these files


def find_openers(
    root: str, minor: int | None, pids: Iterable[int] = (), ours: Iterable[int] = (), *, host_pids: bool = True
) -> tuple[GpuUser, ...]:
    """Everybody who may have the GPU of this minor number open. `root`: what holds /proc and /sys; `pids`: whom the
    driver lists; `ours`: our other processes; `host_pids`: whether the numbers of processes are those of the host."""
    folder, node = os.path.join(root, "proc"), f"/dev/nvidia{minor}"
    own = {os.getpid(), os.getppid(), *ours}
    listed = dict.fromkeys(each for each in pids if each not in own)
    if not host_pids:
        return (*(GpuUser(name=f"process {pid}", pid=pid) for pid in list(listed)[:MAX_LISTED_USERS]), *_modules(root))
    if minor is not None:
        until = time.monotonic() + SEARCH_TIMEOUT
        listed |= dict.fromkeys(pid for pid in _numbers(folder, until) if pid not in own and _has(folder, pid, node))
    return (*(_process(folder, pid) for pid in list(listed)[:MAX_LISTED_USERS]), *_modules(root))


def blocking_users(users: Iterable[GpuUser]) -> tuple[GpuUser, ...]:
    """Those because of whom nothing is tried: programs that would be disturbed, and surely have the GPU open.

    NVIDIA's own tools change modes and reset GPUs beside the persistence daemon, and nothing tells whether a kernel
    module has this GPU open. They are named where the driver refuses.
    """
    return tuple(user for user in users if user.pid is not None and user.name != PERSISTENCE_DAEMON)


def _numbers(folder: str, until: float) -> Iterator[int]:
    with suppress(OSError):
        for name in os.listdir(folder):
            if time.monotonic() > until:
                return
            if name.isdecimal():
                yield int(name)


def _has(folder: str, pid: int, node: str) -> bool:
    """Whether a process has a descriptor of the node, in whichever driver root. Of others' processes only the
    privileged see it. Links are read and not followed: the server of a file may be gone."""
    place = f"{folder}/{pid}/fd"
    with suppress(OSError):
        for name in os.listdir(place):
            with suppress(OSError):
                if os.readlink(f"{place}/{name}").removesuffix(" (deleted)").endswith(node):
                    return True
    return False


def _process(folder: str, pid: int) -> GpuUser:
    name, cgroups = "", tuple[str, ...]()
    with suppress(OSError):
        name = read(f"{folder}/{pid}/comm", MAX_FILE_SIZE).decode(errors="replace").strip()
    if name and name == PERSISTENCE_DAEMON[:15]:
        name = PERSISTENCE_DAEMON
    with suppress(OSError):
        lines = read(f"{folder}/{pid}/cgroup", MAX_FILE_SIZE).decode(errors="replace").splitlines()
        cgroups = tuple(dict.fromkeys(line.split(":", 2)[2] for line in lines if line.count(":") >= 2))
    return GpuUser(name=name or f"process {pid}", pid=pid, cgroups=cgroups)


def _modules(root: str) -> Iterator[GpuUser]:
    for name in DISPLAY_MODULES:
        with suppress(OSError, ValueError):
            if int(read(os.path.join(root, "sys/module", name, "refcnt"), MAX_FILE_SIZE)) > 0:
                yield GpuUser(name=name)
