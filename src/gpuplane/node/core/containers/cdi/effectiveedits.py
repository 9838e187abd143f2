"""The effect of the edits of several devices on a container (CNCF, pkg/cdi/container-edits.go).

A runtime concatenates the edits of all devices and applies them in that order. Of variables with one name, nodes or
mounts with one path and network interfaces with one name, the last one is effective: a variable at the place of the
first, a node or a mount at the place of the last. Mounts are then sorted by the depth of their paths. Hooks are never
compared: each one runs, and twice if it is listed twice. A supplementary group 0 is ignored.
"""

import posixpath
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from gpuplane.node.model.cdi import ContainerEdits, Mount

T = TypeVar("T")


def concatenate_edits(edits: Iterable[ContainerEdits]) -> ContainerEdits:
    """All edits as one, in their order."""
    several = tuple(edits)
    return ContainerEdits(
        env=tuple(each for one in several for each in one.env),
        device_nodes=tuple(each for one in several for each in one.device_nodes),
        net_devices=tuple(each for one in several for each in one.net_devices),
        hooks=tuple(each for one in several for each in one.hooks),
        mounts=tuple(each for one in several for each in one.mounts),
        intel_rdt=next((one.intel_rdt for one in reversed(several) if one.intel_rdt is not None), None),
        additional_gids=tuple(each for one in several for each in one.additional_gids),
    )


def drop_overridden_edits(edits: ContainerEdits) -> ContainerEdits:
    """The edits that take effect."""
    return edits.but(
        env=tuple({each.partition("=")[0]: each for each in edits.env}.values()),
        device_nodes=_last_item_of_each_key(edits.device_nodes, lambda node: node.path),
        net_devices=_last_item_of_each_key(edits.net_devices, lambda device: device.host_interface_name),
        mounts=tuple(sorted(_last_item_of_each_key(edits.mounts, lambda mount: mount.container_path), key=_path_depth)),
        additional_gids=tuple(dict.fromkeys(gid for gid in edits.additional_gids if gid)),
    )


def _last_item_of_each_key(items: Sequence[T], key_of: Callable[[T], str]) -> tuple[T, ...]:
    """The last thing of each key, at its place."""
    last = {key_of(each): i for i, each in enumerate(items)}
    return tuple(each for i, each in enumerate(items) if last[key_of(each)] == i)


def _path_depth(mount: Mount) -> int:
    return posixpath.normpath(mount.container_path).count("/")
