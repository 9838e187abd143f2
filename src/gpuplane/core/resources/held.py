"""What containers hold stays theirs, whatever the configuration calls it now.

Kubelet counts use per resource name and device id. When a live change gives a GPU another name, another layout or other
shares, kubelet believes the new ids free while a container still works on the old one. So every id that overlaps with
a held one that is no longer offered is withheld, and the pod is the reason.

A GPU overlaps with each of its MIG devices, these not with each other. A MIG device that a container holds although it
is gone overlaps with everything on its GPU, for the container still has that GPU's node. Nothing tells afterwards which
GPU that was, so the ledger remembers it from when it could be seen: `homes`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpuplane.core.resources.sharing import base
from gpuplane.core.view import view
from gpuplane.model.machine import Machine
from gpuplane.model.snapshot import Allocation
from gpuplane.model.value import Value
from gpuplane.model.views import Resource

Key = tuple[str, str]
"""A resource's name and an id of it."""


def withheld(
    resources: tuple[Resource, ...], allocations: Iterable[Allocation], gone: Mapping[str, str] = {}
) -> Mapping[Key, str]:
    """Why it must wait, for each offered id that overlaps what a container holds otherwise.

    `gone`: MIG devices that are no longer there, and on which GPU they were.
    """
    index = _index(resources)
    holders: dict[str, Allocation] = {}
    for allocation in allocations:
        for held in allocation.devices:
            if (allocation.resource, held) not in index.keys:  # else kubelet knows that this id is in use
                holders.setdefault(base(held), allocation)
    reasons: dict[Key, str] = {}
    for unit, holder in holders.items():
        reason = _reason(holder)
        for key in index.overlapping(unit, gone):
            reasons.setdefault(key, reason)
    return reasons


def _reason(allocation: Allocation) -> str:
    who = f"pod {allocation.pod} ({allocation.container})" if allocation.pod else "a pod that is being admitted"
    return f"held by {who} as {allocation.resource} until that ends"


class _Index(Value):
    keys: frozenset[Key]
    by_unit: Mapping[str, Sequence[Key]]
    by_gpu: Mapping[str, Sequence[Key]]

    def overlapping(self, unit: str, gone: Mapping[str, str]) -> Iterator[Key]:
        """The offered ids that are this unit, lie in it, or have taken its place."""
        yield from self.by_unit.get(unit, ())
        yield from self.by_gpu.get(gone.get(unit, unit), ())


@view
def _index(resources: tuple[Resource, ...]) -> _Index:
    by_unit: dict[str, list[Key]] = {}
    by_gpu: dict[str, list[Key]] = {}
    for resource in resources:
        for device in resource.devices:
            key = resource.name, device.id
            by_unit.setdefault(device.unit.id, []).append(key)
            by_gpu.setdefault(device.unit.gpu, []).append(key)
    return _Index(keys=frozenset(key for keys in by_unit.values() for key in keys), by_unit=by_unit, by_gpu=by_gpu)


def gone(machine: Machine, homes: Mapping[str, str] | None) -> Mapping[str, str]:
    """Those of the remembered MIG devices that the machine has no longer."""
    there = _places(machine) if homes else {}
    return {id: gpu for id, gpu in (homes or {}).items() if id not in there}


def homes(
    machine: Machine | None, allocations: Iterable[Allocation], known: Mapping[str, str] | None
) -> Mapping[str, str]:
    """On which GPU each MIG device is that a container holds: as the machine says, or else as it was known."""
    held = {base(id) for allocation in allocations for id in allocation.devices if id.startswith("MIG-")}
    if not held:
        return {}
    there = {**(known or {}), **(_places(machine) if machine else {})}
    found = ((id, there.get(id) or _told(id)) for id in sorted(held))
    return {id: gpu for id, gpu in found if gpu}


def _told(id: str) -> str:
    """The GPU that a MIG device's name tells. Drivers before 470 named them MIG-GPU-<uuid>/<gi>/<ci>."""
    return id.removeprefix("MIG-").split("/", 1)[0] if id.startswith("MIG-GPU-") else ""


def _places(machine: Machine) -> dict[str, str]:
    return {
        device.uuid: gpu.uuid
        for gpu in machine.gpus or ()
        if gpu.mig is not None and gpu.mig.enabled
        for device in gpu.mig.devices
    }
