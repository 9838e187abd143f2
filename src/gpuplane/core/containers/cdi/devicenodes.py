"""Device nodes: which there are beside those of the GPUs, and what a document says of each.

A document names a node's type and numbers wherever they are known. A runtime then makes the node without looking at the
host's, and tells systemd the very numbers, so that a reload of systemd does not take the node away from a container.
"""

from collections.abc import Iterable, Mapping
from posixpath import normpath

from gpuplane.model.cdi import ContainerEdits, DeviceNode
from gpuplane.model.machine import DeviceNumbers

CONTROL_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
"""Those that every container gets, so far as they exist (nvidia-container-toolkit 1.20, pkg/nvcdi/common-nvml.go);
in the order in which NVIDIA's device plugin names them to kubelet."""

IMEX_CHANNEL_PREFIX = "/dev/nvidia-caps-imex-channels/channel"
WORLD_READ_WRITE = 0o006
"""The permission bits of everybody."""


def node_edits(
    paths: Iterable[str], numbers: Mapping[str, DeviceNumbers], root: str, *, groups: bool = True
) -> ContainerEdits:
    """Nodes, and the groups that a container's processes need to open them (internal/edits/device.go).

    `root` is the folder on the host whose dev/ has them; without `groups` a container is put into no group.
    """
    there = tuple(dict.fromkeys(paths))
    known = [numbers[path] for path in there if path in numbers] if groups else []
    return ContainerEdits(
        device_nodes=tuple(_device_node(path, numbers.get(path), root) for path in there),
        additional_gids=tuple(
            each.gid for each in known if each.gid and each.mode & WORLD_READ_WRITE != WORLD_READ_WRITE
        ),
    )


def _device_node(path: str, numbers: DeviceNumbers | None, root: str) -> DeviceNode:
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
    """Where the host has a path that is inside a root. No `..` leads out of it."""
    return root.rstrip("/") + normpath(f"/{path.lstrip('/')}")
