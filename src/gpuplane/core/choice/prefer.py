"""The answer to GetPreferredAllocation: advice, so that a pod's devices lie well.

Kubelet takes it as a wish: with fewer ids than asked, or none, it fills up by itself, while an error rejects the pod.
So nothing here fails. An id that is unknown is passed over, and so is one that has just come into trouble; a request
that cannot be met gets what there is.

A simple choice, always the same for the same question:
- whole GPUs: from the NUMA node that fits with the fewest left over; if none fits, from as few nodes as possible.
- ids that share a GPU (time slices, MIG devices): from as many GPUs as possible, the least used first; or where
  sharedDevicesAllocationPolicy is packed, from as few as possible, the most used first.
Where that leaves a choice, the lowest index.
"""

from collections.abc import Collection, Mapping, Sequence

from gpuplane.core.resources.offer import offer
from gpuplane.core.view import view
from gpuplane.model.snapshot import Snapshot
from gpuplane.model.value import Value
from gpuplane.model.views import Offer, Offered


class Gpu(Value):
    """What one GPU contributes to a resource: all its ids, and those that may be given out. In order."""

    numa: int | None
    ids: tuple[str, ...]
    fit: tuple[str, ...]


class Stock(Value):
    """What is there of one GPU for one request."""

    numa: int | None
    used: int  # ids that other containers hold
    taken: int  # ids that the request has already
    free: Sequence[str]


def prefer(
    snapshot: Snapshot, resource: str, available: Collection[str], required: Collection[str], size: int
) -> tuple[str, ...]:
    """At most `size` ids: the required ones that exist, then the best of the available. Never raises."""
    gpus = _gpus(offer(snapshot)).get(resource, ())
    free, must = frozenset(available), frozenset(required)
    wanted = [id for gpu in gpus for id in gpu.ids if id in must] if must else []
    missing = size - len(wanted)
    if missing > 0:
        shared = any(len(gpu.ids) > 1 for gpu in gpus)
        choose = (_pack if _packs(snapshot) else _spread) if shared else _gather
        wanted += choose([_stock(gpu, free, must) for gpu in gpus], missing)
    return tuple(wanted[: max(size, 0)])


def _packs(snapshot: Snapshot) -> bool:
    return snapshot.config.settings is not None and snapshot.config.settings.sharing_policy == "packed"


def _stock(gpu: Gpu, free: frozenset[str], must: frozenset[str]) -> Stock:
    available = [id for id in gpu.fit if id in free]
    left = [id for id in available if id not in must] if must else available
    taken = sum(id in must for id in gpu.ids) if must else 0
    return Stock(numa=gpu.numa, used=len(gpu.ids) - len(left) - taken, taken=taken, free=left)


def _spread(stocks: Sequence[Stock], size: int) -> list[str]:
    """From as many GPUs as possible: a GPU's next id costs as much as the request has of it already."""
    costs = [
        (stock.taken + nth, stock.used, index, id)
        for index, stock in enumerate(stocks)
        for nth, id in enumerate(stock.free[:size])
    ]
    return [id for *_, id in sorted(costs)[:size]]


def _pack(stocks: Sequence[Stock], size: int) -> list[str]:
    """From as few GPUs as possible: the most used are filled up first."""
    fullest = sorted(stocks, key=lambda stock: -(stock.used + stock.taken))
    return [id for stock in fullest for id in stock.free][:size]


def _gather(stocks: Sequence[Stock], size: int) -> list[str]:
    """From one NUMA node, or as few as possible; one where the request has a GPU already comes first."""
    nodes: dict[int | None, list[str]] = {}
    for stock in stocks:
        nodes.setdefault(stock.numa, []).extend(stock.free)
    near = {stock.numa for stock in stocks if stock.taken}
    ids = sorted(nodes, key=lambda numa: (numa not in near, len(nodes[numa]) < size, abs(len(nodes[numa]) - size)))
    chosen = frozenset([id for numa in ids for id in nodes[numa]][:size])
    return [id for stock in stocks for id in stock.free if id in chosen]


@view
def _gpus(offered: Offer) -> Mapping[str, tuple[Gpu, ...]]:
    """resource → its GPUs, in the order of its devices."""
    return {resource.name: tuple(map(_gpu, _by_gpu(resource.devices))) for resource in offered.resources}


def _by_gpu(devices: Sequence[Offered]) -> Collection[Sequence[Offered]]:
    found: dict[str, list[Offered]] = {}
    for device in devices:
        found.setdefault(device.unit.gpu, []).append(device)
    return found.values()


def _gpu(devices: Sequence[Offered]) -> Gpu:
    return Gpu(
        numa=devices[0].unit.numa,
        ids=tuple(device.id for device in devices),
        fit=tuple(device.id for device in devices if not device.trouble),
    )
