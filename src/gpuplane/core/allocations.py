"""What containers hold, as it is counted and shown."""

from collections.abc import Iterator

from gpuplane.core.view import part_view
from gpuplane.model.snapshot import Allocation, Snapshot


def distinct_allocations(snapshot: Snapshot) -> tuple[Allocation, ...] | None:
    """What containers hold, each id once; None while kubelet has not said.

    A grant stays beside a list that was asked for before it (`step`), also where that list already names the container:
    kubelet may answer the list after it has admitted the pod. One container holds an id, so that is one allocation.
    """
    return None if snapshot.allocations is None else _distinct.of(snapshot, snapshot.allocations)


@part_view
def _distinct(allocations: tuple[Allocation, ...]) -> tuple[Allocation, ...]:
    named = {held for each in allocations if each.holder.identifies_pod for held in _held(each)}
    return tuple(each for each in allocations if each.holder.identifies_pod or not named.issuperset(_held(each)))


def _held(allocation: Allocation) -> Iterator[tuple[str, str]]:
    return ((allocation.resource, id) for id in allocation.devices)
