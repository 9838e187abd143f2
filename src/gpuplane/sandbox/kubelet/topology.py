"""Which NUMA nodes a container's devices should come from (devicemanager/topology_hints.go, policy best-effort).

Kubelet merges the hints of all resources of a container, and those of CPU and memory; here each resource stands alone.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations
from typing import TypeAlias

NumaNodes: TypeAlias = Mapping[str, tuple[int, ...]]
"""Device id → its NUMA nodes, none where it has none."""


def topology_hint(
    numa_nodes: NumaNodes, available: Collection[str], reusable: Collection[str], wanted: int
) -> frozenset[int]:
    """The fewest NUMA nodes, lowest first, that have so many of these ids and all that are reused; or none."""
    every = sorted({node for each in numa_nodes.values() for node in each})
    for size in range(1, len(every) + 1):
        for mask in sorted(combinations(every, size), key=lambda mask: mask[::-1]):
            near = [id for id in (*available, *reusable) if not set(mask).isdisjoint(numa_nodes[id])]
            if len(near) >= wanted and all(id in near for id in reusable if numa_nodes[id]):
                return frozenset(mask)
    return frozenset()


def split_by_affinity(
    numa_nodes: NumaNodes, ids: Iterable[str], mask: frozenset[int]
) -> tuple[list[str], list[str], list[str]]:
    """(near the wanted nodes, elsewhere, without NUMA). Without a hint nothing is near or far (filterByAffinity)."""
    parts: tuple[list[str], list[str], list[str]] = [], [], []
    for id in ids:
        parts[2 if not mask or not numa_nodes[id] else int(mask.isdisjoint(numa_nodes[id]))].append(id)
    return parts


def ids_by_numa_node(nodes: NumaNodes) -> dict[int, list[str]]:
    """NUMA node → ids; -1 for those without. A device of several nodes stands under each."""
    found: dict[int, list[str]] = {}
    for id, each in nodes.items():
        for node in each or (-1,):
            found.setdefault(node, []).append(id)
    return found


def numa_nodes_by_id(ids: Mapping[int, Sequence[str]]) -> dict[str, tuple[int, ...]]:
    """The reverse of `ids_by_numa_node`; nodes in their order."""
    found: dict[str, tuple[int, ...]] = {}
    for node, each in sorted(ids.items()):
        for id in each:
            found[id] = (*found.get(id, ()), *((node,) if node >= 0 else ()))
    return found
