"""How each device stands for kubelet, and why: the one view of it.

The node's condition and Events, readiness, `gpuplane inspect`, the metrics and the log all read this view. None of them
finds out for itself whether a device is given out, so none can say otherwise than kubelet is told.
"""

from collections.abc import Iterable, Iterator, Mapping

from gpuplane.core.advertising import offer, unavailable_units, why_waiting
from gpuplane.core.devicenames import DeviceName, index_order
from gpuplane.core.health import devicehealth
from gpuplane.core.inventory.units import list_units
from gpuplane.core.view import part_view
from gpuplane.model.config import Settings
from gpuplane.model.health import DeviceHealth
from gpuplane.model.machine import Machine
from gpuplane.model.snapshot import Snapshot
from gpuplane.model.status import CONFIG, DRIVER, plugin_of
from gpuplane.model.text import join
from gpuplane.model.views import Availability, NotOffered, Offer, OfferedDevice, Reason, ReasonKind, Resource, Unit

ENDS: Mapping[ReasonKind, str] = {
    "problem": "it is over once that is mended",
    "held": "the end of the containers that hold it",
    "configured": "another configuration, or another layout of the GPU",
    "waiting": "it is over in a moment",
}
"""What ends a reason that is none of health's, for people."""


def availability(snapshot: Snapshot, offered: Offer | None = None) -> tuple[Availability, ...]:
    """Each unit of the machine in the driver's order; () while the GPUs are not known.

    `offered`: what the agent answered that has this snapshot; by default what follows from it here.
    """
    return _availability(snapshot, offer(snapshot) if offered is None else offered)


def _availability(snapshot: Snapshot, offered: Offer) -> tuple[Availability, ...]:
    machine = snapshot.machine
    if machine is None or machine.gpus is None:
        return ()
    if offered.waiting:
        return _before_offer.of(
            snapshot, machine, snapshot.config.settings, unavailable_units(snapshot), why_waiting(snapshot)
        )
    silent = tuple(each.name for each in offered.resources if plugin_of(each.name) in snapshot.status)
    return _offered.of(snapshot, offered, unavailable_units(snapshot), tuple(unread(snapshot, name) for name in silent))


@part_view
def _offered(
    offered: Offer, faults: Mapping[str, tuple[Reason, ...]], unread: tuple[Reason | None, ...]
) -> tuple[Availability, ...]:
    """Each unit by what kubelet is told. After a grant it is asked the same again."""
    silent = {each.part: each for each in unread if each is not None}
    return _ordered([*_of_resources(offered, silent), *(_not_offered(each, faults) for each in offered.not_offered)])


def _ordered(found: Iterable[Availability]) -> tuple[Availability, ...]:
    return tuple(sorted(found, key=lambda each: index_order(each.index)))


@part_view
def _before_offer(
    machine: Machine, settings: Settings | None, faults: Mapping[str, tuple[Reason, ...]], lack: Reason | None
) -> tuple[Availability, ...]:
    """Each unit while kubelet is told nothing."""
    settings = settings or Settings(mig_strategy="mixed")
    there = list_units(
        machine, with_mig_devices=settings.mig_strategy != "none", whole_mig_gpus=settings.whole_mig_gpus
    )
    return _ordered(
        Availability(
            device=unit.id,
            index=unit.index,
            reasons=_distinct((*faults.get(unit.id, ()), *([lack] if lack is not None else []))),
        )
        for unit, _ in there
    )


def _of_resources(offered: Offer, silent: Mapping[str, Reason]) -> Iterator[Availability]:
    for resource in offered.resources:
        why = silent.get(plugin_of(resource.name).name)
        for unit, devices in _by_unit(resource):
            against = [reason for each in devices for reason in each.reasons]
            yield Availability(
                device=unit.id,
                index=unit.index,
                resource=resource.name,
                ids=len(devices),
                unhealthy=sum(bool(each.reasons) for each in devices),
                reasons=_distinct((*against, *([why] if why is not None else []))),
            )


def _by_unit(resource: Resource) -> Iterable[tuple[Unit, list[OfferedDevice]]]:
    found: dict[str, tuple[Unit, list[OfferedDevice]]] = {}
    for device in resource.devices:
        found.setdefault(device.unit.id, (device.unit, []))[1].append(device)
    return found.values()


def _not_offered(unit: NotOffered, faults: Mapping[str, tuple[Reason, ...]]) -> Availability:
    part = DRIVER if unit.kind == "problem" else CONFIG
    reason = Reason(kind=unit.kind, text=unit.reason, part=part.name, code=unit.code)
    own = faults.get(unit.device, ())
    return Availability(device=unit.device, index=unit.index, reasons=_distinct((*own, reason)))


def _distinct(reasons: Iterable[Reason]) -> tuple[Reason, ...]:
    return tuple({each.cause: each for each in reasons}.values())


def unread(snapshot: Snapshot, resource: str) -> Reason | None:
    """Why kubelet does not read the list of a resource; None while it does. What is not registered yet is so for a
    moment, and no device is said to be withheld for that."""
    part = plugin_of(resource)
    status = snapshot.status.of(part)
    if status is not None and status.state == "ok":
        return None
    kind: ReasonKind = "problem" if status is not None and status.state == "failing" else "waiting"
    text = f"{resource}: {status.text if status else 'not registered yet'}"
    return Reason(kind=kind, text=text, part=part.name, code="plugin-not-registered")


def grouped(found: Iterable[tuple[DeviceName, Reason]]) -> Mapping[Reason, tuple[DeviceName, ...]]:
    """Each reason once, with the devices that have it; of one whose fault it is the first is named."""
    first: dict[Reason, Reason] = {}
    devices: dict[Reason, dict[DeviceName, None]] = {}
    for named, reason in found:
        key = reason.but(device="")
        first.setdefault(key, reason)
        devices.setdefault(key, {})[named] = None
    return {reason: tuple(devices[key]) for key, reason in first.items()}


def standing(snapshot: Snapshot, offered: Offer | None = None) -> tuple[DeviceHealth, ...]:
    """How each device stands, for people: as health says, and `withheld` where it is well and not given out.

    The node comes first where something is wrong with it, then the devices in the driver's order, then those away.
    `offered`: as of `availability`.
    """
    reasons = {each.index: each.reasons for each in availability(snapshot, offered)}  # two GPUs may bear one UUID
    return tuple(_as_withheld(each, reasons.get(each.index, ())) for each in devicehealth.overall_health(snapshot))


def _problem_parts(reasons: Iterable[Reason]) -> Iterator[str]:
    """The parts that have to be mended, beside the driver, whose faults have an advice of their own."""
    return (each.part for each in reasons if each.kind == "problem" and each.part not in ("", DRIVER.name))


def _as_withheld(diagnosis: DeviceHealth, reasons: tuple[Reason, ...]) -> DeviceHealth:
    if not reasons or diagnosis.state not in ("healthy", "suspect", "degraded"):
        return diagnosis
    own = [diagnosis.reason] if diagnosis.reason else []
    return diagnosis.but(
        state="withheld",
        since=None,
        until=None,
        reason=join("; ", [*(each.text for each in reasons), *own]),
        cleared_by=next((ENDS[each.kind] for each in reasons if each.kind in ENDS), ""),
        advice=next((f"see the part {part} in gpuplane inspect" for part in _problem_parts(reasons)), ""),
    )
