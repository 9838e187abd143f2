"""What containers hold stays theirs, whatever the configuration calls it now.

Kubelet counts use per resource name and device id. When a live change gives a GPU another name, another layout or other
shares, kubelet believes the new ids free while a container still works on the old one. So every id that overlaps with
a held one that is no longer offered is withheld, and the pod is the reason.

A GPU overlaps with each of its MIG devices, these not with each other. A MIG device that a container holds although it
is gone overlaps with everything on its GPU, for the container still has that GPU's node. Nothing tells afterwards which
GPU that was, so the ledger remembers it from when it could be seen: `homes`.

The same id of the same name may come to mean something else: a gibibyte where it was two, a part of an MPS server's
memory where it was a time slice. Then it is as good as another id. The id does not tell what it meant when a container
got it, so the ledger remembers that too: `cuts`. How many time slices there are is not remembered, for a slice is no
part of anything: whoever raises their number wants more containers on a GPU, beside those that are there.

Both are remembered of all that is offered, before anybody holds it. So a grant leaves nothing to write, and no answer
to Allocate waits for the disk.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpuplane.core.resources.names import named
from gpuplane.core.resources.sharing import base
from gpuplane.core.view import view
from gpuplane.model.machine import Machine
from gpuplane.model.snapshot import Allocation, Snapshot
from gpuplane.model.value import Value
from gpuplane.model.views import Resource

Key = tuple[str, str]
"""A resource's name and an id of it."""

BY_MPS = " by MPS"
"""How a cut ends that has clients of an MPS daemon."""


@view
def apart(snapshot: Snapshot) -> Snapshot:
    """The snapshot but for what containers hold: the very same one after a grant."""
    return snapshot.but(generation=0, allocations=None)


@view
def holds(snapshot: Snapshot) -> Mapping[Key, str]:
    """(resource, id) → who holds it otherwise, for each id that is withheld for that; {} before enough is known."""
    machine, settings, ledger = snapshot.machine, snapshot.config.settings, snapshot.ledger
    if machine is None or machine.gpus is None or settings is None or snapshot.allocations is None:
        return {}
    resources, lost = named(machine, settings)[0], gone(machine, ledger.homes)
    return withheld(resources, snapshot.allocations, lost, ledger.homes or {}, ledger.cuts or {})


def withheld(
    resources: tuple[Resource, ...],
    allocations: Iterable[Allocation],
    gone: Mapping[str, str] = {},
    homes: Mapping[str, str] = {},
    cuts: Mapping[str, str] = {},
) -> Mapping[Key, str]:
    """Why it must wait, for each offered id that overlaps what a container holds otherwise.

    `homes`: on which GPU the held MIG devices are, or were; `gone`: those of them that are no longer there. `cuts`: how
    units were cut of which containers hold shares.
    """
    index = _index(resources)
    holders: dict[str, str] = {}
    for allocation in allocations:
        for held in allocation.devices:
            unit, offered = base(held), (allocation.resource, held) in index.keys
            cut = index.cuts.get((allocation.resource, unit), "")
            if not offered or cuts.get(unit, cut) != cut:  # else kubelet knows that this id is in use
                holders.setdefault(unit, _reason(allocation, " in other shares" if offered else ""))
    reasons: dict[Key, str] = {}
    for unit, reason in holders.items():
        for key in index.overlapping(unit, gone, homes):
            reasons.setdefault(key, reason)
    return reasons


def _reason(allocation: Allocation, how: str) -> str:
    who = f"pod {allocation.pod} ({allocation.container})" if allocation.pod else "a pod that is being admitted"
    return f"held by {who} as {allocation.resource}{how} until that ends"


class _Index(Value):
    keys: frozenset[Key]
    by_unit: Mapping[str, Sequence[Key]]
    by_gpu: Mapping[str, Sequence[Key]]
    cuts: Mapping[Key, str]  # resource and unit → how it is cut, where it is

    def overlapping(self, unit: str, gone: Mapping[str, str], homes: Mapping[str, str]) -> Iterator[Key]:
        """The offered ids that are this unit, lie in it, have it in them, or have taken its place."""
        yield from self.by_unit.get(unit, ())
        if unit in gone or unit not in homes:
            yield from self.by_gpu.get(gone.get(unit, unit), ())
        else:  # a MIG device that is there, and its GPU perhaps offered as a whole one
            yield from self.by_unit.get(homes[unit], ())


@view
def _index(resources: tuple[Resource, ...]) -> _Index:
    by_unit: dict[str, list[Key]] = {}
    by_gpu: dict[str, list[Key]] = {}
    for resource in resources:
        for device in resource.devices:
            key = resource.name, device.id
            by_unit.setdefault(device.unit.id, []).append(key)
            by_gpu.setdefault(device.unit.gpu, []).append(key)
    keys = frozenset(key for keys in by_unit.values() for key in keys)
    return _Index(keys=keys, by_unit=by_unit, by_gpu=by_gpu, cuts=dict(_cut(resources)))


def _cut(resources: Iterable[Resource]) -> Iterator[tuple[Key, str]]:
    for resource in resources:
        shares: dict[str, int] = {}
        for device in resource.devices:
            if device.id != device.unit.id:
                shares[device.unit.id] = shares.get(device.unit.id, 0) + 1
        for unit, count in shares.items():
            cut = f"{resource.grain_mib} MiB" if resource.grain_mib else f"{count}" if resource.mps else "time slices"
            yield (resource.name, unit), cut + BY_MPS if resource.mps else cut


def cuts(
    resources: tuple[Resource, ...], allocations: Iterable[Allocation], known: Mapping[str, str]
) -> Mapping[str, str]:
    """How each unit is cut: where a container holds shares of it, as it was known; else as it is now."""
    there = _index(resources).cuts
    held = {(allocation.resource, base(id)) for allocation in allocations for id in allocation.devices if "::" in id}
    found = {unit: cut for (_, unit), cut in there.items()}
    found |= {unit: known.get(unit) or there.get((resource, unit), "") for resource, unit in sorted(held)}
    return {unit: cut for unit, cut in found.items() if cut}


def gone(machine: Machine, homes: Mapping[str, str] | None) -> Mapping[str, str]:
    """Those of the remembered MIG devices that the machine has no longer."""
    there = _places(machine) if homes else {}
    return {id: gpu for id, gpu in (homes or {}).items() if id not in there}


def homes(
    machine: Machine | None, allocations: Iterable[Allocation], known: Mapping[str, str] | None
) -> Mapping[str, str]:
    """On which GPU each MIG device is that is there, or was when a container got it."""
    there = _places(machine) if machine else {}
    held = {base(id) for allocation in allocations for id in allocation.devices if id.startswith("MIG-")}
    lost = {id: (known or {}).get(id) or _told(id) for id in sorted(held - there.keys())}
    return there | {id: gpu for id, gpu in lost.items() if gpu}


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
