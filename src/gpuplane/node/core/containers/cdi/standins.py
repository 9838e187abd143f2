"""Stand-ins: what a container gets with a described device on a node that has no such device.

Its environment, and /dev/null by the name of each device node. No file of the driver, no hook and no group: the node
has none of them. A stand-in is a read-only mount, and not a device node with another path on the host:
- For a container in a user namespace runc binds the host's node of the container's path, whatever node was asked for
  (runc 1.1.5, libcontainer/rootfs_linux.go, bindMountDeviceNode). That is another device, or none.
- A device on a read-only mount can be read and written, but root of the container cannot change the mode of the node's
  /dev/null.
"""

from collections.abc import Iterable, Mapping

from gpuplane.node.model.cdi import ContainerEdits
from gpuplane.node.model.cdi import Mount as CdiMount
from gpuplane.node.model.views import Mount

STAND_IN_PATH = "/dev/null"
STAND_IN_MOUNT_OPTIONS = ("ro", "nosuid", "noexec", "rbind", "rprivate")


def stand_in_mounts(paths: Iterable[str]) -> tuple[Mount, ...]:
    """The stand-ins of these device nodes, for kubelet."""
    return tuple(Mount(container_path=path, host_path=STAND_IN_PATH, read_only=True) for path in paths)


def stand_in_edits(edits: ContainerEdits) -> ContainerEdits:
    """The environment, and the stand-ins of the device nodes."""
    paths = dict.fromkeys(node.path for node in edits.device_nodes)
    mounts = (CdiMount(STAND_IN_PATH, path, STAND_IN_MOUNT_OPTIONS) for path in paths)
    return ContainerEdits(env=edits.env, mounts=tuple(mounts))


def stand_ins_by_name(edits_by_name: Mapping[str, ContainerEdits]) -> Mapping[str, ContainerEdits]:
    """The same for several."""
    return {name: stand_in_edits(edits) for name, edits in edits_by_name.items()}
