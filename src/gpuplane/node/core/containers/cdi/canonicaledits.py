"""Merges edits into a canonical form: each thing once, in an order that depends only on the things themselves.

A specification is compared and digested, and people read what changed in it. So nodes and mounts are ordered by the
depth of their path and then by the path, like NVIDIA's (nvidia-container-toolkit 1.20, pkg/nvcdi/transform), variables
and groups alphabetically. Hooks keep their order, because they run in it.
"""

from collections.abc import Callable, Iterable
from typing import TypeVar

from gpuplane.node.model.cdi import ContainerEdits

T = TypeVar("T")


def merge_and_sort_edits(edits: Iterable[ContainerEdits]) -> ContainerEdits:
    """All these edits as one. Of two nodes or mounts with one path in the container the first is kept."""
    every = tuple(edits)
    return ContainerEdits(
        env=tuple(sorted({each for one in every for each in one.env})),
        device_nodes=_first_item_of_each_path(
            (node for one in every for node in one.device_nodes), lambda node: node.path
        ),
        hooks=tuple(dict.fromkeys(hook for one in every for hook in one.hooks)),
        mounts=_first_item_of_each_path(
            (mount for one in every for mount in one.mounts), lambda mount: mount.container_path
        ),
        additional_gids=tuple(sorted({gid for one in every for gid in one.additional_gids})),
    )


def subtract_edits(edits: ContainerEdits, common: ContainerEdits) -> ContainerEdits:
    """The edits without those that are already common to all devices."""
    return ContainerEdits(
        env=_subtract_items(edits.env, common.env),
        device_nodes=_subtract_items(edits.device_nodes, common.device_nodes),
        hooks=_subtract_items(edits.hooks, common.hooks),
        mounts=_subtract_items(edits.mounts, common.mounts),
        additional_gids=_subtract_items(edits.additional_gids, common.additional_gids),
    )


def _subtract_items(items: tuple[T, ...], others: tuple[T, ...]) -> tuple[T, ...]:
    return tuple(each for each in items if each not in others) if others else items


def _first_item_of_each_path(items: Iterable[T], path_of: Callable[[T], str]) -> tuple[T, ...]:
    found: dict[str, T] = {}
    for thing in items:
        found.setdefault(path_of(thing), thing)
    return tuple(found[each] for each in sorted(found, key=lambda each: (each.count("/"), each)))
