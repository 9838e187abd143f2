"""The answer to GetPreferredAllocation: advice, so that a pod's devices lie well and leave the rest well.

Kubelet takes it as a wish: with fewer ids than asked, or none, it fills up by itself, while an error rejects the pod.
So nothing here fails. An id that is unknown is passed over, and so is one that has just come into trouble; a request
that cannot be met gets what there is.

- Whole GPUs: the set that is worth most (`topology`), of these the one that leaves most for whoever comes next, of
  these the one with the fewest GPUs that are degraded or suspect, then the lowest positions (`sets`).
- Ids that share a GPU (time slices, MIG devices): spread or packed, by the policy (`shares`). Where they have to be of
  different GPUs, one of each.
- Shares of memory: all of the one GPU or MIG device on which they fit best, for anything else is refused.

The answer is the same for the same question, whatever its order.
"""

from collections.abc import Collection, Mapping, Sequence

from gpuplane.core.advertising import offer
from gpuplane.core.choice.question import Question
from gpuplane.core.choice.shares import Stock, choose, fit
from gpuplane.core.choice.tables import best
from gpuplane.core.choice.topology import Policy, Worths, worths
from gpuplane.core.health.diagnose import diagnoses
from gpuplane.core.view import view
from gpuplane.model.health import DeviceHealth
from gpuplane.model.machine import Gpu
from gpuplane.model.snapshot import Snapshot
from gpuplane.model.value import Value
from gpuplane.model.views import Offer, OfferedDevice, Resource


class Source(Value):
    """What one GPU contributes to a resource: all its ids, and those that may be given out. In order."""

    gpu: str
    ids: tuple[str, ...]
    fit: tuple[str, ...]


def prefer(
    snapshot: Snapshot,
    resource: str,
    available: Collection[str],
    required: Collection[str],
    size: int,
    policy: Policy | None = None,
) -> tuple[str, ...]:
    """At most `size` ids: the required ones that exist, then the best of the available. Never raises.

    `policy`: None for the one of the settings.
    """
    sources, must = _sources(offer(snapshot)).get(resource, ()), frozenset(required)
    wanted = [id for source in sources for id in source.ids if id in must] if must else []
    missing, kind = size - len(wanted), offer(snapshot).resource(resource)
    if missing > 0 and kind is not None and kind.share_mib:
        wanted += fit(_by_unit(kind, frozenset(available) - must, must), missing)
    elif missing > 0 and kind is not None:
        policy = policy or policy_of(snapshot)
        pairs, found = pairs_of(snapshot, policy), stocks(snapshot, resource, available, must)
        if kind.distinct_gpus:
            found = [stock.but(free=() if stock.taken else stock.free[:1]) for stock in found]
        if any(len(source.ids) > 1 for source in sources):
            wanted += choose(found, missing, policy, lambda question: best(pairs, question))
        else:
            wanted += _gather(found, missing, pairs, weak(snapshot))
    return tuple(wanted[: max(size, 0)])


def stocks(snapshot: Snapshot, resource: str, available: Collection[str], required: Collection[str]) -> list[Stock]:
    """What there is of each GPU that the resource has."""
    free, must, places = frozenset(available), frozenset(required), _places(snapshot.gpus)
    sources = _sources(offer(snapshot)).get(resource, ())
    return [_stock(source, places[source.gpu], free, must) for source in sources]


def policy_of(snapshot: Snapshot) -> Policy:
    """The policy that the settings name."""
    settings = snapshot.config.settings
    return settings.sharing_policy if settings is not None else "distributed"


def pairs_of(snapshot: Snapshot, policy: Policy | None = None) -> Worths:
    """What the machine's GPUs are worth to each other: what a table is made of. Empty before the first look."""
    return worths(snapshot.gpus, policy or policy_of(snapshot))


def weak(snapshot: Snapshot) -> Mapping[int, int]:
    """The costs of whole GPUs: 1 for each that is served though something is wrong with it."""
    found = _weak(diagnoses(snapshot))
    return {place: 1 for uuid, place in _places(snapshot.gpus).items() if uuid in found} if found else {}


def _gather(found: Sequence[Stock], size: int, pairs: Worths, costs: Mapping[int, int]) -> list[str]:
    """The best whole GPUs; all, where there are too few."""
    free = {stock.gpu: stock.free[0] for stock in found if stock.free}
    if len(free) <= size:
        return list(free.values())
    have = frozenset(stock.gpu for stock in found if stock.taken)
    chosen = best(pairs, Question(frozenset(free), have, len(have) + size, costs))
    return [free[gpu] for gpu in chosen if gpu not in have]


def _stock(source: Source, gpu: int, free: frozenset[str], must: frozenset[str]) -> Stock:
    available = [id for id in source.fit if id in free]
    left = [id for id in available if id not in must] if must else available
    taken = sum(id in must for id in source.ids) if must else 0
    return Stock(gpu=gpu, used=len(source.ids) - len(left) - taken, taken=taken, free=left)


def _by_unit(resource: Resource, free: Collection[str], must: Collection[str]) -> list[Stock]:
    """What there is of each unit, in order; `gpu` is its place among them."""
    units: dict[str, list[OfferedDevice]] = {}
    for device in resource.devices:
        units.setdefault(device.unit.id, []).append(device)
    return [_unit_stock(place, devices, free, must) for place, devices in enumerate(units.values())]


def _unit_stock(place: int, devices: Sequence[OfferedDevice], free: Collection[str], must: Collection[str]) -> Stock:
    left = [device.id for device in devices if device.id in free and not device.reasons]
    taken = sum(device.id in must for device in devices)
    return Stock(gpu=place, used=len(devices) - len(left) - taken, taken=taken, free=left)


@view
def _places(gpus: tuple[Gpu, ...]) -> Mapping[str, int]:
    """UUID → position in the machine's list."""
    return {gpu.uuid: place for place, gpu in enumerate(gpus)}


@view
def _weak(found: tuple[DeviceHealth, ...]) -> frozenset[str]:
    """UUIDs of what is degraded or suspect."""
    return frozenset(each.device for each in found if each.state in ("degraded", "suspect"))


@view
def _sources(offered: Offer) -> Mapping[str, tuple[Source, ...]]:
    """resource → its GPUs, in the order of its devices."""
    return {resource.name: tuple(map(_source, _by_gpu(resource.devices))) for resource in offered.resources}


def _by_gpu(devices: Sequence[OfferedDevice]) -> Collection[Sequence[OfferedDevice]]:
    found: dict[str, list[OfferedDevice]] = {}
    for device in devices:
        found.setdefault(device.unit.gpu, []).append(device)
    return found.values()


def _source(devices: Sequence[OfferedDevice]) -> Source:
    return Source(
        gpu=devices[0].unit.gpu,
        ids=tuple(device.id for device in devices),
        fit=tuple(device.id for device in devices if not device.reasons),
    )
