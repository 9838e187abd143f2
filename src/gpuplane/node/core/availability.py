"""How each device stands for kubelet, and why: the one view of it.

The node's condition and Events, readiness, `gpuplane inspect`, the metrics and the log all read this view. None of them
finds out for itself whether a device is given out, so none can say otherwise than kubelet is told.
"""

from collections.abc import Iterable, Iterator, Mapping

from gpuplane.base.text import join
from gpuplane.kubernetes.contracts.nodeannotation import index_sort_key
from gpuplane.node.core.advertising import offer, offer_waiting_reason, unavailable_units
from gpuplane.node.core.commands import INSPECT, command_line
from gpuplane.node.core.devicenames import DeviceName
from gpuplane.node.core.health import devicehealth
from gpuplane.node.core.inventory.resources import assign_units
from gpuplane.node.core.kinds.table import is_plain_unit
from gpuplane.node.core.view import part_view
from gpuplane.node.model.config import Settings
from gpuplane.node.model.health import DeviceHealth
from gpuplane.node.model.machine import DeviceList, Machine
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import CONFIG_PART, DRIVER_PART, plugin_part
from gpuplane.node.model.views import Availability, NotOffered, Offer, OfferedDevice, Reason, ReasonKind, Resource, Unit

CLEAR_WHEN_TEXT_BY_KIND: Mapping[ReasonKind, str] = {
    "problem": "when the problem is repaired",
    "held": "when the containers that hold the device end",
    "configured": "when the configuration or the MIG layout of the GPU changes",
    "waiting": "by itself, in a moment",
}
"""What ends a reason that is none of health's, for people."""


def availability(snapshot: Snapshot, offered: Offer | None = None) -> tuple[Availability, ...]:
    """Each unit of the node: GPUs in the driver's order, then devices of other kinds; none while they are not known.

    `offered`: what the agent answered that has this snapshot; by default what follows from it here.
    """
    return _availability_in_offer(snapshot, offer(snapshot) if offered is None else offered)


def _availability_in_offer(snapshot: Snapshot, offered: Offer) -> tuple[Availability, ...]:
    if offered.waiting_reason:
        return _availability_without_offer.of(
            snapshot,
            snapshot.machine,
            snapshot.devices,
            snapshot.config.settings,
            unavailable_units(snapshot),
            offer_waiting_reason(snapshot),
        )
    silent = tuple(each.name for each in offered.resources if plugin_part(each.name) in snapshot.statuses)
    return _availability_of_offered_units.of(
        snapshot,
        offered,
        unavailable_units(snapshot),
        tuple(plugin_not_registered_reason(snapshot, name) for name in silent),
    )


@part_view
def _availability_of_offered_units(
    offered: Offer, unit_reasons: Mapping[str, tuple[Reason, ...]], plugin_reasons: tuple[Reason | None, ...]
) -> tuple[Availability, ...]:
    """Each unit by what kubelet is told. After a grant it is asked the same again."""
    silent = {each.part: each for each in plugin_reasons if each is not None}
    return _sorted_by_index(
        [
            *_availability_of_resources(offered, silent),
            *(_availability_of_not_offered(each, unit_reasons) for each in offered.not_offered),
        ]
    )


def _sorted_by_index(availabilities: Iterable[Availability]) -> tuple[Availability, ...]:
    return tuple(
        sorted(availabilities, key=lambda each: (index_sort_key(each.index), each.device if not each.index else ""))
    )


@part_view
def _availability_without_offer(
    machine: Machine | None,
    devices: Mapping[str, DeviceList],
    settings: Settings | None,
    unit_reasons: Mapping[str, tuple[Reason, ...]],
    waiting_reason: Reason | None,
) -> tuple[Availability, ...]:
    """Each unit while kubelet is told nothing."""
    there = (each.unit for each in assign_units(machine, settings or Settings(mig_strategy="mixed"), devices))
    return _sorted_by_index(
        Availability(
            device=unit.id,
            index=unit.index,
            reasons=_distinct_reasons(
                (*unit_reasons.get(unit.id, ()), *([waiting_reason] if waiting_reason is not None else []))
            ),
        )
        for unit in there
    )


def _availability_of_resources(offered: Offer, reason_by_plugin: Mapping[str, Reason]) -> Iterator[Availability]:
    for resource in offered.resources:
        why = reason_by_plugin.get(plugin_part(resource.name).name)
        for unit, devices in _group_devices_by_unit(resource):
            against = [reason for each in devices for reason in each.reasons]
            yield Availability(
                device=unit.id,
                index=unit.index,
                resource=resource.name,
                id_count=len(devices),
                unhealthy_id_count=sum(bool(each.reasons) for each in devices),
                reasons=_distinct_reasons((*against, *([why] if why is not None else []))),
            )


def _group_devices_by_unit(resource: Resource) -> Iterable[tuple[Unit, list[OfferedDevice]]]:
    found: dict[str, tuple[Unit, list[OfferedDevice]]] = {}
    for device in resource.devices:
        found.setdefault(device.unit.id, (device.unit, []))[1].append(device)
    return found.values()


def _availability_of_not_offered(unit: NotOffered, unit_reasons: Mapping[str, tuple[Reason, ...]]) -> Availability:
    part = "" if is_plain_unit(unit.device) else DRIVER_PART.name if unit.kind == "problem" else CONFIG_PART.name
    reason = Reason(kind=unit.kind, text=unit.reason, part=part, code=unit.code)
    own = unit_reasons.get(unit.device, ())
    return Availability(device=unit.device, index=unit.index, reasons=_distinct_reasons((*own, reason)))


def _distinct_reasons(reasons: Iterable[Reason]) -> tuple[Reason, ...]:
    return tuple({each.identity_key: each for each in reasons}.values())


def plugin_not_registered_reason(snapshot: Snapshot, resource: str) -> Reason | None:
    """Why kubelet does not read the list of a resource; None while it does. What is not registered yet is so for a
    moment, and no device is said to be withheld for that."""
    part = plugin_part(resource)
    status = snapshot.statuses.of(part)
    if status is not None and status.state == "ok":
        return None
    kind: ReasonKind = "problem" if status is not None and status.state == "failing" else "waiting"
    text = f"{resource}: {status.text if status else 'not registered yet'}"
    return Reason(kind=kind, text=text, part=part.name, code="plugin-not-registered")


def devices_by_reason(
    reasons_of_devices: Iterable[tuple[DeviceName, Reason]],
) -> Mapping[Reason, tuple[DeviceName, ...]]:
    """Each reason once, with the devices that have it; of one whose fault it is the first is named."""
    first: dict[Reason, Reason] = {}
    devices: dict[Reason, dict[DeviceName, None]] = {}
    for named, reason in reasons_of_devices:
        key = reason.but(faulty_device="")
        first.setdefault(key, reason)
        devices.setdefault(key, {})[named] = None
    return {reason: tuple(devices[key]) for key, reason in first.items()}


def device_health_with_availability(snapshot: Snapshot, offered: Offer | None = None) -> tuple[DeviceHealth, ...]:
    """How each device stands, for people: as health says, and `withheld` where it is well and not given out.

    The node comes first where something is wrong with it, then the devices in the driver's order, then those away.
    `offered`: as of `availability`.
    """
    reasons = {each.index or each.device: each.reasons for each in availability(snapshot, offered)}
    inspect = command_line(INSPECT, snapshot.state_dir)
    return tuple(  # by the index, where there is one: two GPUs may bear one UUID
        _mark_withheld(each, reasons.get(each.index or each.device, ()) if each.device else (), inspect)
        for each in devicehealth.health_with_parents(snapshot)
    )


def names_failing_part(kind: ReasonKind, part: str) -> bool:
    """Whether a reason of this kind names a part that has to be mended, beside the driver, whose faults have an advice
    of their own."""
    return kind == "problem" and part not in ("", DRIVER_PART.name)


def _mark_withheld(health: DeviceHealth, reasons: tuple[Reason, ...], inspect: str) -> DeviceHealth:
    if not reasons or health.state not in ("healthy", "suspect", "degraded"):
        return health
    own = [health.reason] if health.reason else []
    return health.but(
        state="withheld",
        since=None,
        until=None,
        reason=join("; ", [*(each.text for each in reasons), *own]),
        clear_when_text=next(
            (CLEAR_WHEN_TEXT_BY_KIND[each.kind] for each in reasons if each.kind in CLEAR_WHEN_TEXT_BY_KIND), ""
        ),
        advice=next(
            (
                f"run {inspect} and read the line of the part {each.part}"
                for each in reasons
                if names_failing_part(each.kind, each.part)
            ),
            "",
        ),
    )
