"""What the device manager knows and decides, without any I/O (pkg/kubelet/cm/devicemanager of kubelet 1.36).

Rules that surprise, and stay put because kubelet has them:
- Capacity counts every device of a list, allocatable the healthy ones. When a stream ends, all devices of its resource
  count as unhealthy at once; five minutes later the resource is gone.
- The health that a pod's status shows is what the last list said, and no more: the end of a stream changes nothing
  there, and a device that no list names any longer is shown as healthy.
- After kubelet's start the resources of its checkpoint are known with capacity 0 until they register again.
- An init container's devices are the first that the pod's later containers get, but for those of a side-car. Nobody
  looks whether they are still healthy.
- A preference is advice and a set: what is missing is filled up, what is not available is passed over, and of more ids
  than were asked for any may be taken.
- Ids have no order anywhere: they are kept in Go's sets and maps.
"""

import random
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import msgspec

from gpuplane.node.kubelet.protocols import deviceplugin_pb2 as pb
from gpuplane.sandbox.kubelet.topology import split_by_affinity, topology_hint

STOP_GRACE_PERIOD = 300.0
"""Seconds after its stream's end when a resource disappears (endpointStopGracePeriod)."""


class KubeletError(Exception):
    """Devices cannot be given; kubelet's message."""


class ResourceState(msgspec.Struct):
    """One resource: its last list (id → health, id → NUMA nodes), what of it counts, since when its plugin is gone."""

    last_list: dict[str, str] = {}
    numa_nodes: dict[str, tuple[int, ...]] = {}
    healthy: set[str] = set()
    unhealthy: set[str] = set()
    stopped_at: float | None = None


class AllocationKey(NamedTuple):
    """Where devices are."""

    uid: str
    container: str
    resource: str


class HeldDevices(msgspec.Struct, frozen=True):
    """What a container holds of one resource: id → NUMA nodes, and what Allocate answered."""

    ids: Mapping[str, tuple[int, ...]]
    response: pb.ContainerAllocateResponse


class Choice(msgspec.Struct, frozen=True):
    """Ids half chosen: some are taken, the plugin may advise on others, and the rest fills up in this order."""

    size: int
    taken: tuple[str, ...]
    candidates: tuple[str, ...] = ()
    remaining: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to be advised."""
        return len(self.taken) >= self.size

    def complete(self, advice: Collection[str], rng: random.Random) -> list[str]:
        """As many ids as are wanted, in no order."""
        advised = shuffled(set(advice) & set(self.candidates), rng)
        return shuffled(list(dict.fromkeys((*self.taken, *advised, *self.remaining)))[: self.size], rng)


class Devices(msgspec.Struct):
    """The device manager's books."""

    resources: dict[str, ResourceState] = {}
    allocated: dict[AllocationKey, HeldDevices] = {}

    def update_list(self, resource: str, devices: Iterable[tuple[str, str, tuple[int, ...]]]) -> None:
        """A plugin sent its list of (id, health, NUMA nodes)."""
        known = self.resources.setdefault(resource, ResourceState())
        devices = tuple(devices)
        known.last_list = {id: health for id, health, _ in devices}
        known.numa_nodes = {id: nodes for id, _, nodes in devices}
        known.healthy = {id for id, health in known.last_list.items() if health == "Healthy"}
        known.unhealthy = known.last_list.keys() - known.healthy

    def mark_connected(self, resource: str) -> None:
        """A plugin has registered; its first list is still to come."""
        if resource in self.resources:
            self.resources[resource].stopped_at = None

    def mark_disconnected(self, resource: str, now: float) -> None:
        """A stream of this resource has ended."""
        known = self.resources.setdefault(resource, ResourceState())
        known.unhealthy |= known.healthy
        known.healthy = set()
        known.stopped_at = now

    def remove_expired(self, now: float) -> list[str]:
        """Forget the resources whose plugins have been gone for too long; their names."""
        gone = [name for name, known in self.resources.items() if _expired(known, now)]
        for name in gone:
            del self.resources[name]
        return gone

    def capacities(self) -> dict[str, tuple[int, int]]:
        """resource → (capacity, allocatable)."""
        return {n: (len(k.healthy) + len(k.unhealthy), len(k.healthy)) for n, k in self.resources.items()}

    def is_plugin_resource(self, resource: str) -> bool:
        """Whether a resource is a device plugin's (isDevicePluginResource)."""
        return resource in self.resources or any(place.resource == resource for place in self.allocated)

    def held_ids(self, resource: str) -> set[str]:
        """The ids of a resource that containers hold."""
        return {id for place, held in self.allocated.items() if place.resource == resource for id in held.ids}

    def held_by(self, uid: str, container: str) -> dict[str, tuple[str, ...]]:
        """resource → ids that a container holds."""
        return {
            place.resource: tuple(held.ids)
            for place, held in self.allocated.items()
            if (place.uid, place.container) == (uid, container)
        }

    def record_allocation(self, key: AllocationKey, ids: Iterable[str], response: pb.ContainerAllocateResponse) -> None:
        """Enter that a container holds these ids."""
        known = self.resources.get(key.resource, ResourceState())
        self.allocated[key] = HeldDevices({id: known.numa_nodes.get(id, ()) for id in ids}, response)

    def free_others(self, active: Collection[str]) -> None:
        """Free what all pods but these hold."""
        self.allocated = {place: held for place, held in self.allocated.items() if place.uid in active}

    def health(self, resource: str, id: str) -> str:
        """What a pod's allocatedResourcesStatus says of a device: Healthy or Unhealthy."""
        known = self.resources.get(resource, ResourceState())
        return "Healthy" if known.last_list.get(id, "Healthy") == "Healthy" else "Unhealthy"

    def choose(
        self, resource: str, wanted: int, reusable: Collection[str], rng: random.Random, prefer_numa: bool = False
    ) -> Choice:
        """Which ids a container may get; near the NUMA nodes that fit if `prefer_numa`. Raises KubeletError."""
        known = self.resources.get(resource)
        if known is None:
            raise KubeletError(f"cannot allocate unregistered device {resource}")
        if not known.healthy:
            raise KubeletError(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        reused = shuffled(reusable, rng)[:wanted]
        if len(reused) == wanted:
            return Choice(wanted, tuple(reused))
        free = shuffled(known.healthy - self.held_ids(resource), rng)
        missing = wanted - len(reused)
        if len(free) < missing:
            numbers = f"Requested: {missing}, Available: {len(free)}"
            raise KubeletError(f"requested number of devices unavailable for {resource}. {numbers}")
        nodes = {id: known.numa_nodes.get(id, ()) for id in {*known.numa_nodes, *reusable}}
        near, far, nowhere = split_by_affinity(
            nodes, free, topology_hint(nodes, free, reusable, wanted) if prefer_numa else frozenset()
        )
        if missing < len(near):
            return Choice(wanted, tuple(reused), tuple(near), tuple(near))
        return Choice(wanted, (*reused, *near), (*far, *nowhere), (*far, *nowhere))


def shuffled(ids: Collection[str], rng: random.Random) -> list[str]:
    """In the order of a Go map: none."""
    order = sorted(ids)
    rng.shuffle(order)
    return order


def _expired(known: ResourceState, now: float) -> bool:
    return known.stopped_at is not None and now - known.stopped_at > STOP_GRACE_PERIOD
