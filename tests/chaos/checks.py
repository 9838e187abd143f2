"""What is checked of kubelet's books and of the lists that it gets."""

from collections import Counter
from collections.abc import Iterator, Mapping

from gpuplane.node.core.shares import unit_of
from gpuplane.sandbox.kubelet import Kubelet
from gpuplane.sandbox.kubelet.endpoint import Endpoint
from tests.chaos.belief import Belief


def contradiction(unit: str, health: str, beliefs: tuple[Belief, ...], now: float) -> str:
    """Why a device may not be shown so; "" if it may. One of the beliefs holds: that of the last quiet moment, or
    those before and after what is done now."""
    if health == "Unhealthy" and not any(belief.touched(unit) for belief in beliefs):
        return "it has no fault and no drain"
    if health == "Healthy" and all(belief.surely_ill(unit, now) for belief in beliefs):
        return "its fault or drain is not over"
    return ""


def given_too_often(kubelet: Kubelet, shares: int) -> str:
    """A device that is given to more pods than it has shares; "" where none is."""
    ids = Counter(id for uid, id in _given(kubelet))
    for id, count in ids.items():
        if count > 1:
            return f"{id} is given to {count} containers"
    for unit, pods in holders(kubelet).items():
        if len(pods) > shares:
            return f"{unit} is given to {len(pods)} pods, and has {shares} shares"
    return ""


def holders(kubelet: Kubelet) -> dict[str, frozenset[str]]:
    """unit → the pods that hold it."""
    running, found = {each.pod.uid: key for key, each in kubelet.pods.items()}, dict[str, set[str]]()
    for uid, id in _given(kubelet):
        found.setdefault(unit_of(id), set()).add(running[uid])
    return {unit: frozenset(pods) for unit, pods in found.items()}


def _given(kubelet: Kubelet) -> Iterator[tuple[str, str]]:
    """(a running pod's UID, an id that one of its containers holds)."""
    running = {each.pod.uid for each in kubelet.pods.values()}
    for place, held in kubelet.devices.allocated.items():
        yield from ((place.uid, id) for id in held.ids if place.uid in running)


def shown(kubelet: Kubelet, heard: Mapping[str, Endpoint]) -> dict[str, str]:
    """unit → its health in kubelet's books; "mixed" where its shares differ, "unheard" where kubelet waits for a plugin
    or its first list: then all counts as unhealthy, and nobody said so.

    `heard`: which plugin it was that sent the last list of a resource.
    """
    found: dict[str, set[str]] = {}
    for resource, devices in kubelet.device_health().items():
        plugin = kubelet.manager.endpoints.get(resource)
        said = kubelet.devices.resources[resource].stopped_at is None and heard.get(resource) is plugin
        for id, health in devices.items():
            found.setdefault(unit_of(id), set()).add(health if said else "unheard")
    return {unit: healths.pop() if len(healths) == 1 else "mixed" for unit, healths in found.items()}
