"""From a machine and settings to resources: every unit is offered once, by one name, or left with a reason."""

from gpuplane.core.resources.naming import Decision, name_units
from gpuplane.core.resources.sharing import share, share_ids
from gpuplane.model.config import Settings
from gpuplane.model.machine import Machine
from gpuplane.model.views import Left, Offered, Resource


def decide(machine: Machine, settings: Settings) -> list[Decision]:
    """One decision for each unit of the machine, in its order."""
    return share(name_units(machine, settings), settings.sharing)


def named(machine: Machine, settings: Settings) -> tuple[tuple[Resource, ...], tuple[Left, ...]]:
    """The resources of a machine, all devices without trouble, and the units that no name takes."""
    devices: dict[str, list[Offered]] = {}
    shared: set[str] = set()
    left: list[Left] = []
    for decision in decide(machine, settings):
        unit = decision.unit
        if decision.reason:
            left.append(Left(unit=label(decision), reason=decision.reason))
            continue
        ids = share_ids(unit.id, decision.replicas)
        devices.setdefault(decision.name, []).extend(Offered(id=id, unit=unit) for id in ids)
        if len(ids) > 1:
            shared.add(decision.name)
    one_share_only = settings.sharing.fail_requests_greater_than_one
    return tuple(
        Resource(
            name=name, devices=tuple(each), shared=name in shared, one_share_only=name in shared and one_share_only
        )
        for name, each in devices.items()
    ), tuple(left)


def label(decision: Decision) -> str:
    """What a person may call a unit, with or without a UUID."""
    return decision.unit.id or f"GPU {decision.unit.index}"
