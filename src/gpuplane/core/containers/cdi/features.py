"""What is not a GPU but belongs to one: IMEX channels, GPUDirect Storage and RDMA, GDRCopy, NVSwitches, management.

Each is a document of its own, of nodes that exist; they need nothing of the driver's files, but for management
(nvidia-container-toolkit 1.20, pkg/nvcdi/{lib-imex,gated,management}.go, internal/discover/{gds,gdrcopy,mofed}.go).
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from gpuplane.core.containers.cdi.devices import missing
from gpuplane.core.containers.cdi.nodes import CHANNELS, MOST_CHANNELS
from gpuplane.core.containers.cdi.request import ALL, Mode
from gpuplane.model.machine import Machine

NODES: Mapping[Mode, tuple[re.Pattern[str], str]] = {
    "gds": (re.compile(r"/dev/nvidia-fs\d+"), "/dev/nvidia-fs*"),
    "gdrcopy": (re.compile(r"/dev/gdrdrv"), "/dev/gdrdrv"),
    "mofed": (re.compile(r"/dev/infiniband/(uverbs\d+|rdma_cm)"), "/dev/infiniband/uverbs*"),
    "nvswitch": (re.compile(r"/dev/nvidia-nvswitch(ctl|\d+)"), "/dev/nvidia-nvswitch*"),
    "management": (re.compile(r"/dev/nvidia(?!-fs|-nvswitch|-nvlink).*"), "/dev/nvidia*"),
}
"""Mode → its nodes, and what they are called for people."""


def nodes(machine: Machine, mode: Mode) -> list[str]:
    """The nodes that exist of a mode's one device, `all`."""
    pattern, _ = NODES[mode]
    there = [*machine.nodes, *(path for device in machine.devices for path in device.nodes)]
    if mode == "management":
        there += _own(machine)
    return [path for path in dict.fromkeys(there) if pattern.fullmatch(path)]


def _own(machine: Machine) -> Iterator[str]:
    """The nodes of GPUs and of MIG devices."""
    for gpu in machine.gpus or ():
        yield from () if missing(gpu.faults) else gpu.nodes
        for device in gpu.mig.devices if gpu.mig else ():
            yield from () if missing(device.faults) else device.nodes


def channels(machine: Machine, ids: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    """The IMEX channels of these ids, "0" or "channel0", () for all: name → node. Then those that do not exist.

    Raises ValueError for an id that no channel can have.
    """
    wanted = list(ids)
    if not wanted or ALL in wanted:
        return {path.removeprefix(CHANNELS): path for path in machine.nodes if path.startswith(CHANNELS)}, {}
    found = {name: f"{CHANNELS}{name}" for name in map(_channel, wanted)}
    there = set(machine.nodes)
    return (
        {name: path for name, path in found.items() if path in there},
        {name: path for name, path in found.items() if path not in there},
    )


def _channel(id: str) -> str:
    number = id.removeprefix("channel")
    if not (number.isascii() and number.isdecimal() and int(number) < MOST_CHANNELS):
        raise ValueError(f"{id!r} is no IMEX channel: they go by number, from 0 to {MOST_CHANNELS - 1}")
    return str(int(number))
