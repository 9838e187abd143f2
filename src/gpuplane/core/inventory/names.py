"""From a machine and settings to resources: every unit is offered once, by one name, or left with a reason."""

from collections.abc import Sequence

from gpuplane.core.inventory.naming import Decision, name_units
from gpuplane.core.inventory.sharing import ids, share
from gpuplane.core.view import view
from gpuplane.model.config import Settings
from gpuplane.model.machine import Machine
from gpuplane.model.text import Text, group_alike
from gpuplane.model.views import NotOffered, OfferedDevice, Resource


def decide(machine: Machine, settings: Settings) -> list[Decision]:
    """One decision for each unit of the machine, in its order."""
    return share(name_units(machine, settings), settings.sharing)


@view
def named(machine: Machine, settings: Settings) -> tuple[tuple[Resource, ...], tuple[NotOffered, ...]]:
    """The resources of a machine, all devices without trouble, and the units that no name takes."""
    named: dict[str, list[Decision]] = {}
    left: list[NotOffered] = []
    for decision in decide(machine, settings):
        if decision.reason:
            left.append(_left(decision))
        else:
            named.setdefault(decision.name, []).append(decision)
    one_share_only = settings.sharing.fail_requests_greater_than_one
    return tuple(_resource(name, each, one_share_only) for name, each in named.items()), tuple(left)


def _left(decision: Decision) -> NotOffered:
    unit = decision.unit
    return NotOffered(label(decision), decision.reason, device=unit.id, index=unit.index, kind=decision.kind)


def _resource(name: str, decisions: Sequence[Decision], one_share_only: bool) -> Resource:
    """What goes by one name. Shares of memory have it for themselves, and for more than one of them it is asked.

    Where shares have to lie together or apart, kubelet is told no NUMA nodes: it would align ids to them without regard
    to that, and without asking us where a node has just as many as it needs.
    """
    shared, grain = any(each.shared for each in decisions), decisions[0].grain_mib
    distinct = any(each.distinct for each in decisions)
    units = ((each, each.unit.but(numa=None) if grain or distinct else each.unit) for each in decisions)
    return Resource(
        name=name,
        devices=tuple(OfferedDevice(id=id, unit=unit) for each, unit in units for id in ids(each)),
        shared=shared,
        one_share_only=shared and one_share_only and not grain,
        distinct_gpus=distinct,
        share_mib=grain,
        mps=any(each.mps for each in decisions),
    )


def unfit(machine: Machine, settings: Settings) -> Text:
    """What of the sharing that is configured this machine cannot have, and why; "" where it has all of it."""
    unshared = (each for each in decide(machine, settings) if each.reason and each.shared_by)
    alike = group_alike((each.reason, each.unit.index) for each in unshared)
    return "; ".join(f"GPU {', '.join(indices)}: {reason}" for reason, indices in alike)


def label(decision: Decision) -> str:
    """What a person may call a unit, with or without a UUID."""
    return decision.unit.id or f"GPU {decision.unit.index}"
