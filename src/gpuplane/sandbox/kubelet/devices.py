"""What the device manager knows and decides, without any I/O (pkg/kubelet/cm/devicemanager of kubelet 1.36).

Rules that surprise, and stay put because kubelet has them:
- Capacity counts every device of a list, allocatable the healthy ones. When a stream ends, all devices of its resource
  count as unhealthy at once, whichever Register the stream belongs to; five minutes later the resource is gone.
- After kubelet's start the resources of its checkpoint are known with capacity 0 until they register again.
- An init container's devices are the first that the pod's later containers get, but for those of a side-car.
- A preference is advice: what is missing is filled up, what is not available is passed over.
"""

import random
from collections.abc import Iterable, Mapping, Sequence

import msgspec

STOPPED_FOR = 300.0
"""Seconds after its stream's end when a resource disappears (endpointStopGracePeriod)."""


class Refusal(Exception):
    """Devices cannot be given; kubelet's message."""


class Known(msgspec.Struct):
    """One resource: the NUMA nodes of each device by health, and since when its plugin is gone."""

    healthy: dict[str, tuple[int, ...]] = {}
    unhealthy: dict[str, tuple[int, ...]] = {}
    stopped: float | None = None


Allocated = dict[str, dict[str, dict[str, tuple[str, ...]]]]
"""pod UID → container → resource → device ids."""


class Devices(msgspec.Struct):
    """The device manager's books."""

    resources: dict[str, Known] = {}
    allocated: Allocated = {}

    def listed(self, resource: str, devices: Iterable[tuple[str, str, tuple[int, ...]]]) -> None:
        """A plugin sent its list of (id, health, NUMA nodes)."""
        known = self.resources.setdefault(resource, Known())
        devices = tuple(devices)
        known.healthy = {id: numa for id, health, numa in devices if health == "Healthy"}
        known.unhealthy = {id: numa for id, health, numa in devices if health != "Healthy"}

    def disconnected(self, resource: str, now: float) -> None:
        """A stream of this resource has ended."""
        known = self.resources.setdefault(resource, Known())
        known.unhealthy |= known.healthy
        known.healthy = {}
        known.stopped = now

    def figures(self, now: float) -> dict[str, tuple[int, int]]:
        """resource → (capacity, allocatable), as the Node object would show them."""
        for name in [n for n, k in self.resources.items() if k.stopped is not None and now - k.stopped > STOPPED_FOR]:
            del self.resources[name]
        return {n: (len(k.healthy) + len(k.unhealthy), len(k.healthy)) for n, k in self.resources.items()}

    def used(self, resource: str) -> set[str]:
        """The ids of a resource that containers hold."""
        return {
            each
            for containers in self.allocated.values()
            for held in containers.values()
            for each in held.get(resource, ())
        }

    def held(self, uid: str, container: str) -> Mapping[str, tuple[str, ...]]:
        """resource → ids that a container holds."""
        return self.allocated.get(uid, {}).get(container, {})

    def take(self, uid: str, container: str, resource: str, ids: Iterable[str]) -> None:
        """Enter that a container holds these ids."""
        self.allocated.setdefault(uid, {}).setdefault(container, {})[resource] = tuple(ids)

    def free(self, uid: str) -> None:
        """The pod is gone."""
        self.allocated.pop(uid, None)

    def available(self, resource: str, wanted: int, reusable: Iterable[str]) -> tuple[list[str], list[str]]:
        """(ids to take first because the pod has them already, ids to choose the rest from). Raises Refusal."""
        known = self.resources.get(resource)
        if known is None:
            raise Refusal(f"cannot allocate unregistered device {resource}")
        if not known.healthy:
            raise Refusal(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        first = sorted(each for each in reusable if each in known.healthy)[:wanted]
        free = known.healthy.keys() - self.used(resource)
        needed = wanted - len(first)
        if len(free) < needed:
            raise Refusal(
                f"requested number of devices unavailable for {resource}. Requested: {needed}, Available: {len(free)}"
            )
        return first, sorted(free)

    def affinity(
        self, resource: str, ids: Iterable[str], numa: frozenset[int] | None
    ) -> tuple[list[str], list[str], list[str]]:
        """(near the wanted NUMA nodes, elsewhere, without NUMA), as filterByAffinity parts them."""
        nodes = self.resources[resource].healthy
        if numa is None:
            return [], [], list(ids)
        near = [id for id in ids if set(nodes[id]) & numa]
        far = [id for id in ids if nodes[id] and not set(nodes[id]) & numa]
        return near, far, [id for id in ids if not nodes[id]]

    def hint(self, resource: str, ids: Sequence[str], count: int) -> frozenset[int] | None:
        """The fewest NUMA nodes, lowest first, that have `count` of these ids (policy best-effort); None: no hint."""
        nodes = self.resources[resource].healthy
        by_node: dict[int, int] = {}
        for id in ids:
            for node in nodes[id]:
                by_node[node] = by_node.get(node, 0) + 1
        fitting = [node for node, n in sorted(by_node.items()) if n >= count]
        if fitting:
            return frozenset(fitting[:1])
        return frozenset(by_node) or None


def pick(first: Sequence[str], wanted: int, *pools: Iterable[str]) -> list[str]:
    """The first ids, then as many as are wanted from the pools in turn."""
    chosen = dict.fromkeys(first)
    for pool in pools:
        for id in pool:
            if len(chosen) >= wanted:
                break
            chosen.setdefault(id)
    return list(chosen)


def shuffled(ids: Iterable[str], seed: random.Random) -> list[str]:
    """In the order of a Go map: none."""
    order = sorted(ids)
    seed.shuffle(order)
    return order
