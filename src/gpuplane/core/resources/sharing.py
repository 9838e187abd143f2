"""Time-slicing: a device becomes several ids of one resource (k8s-device-plugin 0.20, internal/rm/device_map.go).

Entries are taken in the order of the file, and a device goes to the first that selects it. What no entry selects stays
as it was, under its own name. An entry takes what it finds: a device that is not there today, or a count beyond those
that are, costs the others nothing.
"""

from collections.abc import Iterable

from gpuplane.core.resources.naming import Decision
from gpuplane.model.config import Replication, Sharing


def share(decisions: Iterable[Decision], sharing: Sharing) -> list[Decision]:
    """The decisions with the shares of each unit, and the name that shared units go by."""
    shared = list(decisions)
    free: dict[str, list[int]] = {}
    for n, decision in enumerate(shared):
        free.setdefault(decision.name, []).append(n)
    for i, entry in enumerate(sharing.resources):
        for n in _selected(entry, free.get(entry.name, []), shared):
            free[entry.name].remove(n)
            shared[n] = shared[n].but(
                name=entry.rename or entry.name, replicas=entry.replicas, shared_by=f"sharing.{i}"
            )
    return shared


def _selected(entry: Replication, free: list[int], decisions: list[Decision]) -> list[int]:
    match entry.devices:
        case None:
            return list(free)
        case int(count):
            return free[:count]
        case references:
            wanted = set(references)
            return [n for n in free if not wanted.isdisjoint((decisions[n].unit.id, decisions[n].unit.index))]


def share_ids(id: str, replicas: int) -> list[str]:
    """The ids under which kubelet sees a unit: its own, or one for each share."""
    return [id] if replicas < 2 else [f"{id}::{n}" for n in range(replicas)]


def base(id: str) -> str:
    """The unit of an id."""
    return id.split("::", 1)[0]
