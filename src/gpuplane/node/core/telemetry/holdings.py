"""Which containers hold each unit, as kubelet says it."""

from collections.abc import Mapping
from typing import NamedTuple

from gpuplane.kubernetes.podref import PodRef
from gpuplane.node.core.allocations import held_allocations
from gpuplane.node.core.inventory.resources import node_resources
from gpuplane.node.core.shares import unit_of
from gpuplane.node.core.view import view
from gpuplane.node.core.withholding import offered_index
from gpuplane.node.model.snapshot import Snapshot


class Holding(NamedTuple):
    """What one container holds of a unit: `id_count` device ids of a resource. `is_share`: others may hold it too."""

    holder: PodRef
    resource: str
    id_count: int
    is_share: bool


@view
def holdings_by_unit(snapshot: Snapshot) -> Mapping[str, tuple[Holding, ...]]:
    """Unit id → who holds it. {} before kubelet has said so."""
    index, settings = None, snapshot.config.settings
    if settings is not None:
        index = offered_index.of(snapshot, node_resources(snapshot, settings)[0])
    found: dict[str, list[Holding]] = {}
    for allocation in held_allocations(snapshot) or ():
        counts: dict[str, list[str]] = {}
        for id in allocation.devices:
            unit = index.unit_of(allocation.resource, id) if index is not None else unit_of(id)
            counts.setdefault(unit, []).append(id)
        for unit, ids in counts.items():
            shared = any(id != unit for id in ids)
            found.setdefault(unit, []).append(Holding(allocation.holder, allocation.resource, len(ids), shared))
    return {unit: tuple(each) for unit, each in found.items()}
