"""Events about our Node: the difference of how its devices stood when that was told last, and how they stand now.

What is wrong with the driver is told of the node and not again of each GPU. Devices to which the same has happened are
told of in one Event. Another wording of the same cause is none.
"""

from collections.abc import Iterator, Mapping
from typing import Literal

from gpuplane.base.text import Text, clip, group_by_key, join
from gpuplane.base.value import Value
from gpuplane.node.core.availability import availability
from gpuplane.node.core.devicenames import DeviceName, describe_devices
from gpuplane.node.core.health.context import health_context
from gpuplane.node.core.health.devicehealth import health_without_parents
from gpuplane.node.core.observation import NOT_OBSERVED_FAULT
from gpuplane.node.core.reports.nodecondition import MAX_MESSAGE_CHARACTERS, condition_reason_name, reason_name_of_kind
from gpuplane.node.model.config import Config
from gpuplane.node.model.health import NODE_RECORD_KEY, DeviceHealth, DeviceRecord, HealthRecords
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.views import Availability, NodeEvent

EventState = Literal["well", "waiting", "degraded", "unavailable", "unhealthy", "failing", "drained"]
EventType = Literal["Normal", "Warning"]


class DeviceEventState(Value):
    """How one device stands for Kubernetes. `failing` is the driver, that is the node; `unavailable` is a device that
    is well, and that something else keeps from being given out; `waiting` is over in a moment, and no change."""

    index: str
    state: EventState
    reason: Text = ""
    advice: Text = ""
    failing_parts: frozenset[str] = frozenset()  # those that make it unavailable


EVENT_REASON_BY_STATE: Mapping[EventState, str] = {
    "failing": "DriverFailing",
    "unhealthy": "GPUUnhealthy",
    "unavailable": "GPUUnavailable",
    "degraded": "GPUDegraded",
}
"""What counts as a problem → the reason of the Event."""

HEALTHY_STATE = DeviceEventState(index="", state="well")


def event_states(snapshot: Snapshot) -> Mapping[str, DeviceEventState]:
    """UUID → how each device stands; "" is the node."""
    found = {NODE_RECORD_KEY: _driver_event_state(snapshot)}
    for each in health_without_parents(snapshot):
        if each.device != NODE_RECORD_KEY:
            found[each.device] = DeviceEventState(
                index=each.index, state=_event_state_of_health(each), reason=each.reason, advice=each.advice
            )
    for unit in availability(snapshot):
        key = unit.device or _device_name_without_uuid(unit.index)
        found[key] = _with_availability(found.get(key, HEALTHY_STATE.but(index=unit.index)), unit)
    return found


def event_states_before_restart(snapshot: Snapshot, now: Snapshot) -> Mapping[str, DeviceEventState]:
    """How the devices stood when the ledger of a snapshot was written, judged and named as they are now.

    It is what Kubernetes was told before our restart, as far as anybody knows. Nobody remembers what of it was no fault
    of a device or of the driver: that is told again while it lasts.
    """
    return keep_last_state_while_waiting(
        {},
        event_states(
            snapshot.but(machine=now.machine, devices=now.devices, config=Config(settings=now.config.settings))
        ),
    )


def keep_last_state_while_waiting(
    last: Mapping[str, DeviceEventState], now: Mapping[str, DeviceEventState]
) -> dict[str, DeviceEventState]:
    """How the devices stand for those who were told of all that has changed: what only waits stands as it did."""
    return {key: last.get(key, HEALTHY_STATE) if each.state == "waiting" else each for key, each in now.items()}


def _driver_event_state(snapshot: Snapshot) -> DeviceEventState:
    """The driver by the node's own record. That it was let go of, and not looked at since, is nobody's failure."""
    by = health_context(snapshot)
    record = (snapshot.ledger.health or HealthRecords()).devices.get(NODE_RECORD_KEY, DeviceRecord())
    ill = [each for each in record.findings if each.confirmed and each.code != NOT_OBSERVED_FAULT.code]
    ill = [each for each in ill if by.effective_entry(each.code).severity != "note"]
    if not ill:
        return HEALTHY_STATE
    why = "; ".join(f"{each.code}: {each.message}" for each in ill)
    advice = by.advice(by.effective_entry(ill[0].code), NODE_RECORD_KEY)
    return DeviceEventState(index="", state="failing", reason=why, advice=advice)


def _event_state_of_health(health: DeviceHealth) -> EventState:
    match health.state:
        case "unhealthy" | "probing":
            return "unhealthy"
        case "degraded" | "drained":
            return health.state
        case "healthy" | "suspect" | "withheld":
            return "well"


def _with_availability(state: DeviceEventState, unit: Availability) -> DeviceEventState:
    """The standing with what is no fault of the device and no drain of it."""
    if state.state not in ("well", "degraded"):
        return state
    found = [each for each in unit.reasons if condition_reason_name(each) and not each.is_fault]
    if found:
        parts = frozenset(each.part for each in found)
        return state.but(
            state="unavailable", reason=join("; ", (each.text for each in found)), advice="", failing_parts=parts
        )
    waits = state.state == "well" and any(each.kind == "waiting" for each in unit.reasons)
    return state.but(state="waiting") if waits else state


def node_events(before: Mapping[str, DeviceEventState], after: Mapping[str, DeviceEventState]) -> Iterator[NodeEvent]:
    """What is worth an Event between two standings."""
    said: list[tuple[tuple[EventType, str, Text], DeviceName]] = []
    for device, now in after.items():
        was = before.get(device, HEALTHY_STATE)
        if now.state != "waiting" and (now.state, now.failing_parts) != (was.state, was.failing_parts):
            said.append((_event_of_state_change(was, now), (device, now.index)))
    for device, was in before.items():
        if device not in after and was.state in EVENT_REASON_BY_STATE:
            said.append((("Normal", "GPURemoved", f"{was.state}: {was.reason}"), (device, was.index)))
    of_kind = (((type, reason_name_of_kind(reason, named[0]), why), named) for (type, reason, why), named in said)
    for (type, reason, why), devices in group_by_key(of_kind):
        names = [("" if device == _device_name_without_uuid(index) else device, index) for device, index in devices]
        lead = CONNECTING_WORDS.get(reason, (": ", ": "))[len(devices) > 1]
        message = clip(f"{describe_devices(names)}{lead}{why}", MAX_MESSAGE_CHARACTERS)
        yield NodeEvent(devices=tuple(device for device, _ in devices), type=type, reason=reason, message=message)


CONNECTING_WORDS = {
    "GPUDrained": (" is drained; new pods do not get it: ", " are drained; new pods do not get them: "),
    "GPUUndrained": (
        " is available for pods again; it was drained: ",
        " are available for pods again; they were drained: ",
    ),
    "GPURecovered": (" is healthy again; before: ", " are healthy again; before: "),
    "DriverRecovered": (" is healthy again; before: ", " are healthy again; before: "),
    "GPURemoved": (" is not present any more; before: ", " are not present any more; before: "),
}
"""The reason of an Event → what stands between the name of a device and the why, and the same of several devices."""


def _event_of_state_change(before: DeviceEventState, after: DeviceEventState) -> tuple[EventType, str, Text]:
    """(type, reason, why) of a change."""
    if after.state in EVENT_REASON_BY_STATE:
        return (
            "Warning",
            EVENT_REASON_BY_STATE[after.state],
            f"{after.reason} ({after.advice})" if after.advice else after.reason,
        )
    if after.state == "drained":
        return "Normal", "GPUDrained", after.reason
    if before.state == "drained":
        return "Normal", "GPUUndrained", before.reason
    return (
        "Normal",
        "DriverRecovered" if before.state == "failing" else "GPURecovered",
        f"{before.state}: {before.reason}",
    )


def _device_name_without_uuid(index: str) -> str:
    """What a device is called here whose UUID the driver does not tell."""
    return f"GPU {index}"
