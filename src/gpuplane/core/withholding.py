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
to Allocate waits for the disk. A cut that the disk may hold otherwise is not offered (`unwritten`).

Where they are not remembered (the ledger was lost, or pods were here before this agent), kubelet's checkpoint may have
what a container was told, which shows how its share was cut. Else everything that could be meant is withheld until the
pod ends: of a MIG device that is gone each GPU that can have any, of a share all of its unit. An id that is no unit's,
but begins with a GPU's UUID, is another plugin's name for a part of that GPU.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from gpuplane.core.inventory.names import named
from gpuplane.core.inventory.sharing import base
from gpuplane.core.view import view
from gpuplane.model.machine import Machine
from gpuplane.model.snapshot import UNKNOWN_LAYOUT, Allocation, Snapshot
from gpuplane.model.value import Value
from gpuplane.model.views import Resource

PIPE, MEMORY = "CUDA_MPS_PIPE_DIRECTORY", "GPUPLANE_MEMORY_MIB"
"""What a client of MPS is told, and who holds a share of memory."""

Key = tuple[str, str]
"""A resource's name and an id of it."""

DIGITS = 12
"""The most of an amount of memory: what is longer is none."""

TIME_SLICES = "time slices"
"""A cut whose shares are no parts."""

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
    resources, _ = named(machine, settings)
    return withheld(resources, snapshot.allocations, places(machine, ledger.mig_parents), ledger.share_layouts or {})


class Places(Value):
    """Where held devices are. `homes`: MIG device → its GPU, also of those that are gone; `gone`: which are.

    `gpus`: the GPUs of the machine. `divisible`: those of them that may have had a MIG device of which nobody
    remembers where it was.
    """

    homes: Mapping[str, str] = {}
    gone: frozenset[str] = frozenset()
    gpus: tuple[str, ...] = ()
    divisible: tuple[str, ...] = ()


def withheld(
    resources: tuple[Resource, ...],
    allocations: Iterable[Allocation],
    places: Places,
    cuts: Mapping[str, str],
) -> Mapping[Key, str]:
    """Why it must wait, for each offered id that overlaps what a container holds otherwise.

    `cuts`: how units were cut of which containers hold shares.
    """
    index = _index(resources)
    holders: dict[str, str] = {}
    for allocation in allocations:
        for held in allocation.devices:
            unit, offered = base(held), (allocation.resource, held) in index.keys
            cut = index.cuts.get((allocation.resource, unit), "")
            if not offered or cuts.get(unit, cut) != cut:  # else kubelet knows that this id is in use
                holders.setdefault(unit, _reason(allocation, _how(unit, offered, places, cuts)))
    reasons: dict[Key, str] = {}
    for unit, reason in holders.items():
        for key in index.overlapping(unit, places):
            reasons.setdefault(key, reason)
    return reasons


def _how(unit: str, offered: bool, places: Places, cuts: Mapping[str, str]) -> str:
    """What is otherwise about the way in which a unit is held, for people; "" where the resource's name says it."""
    if unit.startswith("MIG-") and unit not in places.homes:
        return ", on a GPU that is not known,"
    if cuts.get(unit) == UNKNOWN_LAYOUT:
        return " in shares of an unknown kind"
    return " in other shares" if offered else ""


def _reason(allocation: Allocation, how: str) -> str:
    who = f"pod {allocation.pod} ({allocation.container})" if allocation.pod else "a pod that is being admitted"
    return f"held by {who} as {allocation.resource}{how} until that ends"


class _Index(Value):
    keys: frozenset[Key]
    by_unit: Mapping[str, Sequence[Key]]
    by_gpu: Mapping[str, Sequence[Key]]
    cuts: Mapping[Key, str]  # resource and unit → how it is cut, where it is

    def overlapping(self, unit: str, places: Places) -> Iterator[Key]:
        """The offered ids that are this unit, lie in it, have it in them, or have taken its place."""
        yield from self.by_unit.get(unit, ())
        if unit in places.homes and unit not in places.gone:  # its GPU is perhaps offered as a whole one
            yield from self.by_unit.get(places.homes[unit], ())
        else:
            for gpu in _gpus(unit, places):
                yield from self.by_gpu.get(gpu, ())


def _gpus(unit: str, places: Places) -> Collection[str]:
    """The GPUs of which a container may have all or a part that holds a unit, which is no MIG device that is there."""
    if home := places.homes.get(unit):
        return (home,)
    if unit.startswith("MIG-"):
        return places.divisible
    return (unit,) if unit in places.gpus else tuple(gpu for gpu in places.gpus if unit.startswith(gpu))


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
            yield (resource.name, unit), named_cut(resource.share_mib, count, mps=resource.mps)


def named_cut(grain_mib: int, count: int, *, mps: bool) -> str:
    """What a cut is called: into shares of so much memory, into so many for MPS, or into time slices."""
    name = f"{grain_mib} MiB" if grain_mib else f"{count}" if mps else TIME_SLICES
    return name + BY_MPS if mps else name


def told_cut(told: Mapping[str, str], shares: int) -> str:
    """How a unit is cut of which a container holds so many shares, by the environment that it was given; "" where that
    does not tell.

    NVIDIA's plugin shares by time or by MPS, and only with MPS says so (k8s-device-plugin 0.20, internal/plugin/
    server.go); into how many parts it does not say. Shares of memory are ours, and say how much they are together.
    """
    mps, mib = PIPE in told, told.get(MEMORY, "")
    if mib.isdecimal() and len(mib) <= DIGITS:
        grain, rest = divmod(int(mib), shares)
        return named_cut(grain, 0, mps=mps) if grain and not rest else ""
    return "" if mps or mib else TIME_SLICES


def cuts(
    resources: tuple[Resource, ...], allocations: Iterable[Allocation], known: Mapping[str, str]
) -> Mapping[str, str]:
    """How each unit is cut: where a container holds shares of it, as it was remembered; else as it is now."""
    told: dict[str, set[str]] = {}
    for allocation in allocations:
        for id in allocation.devices:
            if "::" in id:
                told.setdefault(base(id), set()).add(allocation.share_layout)
    now = {unit: cut for (_, unit), cut in _index(resources).cuts.items()}
    return now | {unit: _remembered(known.get(unit, UNKNOWN_LAYOUT), told[unit]) for unit in sorted(told)}


def _remembered(known: str, told: set[str]) -> str:
    """How a held unit is cut: as it is known, or as all that hold shares of it were told."""
    return known if known != UNKNOWN_LAYOUT or len(told) > 1 else next(iter(told)) or UNKNOWN_LAYOUT


def unwritten(
    resources: tuple[Resource, ...], cuts: Mapping[str, str], disk: tuple[Mapping[str, str], ...]
) -> frozenset[Key]:
    """(resource, unit) of the units whose cut the disk may hold otherwise: after a restart it would be believed.

    What the disk has nothing about is no harm: after a restart it would count as unknown.
    """
    return frozenset(
        (name, unit)
        for name, unit in _index(resources).cuts
        if any(unit in each and each[unit] != cuts.get(unit) for each in disk)
    )


@view
def places(machine: Machine, homes: Mapping[str, str] | None) -> Places:
    """Where the MIG devices are that are there or remembered."""
    there = _places(machine)
    gpus = machine.gpus or ()
    return Places(
        homes={**(homes or {}), **there},
        gone=frozenset((homes or {}).keys() - there.keys()),
        gpus=tuple(gpu.uuid for gpu in gpus if gpu.uuid),
        divisible=tuple(gpu.uuid for gpu in gpus if gpu.uuid and (gpu.mig is not None or gpu.faults)),
    )


def homes(
    machine: Machine | None, allocations: Iterable[Allocation], known: Mapping[str, str] | None
) -> Mapping[str, str]:
    """On which GPU each MIG device is that is there, or was when it was seen last.

    The driver makes the UUID of a MIG device of its GPU's and of its place there, so it never means another GPU, and a
    GPU has some dozens of places: it is not forgotten. Kubelet may tell late who holds one that has gone.
    """
    there = _places(machine) if machine else {}
    held = {base(id) for allocation in allocations for id in allocation.devices}
    told = {id: gpu for id in held if (gpu := _named(id))}
    return dict(sorted({**told, **(known or {}), **there}.items()))


def _named(id: str) -> str:
    """The GPU that a MIG device's name tells. Drivers before 470 named them MIG-GPU-<uuid>/<gi>/<ci>."""
    return id.removeprefix("MIG-").split("/", 1)[0] if id.startswith("MIG-GPU-") else ""


def _places(machine: Machine) -> dict[str, str]:
    return {
        device.uuid: gpu.uuid
        for gpu in machine.gpus or ()
        if gpu.mig is not None and gpu.mig.enabled
        for device in gpu.mig.devices
    }
