"""The device nodes of features that are not GPUs: IMEX channels, GPUDirect Storage and RDMA, GDRCopy, NVSwitches,
management.

Each has a specification of its own, with the nodes that exist. None needs the driver's files, except management
(nvidia-container-toolkit 1.20, pkg/nvcdi/{lib-imex,gated,management}.go, internal/discover/{gds,gdrcopy,mofed}.go).
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpuplane.node.core.containers.cdi.devicenodes import IMEX_CHANNEL_PREFIX
from gpuplane.node.core.containers.cdi.devices import describe_missing_nodes
from gpuplane.node.core.containers.cdi.specrequest import ALL_NAME, SpecMode
from gpuplane.node.model.machine import Machine

NODE_PATTERNS_BY_MODE: Mapping[SpecMode, tuple[re.Pattern[str], str]] = {
    "gds": (re.compile(r"/dev/nvidia-fs\d+"), "/dev/nvidia-fs*"),
    "gdrcopy": (re.compile(r"/dev/gdrdrv"), "/dev/gdrdrv"),
    "mofed": (re.compile(r"/dev/infiniband/(uverbs\d+|rdma_cm)"), "/dev/infiniband/uverbs*"),
    "nvswitch": (re.compile(r"/dev/nvidia-nvswitch(ctl|\d+)"), "/dev/nvidia-nvswitch*"),
    "management": (re.compile(r"/dev/nvidia(?!-fs|-nvswitch|-nvlink).*"), "/dev/nvidia*"),
}
"""Mode → pattern of its nodes, and that pattern for people."""


def feature_node_paths(machine: Machine, mode: SpecMode) -> list[str]:
    """The existing nodes of a mode's only device, `all`."""
    pattern, _ = NODE_PATTERNS_BY_MODE[mode]
    there = [*machine.shared_nodes, *(_gpu_and_mig_node_paths(machine) if mode == "management" else ())]
    return [path for path in dict.fromkeys(there) if pattern.fullmatch(path)]


def _gpu_and_mig_node_paths(machine: Machine) -> Iterator[str]:
    """The existing nodes of GPUs and MIG devices."""
    for gpu in machine.gpus or ():
        yield from () if describe_missing_nodes(gpu.faults) else gpu.device_nodes
        for device in gpu.mig_devices:
            yield from () if describe_missing_nodes(device.faults) else device.device_nodes


def select_imex_channels(machine: Machine, ids: Iterable[str]) -> tuple[Mapping[str, str], Sequence[str]]:
    """(name → node of the existing IMEX channels, missing nodes). `ids`: "0" or "channel0"; () for all."""
    there = {
        path.removeprefix(IMEX_CHANNEL_PREFIX): path
        for path in machine.shared_nodes
        if path.startswith(IMEX_CHANNEL_PREFIX)
    }
    names = [id.removeprefix("channel") for id in ids]
    if not names or ALL_NAME in names:
        return there, () if there else (f"{IMEX_CHANNEL_PREFIX}*",)
    return (
        {name: there[name] for name in names if name in there},
        [f"{IMEX_CHANNEL_PREFIX}{name}" for name in names if name not in there],
    )
