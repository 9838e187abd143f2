"""What `--machine` means: the driver's, or a described one."""

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

from gpuplane.node.hardware import GpuSource, Source
from gpuplane.node.hardware.described.profiles import find_machine_file
from gpuplane.node.host.filewatch import watch_file

if TYPE_CHECKING:
    import socket
    import subprocess

NVML = "nvml"


def hardware(
    machine: str,
    *,
    driver_root: Path = Path("/"),
    library_folders: tuple[str, ...] = (),
    root_chosen: str = "",
    dev_root: Path | None = None,
    host_root: Path = Path("/"),
    deadline: float = 10.0,
    host_pids: bool = True,
    own_uuids_of_node: str = "",
    first: "tuple[subprocess.Popen[bytes], socket.socket] | None" = None,
) -> GpuSource:
    """The source of GPUs that is meant: `nvml`, a profile or a file. Raises UnknownMachine, FileNotFoundError.

    `driver_root`: where this process sees the driver's root, and `library_folders` those below it where its libraries
    are looked for first; `root_chosen`: what decided that, for people. `dev_root`:
    whose /dev has the driver's nodes; without it the driver's root, as NVIDIA has it. `host_root`: where /sys, /proc
    and /dev are otherwise. `deadline`: seconds that a call of the driver may take.
    `host_pids`: whether the numbers of processes are the host's here. `own_uuids_of_node`: the Node whose own the UUIDs
    of a described machine shall be; "" for those of its file. `first`: see `cli/commands/agent/firstdriver.py`.
    """
    if machine == NVML:
        from gpuplane.node.hardware.nvidia.settings import DriverLocation, Timing
        from gpuplane.node.hardware.nvidia.source import Nvidia

        nodes = dev_root or (driver_root if driver_root != Path("/") else host_root)
        location = DriverLocation(
            driver_root=driver_root,
            library_folders=library_folders,
            root_chosen=root_chosen,
            root=host_root,
            dev_root=nodes,
            host_pids=host_pids,
        )
        return Nvidia(location, Timing(deadline=deadline), first)
    from gpuplane.node.hardware.described.source import Described

    file = _require_file(find_machine_file(machine))
    return Described(watch_file(file, every=0.2), file.name, own_uuids_of_node)


def other_sources(machine: str, devices_file: str, host_root: Path) -> list[Source]:
    """The sources of devices that are no GPUs: a described machine's, or those of this node.

    A file names devices whose device nodes are looked for. Raises UnknownMachine, FileNotFoundError.
    """
    if machine == NVML and not devices_file:
        return []
    from gpuplane.node.hardware.plain.source import PlainDevices

    if devices_file:
        file = _require_file(Path(devices_file))
        return [PlainDevices(watch_file(file), file.name, root=host_root)]
    file = _require_file(find_machine_file(machine))
    return [PlainDevices(watch_file(file, every=0.2), file.name)]


def _require_file(file: Path) -> Path:
    """The file. One that vanishes later is waited for. Raises FileNotFoundError."""
    if not file.exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(file))
    return file
