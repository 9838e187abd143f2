"""Events about our Node: the difference of how its devices stood when that was told last, and how they stand now.

What is wrong with the driver is told of the node and not again of each GPU. Devices to which the same has happened are
told of in one Event. Another wording of the same cause is none.
"""

from collections.abc import Iterator, Mapping
from typing import Literal

from gpuplane.core.availability import availability
from gpuplane.core.devicenames import DeviceName, describe_devices
from gpuplane.core.health.context import health_context
from gpuplane.core.health.devicehealth import own_health
from gpuplane.core.observation import NOT_OBSERVED
from gpuplane.core.reports.nodecondition import MAX_MESSAGE_CHARACTERS, condition_reason
from gpuplane.core.text import clip
from gpuplane.model.config import Config
from gpuplane.model.health import NODE, DeviceHealth, DeviceRecord, HealthRecords
from gpuplane.model.snapshot import Snapshot
from gpuplane.model.text import Text, group_alike, join
from gpuplane.model.value import Value
from gpuplane.model.views import Availability, NodeEvent

EventState = Literal["well", "waiting", "degraded", "unavailable", "unhealthy", "failing", "drained"]
EventType = Literal["Normal", "Warning"]


class DeviceEventState(Value):
    """How one device stands for Kubernetes. `failing` is the driver, that is the node; `unavailable` is a device that
    is well, and that something else keeps from being given out; `waiting` is over in a moment, and no change."""

    index: str
    state: EventState
    reason: Text = ""
    advice: Text = ""
    parts: frozenset[str] = frozenset()  # those that make it unavailable


REASON_BY_STATE: Mapping[EventState, str] = {
    "failing": "DriverFailing",
    "unhealthy": "GPUUnhealthy",
    "unavailable": "GPUUnavailable",
    "degraded": "GPUDegraded",
}
"""What counts as a problem → the reason of the Event."""

HEALTHY = DeviceEventState(index="", state="well")


def event_states(snapshot: Snapshot) -> Mapping[str, DeviceEventState]:
    """UUID → how each device stands; "" is the node."""
    found = {NODE: _driver_state(snapshot)}
    for each in own_health(snapshot):
        if each.device != NODE:
            found[each.device] = DeviceEventState(
                index=each.index, state=_state_of_health(each), reason=each.reason, advice=each.advice
            )
    for unit in availability(snapshot):
        key = unit.device or _name_without_uuid(unit.index)
        found[key] = _with_availability(found.get(key, HEALTHY.but(index=unit.index)), unit)
    return found


def states_before_restart(snapshot: Snapshot, now: Snapshot) -> Mapping[str, DeviceEventState]:
    """How the devices stood when the ledger of a snapshot was written, judged and named as they are now.

    It is what Kubernetes was told before our restart, as far as anybody knows. Nobody remembers what of it was no fault
    of a device or of the driver: that is told again while it lasts.
    """
    return without_waiting(
        {}, event_states(snapshot.but(machine=now.machine, config=Config(settings=now.config.settings)))
    )


def without_waiting(
    last: Mapping[str, DeviceEventState], now: Mapping[str, DeviceEventState]
) -> dict[str, DeviceEventState]:
    """How the devices stand for those who were told of all that has changed: what only waits stands as it did."""
    return {key: last.get(key, HEALTHY) if each.state == "waiting" else each for key, each in now.items()}


def _driver_state(snapshot: Snapshot) -> DeviceEventState:
    """The driver by the node's own record. That it was let go of, and not looked at since, is nobody's failure."""
    by = health_context(snapshot)
    record = (snapshot.ledger.health or HealthRecords()).devices.get(NODE, DeviceRecord())
    ill = [each for each in record.findings if each.confirmed and each.code != NOT_OBSERVED.code]
    ill = [each for each in ill if by.entry(each.code).severity != "note"]
    if not ill:
        return HEALTHY
    why = "; ".join(f"{each.code}: {each.message}" for each in ill)
    return DeviceEventState(index="", state="failing", reason=why, advice=by.entry(ill[0].code).advice)


def _state_of_health(diagnosis: DeviceHealth) -> EventState:
    match diagnosis.state:
        case "unhealthy" | "probing":
            return "unhealthy"
        case "degraded" | "drained":
            return diagnosis.state
        case "healthy" | "suspect" | "withheld":
            return "well"


def _with_availability(standing: DeviceEventState, unit: Availability) -> DeviceEventState:
    """The standing with what is no fault of the device and no drain of it."""
    if standing.state not in ("well", "degraded"):
        return standing
    found = [each for each in unit.reasons if condition_reason(each) and not each.is_fault]
    if found:
        parts = frozenset(each.part for each in found)
        return standing.but(
            state="unavailable", reason=join("; ", (each.text for each in found)), advice="", parts=parts
        )
    waits = standing.state == "well" and any(each.kind == "waiting" for each in unit.reasons)
    return standing.but(state="waiting") if waits else standing


def node_events(before: Mapping[str, DeviceEventState], after: Mapping[str, DeviceEventState]) -> Iterator[NodeEvent]:
    """What is worth an Event between two standings."""
    said: list[tuple[tuple[EventType, str, Text], DeviceName]] = []
    for device, now in after.items():
        was = before.get(device, HEALTHY)
        if now.state != "waiting" and (now.state, now.parts) != (was.state, was.parts):
            said.append((_event_for_change(was, now), (device, now.index)))
    for device, was in before.items():
        if device not in after and was.state in REASON_BY_STATE:
            said.append((("Normal", "GPURemoved", f"{was.state}: {was.reason}"), (device, was.index)))
    for (type, reason, why), devices in group_alike(said):
        names = [("" if device == _name_without_uuid(index) else device, index) for device, index in devices]
        lead = CONNECTING_WORDS.get(reason, (": ", ": "))[len(devices) > 1]
        message = clip(f"{describe_devices(names)}{lead}{why}", MAX_MESSAGE_CHARACTERS)
        yield NodeEvent(devices=tuple(device for device, _ in devices), type=type, reason=reason, message=message)


CONNECTING_WORDS = {
    "GPUDrained": (" is given out no more: ", " are given out no more: "),
    "GPURestored": (" is given out again; it was drained: ", " are given out again; they were drained: "),
    "GPURecovered": (" is well again; it was ", " are well again; they were "),
    "DriverRecovered": (" is well again; it was ", " are well again; they were "),
    "GPURemoved": (" is no longer there; it was ", " are no longer there; they were "),
}
"""The reason of an Event → what stands between the name of a device and the why, and the same of several devices."""


def _event_for_change(was: DeviceEventState, now: DeviceEventState) -> tuple[EventType, str, Text]:
    """(type, reason, why) of a change."""
    if now.state in REASON_BY_STATE:
        return "Warning", REASON_BY_STATE[now.state], f"{now.reason} ({now.advice})" if now.advice else now.reason
    if now.state == "drained":
        return "Normal", "GPUDrained", now.reason
    if was.state == "drained":
        return "Normal", "GPURestored", was.reason
    return "Normal", "DriverRecovered" if was.state == "failing" else "GPURecovered", f"{was.state}: {was.reason}"


def _name_without_uuid(index: str) -> str:
    """What a device is called here whose UUID the driver does not tell."""
    return f"GPU {index}"
