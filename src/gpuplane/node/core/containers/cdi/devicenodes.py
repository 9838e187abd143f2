"""Device nodes in a specification, and the paths of those that belong to no single GPU.

A specification has a node's type and numbers if they are known. Then a runtime creates the node without looking at the
host's, and passes the numbers to systemd. So a reload of systemd does not take the node away from a container.
"""

from collections.abc import Iterable, Mapping
from posixpath import normpath

from gpuplane.node.model.cdi import ContainerEdits, DeviceNode
from gpuplane.node.model.machine import DeviceNodeStat

CONTROL_NODE_PATHS = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
"""The nodes that every container gets if they exist (nvidia-container-toolkit 1.20, pkg/nvcdi/common-nvml.go);
in the order in which NVIDIA's device plugin lists them for kubelet."""

IMEX_CHANNEL_PREFIX = "/dev/nvidia-caps-imex-channels/channel"
WORLD_READ_WRITE_MODE_BITS = 0o006
"""The permission bits with which every process can read and write a node."""


def device_node_edits(
    paths: Iterable[str], numbers: Mapping[str, DeviceNodeStat], root: str, *, with_groups: bool = True
) -> ContainerEdits:
    """Edits for these nodes, with the groups that a container's processes need to open them (internal/edits/device.go).

    `root`: the host directory whose dev/ has the nodes. `with_groups`: False for no groups.
    """
    there = tuple(dict.fromkeys(paths))
    known = [numbers[path] for path in there if path in numbers] if with_groups else []
    return ContainerEdits(
        device_nodes=tuple(_device_node(path, numbers.get(path), root) for path in there),
        additional_gids=tuple(
            each.gid
            for each in known
            if each.gid and each.mode & WORLD_READ_WRITE_MODE_BITS != WORLD_READ_WRITE_MODE_BITS
        ),
    )


def _device_node(path: str, numbers: DeviceNodeStat | None, root: str) -> DeviceNode:
    host = host_path(root, path)
    node = DeviceNode(path=path, host_path="" if host == path else host, permissions="rwm")
    if numbers is None:
        return node
    return node.but(
        type="c",
        major=numbers.major,
        minor=numbers.minor,
        file_mode=numbers.mode,
        gid=numbers.gid or None,
    )


def host_path(root: str, path: str) -> str:
    """The path on the host of a path inside a root. No `..` leads out of the root."""
    return root.rstrip("/") + normpath(f"/{path.lstrip('/')}")
