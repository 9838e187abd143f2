"""Pods that start together or not at all: a place for each of them, or for none.

The largest are placed first, because they have the fewest places. If that leaves one without, the same is tried again
with `binpack`, which leaves the most together. A group for which neither finds places is refused, though another
order might have found some: to try all would take far too long.
"""

from collections.abc import Sequence

from gpuplane.base.value import Value
from gpuplane.cluster.engine.engine import Engine
from gpuplane.cluster.engine.policies.binpack import Binpack
from gpuplane.cluster.model.requests import Placement, Request


class GroupDecision(Value):
    """`placements`: one for each request, in their order; none where one of them has no place. `missing`: how many had
    none when most had one."""

    placements: tuple[Placement, ...] = ()
    missing: int = 0


def choose_group(engine: Engine, requests: Sequence[Request]) -> GroupDecision:
    """Where the pods of a group go. Nothing is taken by that."""
    missing = len(requests)
    for each in (engine, Engine(engine.cluster, Binpack())):
        found = _place(each, requests)
        if len(found) == len(requests):
            return GroupDecision(tuple(found[index] for index in range(len(requests))))
        missing = min(missing, len(requests) - len(found))
    return GroupDecision(missing=missing)


def _place(engine: Engine, requests: Sequence[Request]) -> dict[int, Placement]:
    """Place of the request → where it goes, of as many as have a place; the cluster is left as it was."""
    found = dict[int, Placement]()
    for index in sorted(range(len(requests)), key=lambda index: requests[index].size, reverse=True):
        if (placement := engine.choose(requests[index])) is not None:
            engine.cluster.take(requests[index], placement)
            found[index] = placement
    for index, placement in found.items():
        engine.cluster.give_back(requests[index], placement)
    return found
