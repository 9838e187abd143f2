"""Where this process sees the root that the driver is installed in, and which option decided that."""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from gpuplane.cli.kit.machine import NVML
from gpuplane.node.core.config.flags import FLAG_BY_NAME
from gpuplane.node.core.config.flagvalues import find_text_and_source
from gpuplane.node.host.kernellog import has_host_pids

CONTAINER_PATH_FLAG, HOST_PATH_FLAG = "driver-root-ctr-path", "driver-root"
CONTAINER_MARKER_FILES = (Path("/.dockerenv"), Path("/run/.containerenv"))
"""What Docker and podman put into the containers that they start."""


class DriverRoot(NamedTuple):
    """Where this process sees the driver's root. `why`: what decided that; it is said after what is missing there."""

    path: Path
    why: str
    is_known: bool = True  # whether it was set or found, and is not only what is left


def driver_root(flags: Mapping[str, str], environment: Mapping[str, str], contained: bool) -> DriverRoot:
    """The root: what --driver-root-ctr-path says; else its default where that is a directory; else --driver-root, which
    is a path of the host, where this process sees that; else its own root, in which NVIDIA's runtime puts the driver.

    `contained`: whether this process is in a container, where a path of the host is of no use unless it is mounted.
    """
    configured = find_text_and_source(FLAG_BY_NAME[CONTAINER_PATH_FLAG], flags, environment)
    if configured and configured[0]:
        return DriverRoot(Path(configured[0]), f"{configured[1]} is set")
    default = Path(FLAG_BY_NAME[CONTAINER_PATH_FLAG].default)
    if _is_there(default):
        return DriverRoot(default, f"it is the default of --{CONTAINER_PATH_FLAG}")
    host = find_text_and_source(FLAG_BY_NAME[HOST_PATH_FLAG], flags, environment)
    if host and os.path.normpath(host[0]).strip("/."):
        path = Path(host[0])
        if _is_there(path) or not contained:
            return DriverRoot(path, f"{host[1]} is set, and --{CONTAINER_PATH_FLAG} is not")
        why = (
            f"this container cannot see {path}, the host path from {host[1]}: mount it into the container, and "
            "set its mount point"
        )
        return DriverRoot(Path("/"), f"{why} with --{CONTAINER_PATH_FLAG}", False)
    return DriverRoot(Path("/"), f"if the driver is elsewhere, set --{CONTAINER_PATH_FLAG}", False)


def seen(root: DriverRoot, machine: str) -> Path | None:
    """Where the driver's root is for a machine; None where a described one has none here."""
    return root.path if machine == NVML or (root.is_known and _is_there(root.path)) else None


def _is_there(path: Path) -> bool:
    """Whether a directory is seen there. One that is closed to us is not: the way to it may be, too."""
    with suppress(OSError):
        return path.is_dir()
    return False


def contained(environment: Mapping[str, str]) -> bool:
    """Whether this process is in a container: by its process ids, what a pod is told, or what a runtime leaves."""
    return (
        not has_host_pids()
        or "KUBERNETES_SERVICE_HOST" in environment
        or any(each.exists() for each in CONTAINER_MARKER_FILES)
    )
