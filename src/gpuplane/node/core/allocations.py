"""What is held: by containers, as kubelet says it, and by claims, as the ledger promises it."""

from collections.abc import Iterator, Mapping

from gpuplane.node.core.view import part_view
from gpuplane.node.model.claims import PreparedClaim
from gpuplane.node.model.snapshot import Allocation, Snapshot


def held_allocations(snapshot: Snapshot) -> tuple[Allocation, ...] | None:
    """What containers and claims hold, each id once; None while kubelet has not said.

    A grant stays beside a list that was asked for before it (`step`), also where that list already names the container:
    kubelet may answer the list after it has admitted the pod. One container holds an id, so that is one allocation.
    A claim holds its devices from the promise on, which may be long before kubelet lists them.
    """
    if snapshot.allocations is None:
        return None
    return _held.of(snapshot, snapshot.allocations, snapshot.ledger.claims)


@part_view
def _held(allocations: tuple[Allocation, ...], claims: Mapping[str, PreparedClaim] | None) -> tuple[Allocation, ...]:
    named = {id for each in allocations if each.holder.identifies_pod for id in _ids(each)}
    distinct = (each for each in allocations if each.holder.identifies_pod or not named.issuperset(_ids(each)))
    return (*distinct, *_promised(allocations, claims or {}))


def _ids(allocation: Allocation) -> Iterator[tuple[str, str]]:
    return ((allocation.resource, id) for id in allocation.devices)


def _promised(allocations: tuple[Allocation, ...], claims: Mapping[str, PreparedClaim]) -> Iterator[Allocation]:
    """What is promised to claims and not listed for them yet. Admin access holds nothing: it is beside others."""
    listed = {(each.claim, unit) for each in allocations if each.claim for unit in each.devices}
    for claim in claims.values():
        name = str(claim.claim)
        units = dict.fromkeys(each.unit for each in claim.devices if not each.allocated.is_admin)
        if left := tuple(unit for unit in units if (name, unit) not in listed):
            yield Allocation(resource=claim.driver, devices=left, claim=name)
