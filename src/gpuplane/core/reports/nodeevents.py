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
from gpuplane.core.reports.nodecondition import LONGEST, problem
from gpuplane.core.text import clip
from gpuplane.model.config import Config
from gpuplane.model.health import NODE, DeviceHealth, DeviceRecord, HealthRecords
from gpuplane.model.snapshot import Snapshot
from gpuplane.model.text import Text, group_alike, join
from gpuplane.model.value import Value
from gpuplane.model.views import Availability, NodeEvent

Kind = Literal["well", "waiting", "degraded", "unavailable", "unhealthy", "failing", "drained"]
Type = Literal["Normal", "Warning"]


class Standing(Value):
    """How one device stands for Kubernetes. `failing` is the driver, that is the node; `unavailable` is a device that
    is well, and that something else keeps from being given out; `waiting` is over in a moment, and no change."""

    index: str
    kind: Kind
    why: Text = ""
    advice: Text = ""
    parts: frozenset[str] = frozenset()  # those that make it unavailable


REASONS: Mapping[Kind, str] = {
    "failing": "DriverFailing",
    "unhealthy": "GPUUnhealthy",
    "unavailable": "GPUUnavailable",
    "degraded": "GPUDegraded",
}
"""What counts as a problem → the reason of the Event."""

WELL = Standing(index="", kind="well")


def standings(snapshot: Snapshot) -> Mapping[str, Standing]:
    """UUID → how each device stands; "" is the node."""
    found = {NODE: _driver(snapshot)}
    for each in own_health(snapshot):
        if each.device != NODE:
            found[each.device] = Standing(index=each.index, kind=_kind(each), why=each.reason, advice=each.advice)
    for unit in availability(snapshot):
        key = unit.device or _unnamed(unit.index)
        found[key] = _beside(found.get(key, WELL.but(index=unit.index)), unit)
    return found


def remembered(snapshot: Snapshot, now: Snapshot) -> Mapping[str, Standing]:
    """How the devices stood when the ledger of a snapshot was written, judged and named as they are now.

    It is what Kubernetes was told before our restart, as far as anybody knows. Nobody remembers what of it was no fault
    of a device or of the driver: that is told again while it lasts.
    """
    return kept({}, standings(snapshot.but(machine=now.machine, config=Config(settings=now.config.settings))))


def kept(last: Mapping[str, Standing], now: Mapping[str, Standing]) -> dict[str, Standing]:
    """How the devices stand for those who were told of all that has changed: what only waits stands as it did."""
    return {key: last.get(key, WELL) if each.kind == "waiting" else each for key, each in now.items()}


def _driver(snapshot: Snapshot) -> Standing:
    """The driver by the node's own record. That it was let go of, and not looked at since, is nobody's failure."""
    by = health_context(snapshot)
    record = (snapshot.ledger.health or HealthRecords()).devices.get(NODE, DeviceRecord())
    ill = [each for each in record.findings if each.confirmed and each.code != NOT_OBSERVED.code]
    ill = [each for each in ill if by.entry(each.code).severity != "note"]
    if not ill:
        return WELL
    why = "; ".join(f"{each.code}: {each.message}" for each in ill)
    return Standing(index="", kind="failing", why=why, advice=by.entry(ill[0].code).advice)


def _kind(diagnosis: DeviceHealth) -> Kind:
    match diagnosis.state:
        case "unhealthy" | "probing":
            return "unhealthy"
        case "degraded" | "drained":
            return diagnosis.state
        case "healthy" | "suspect" | "withheld":
            return "well"


def _beside(standing: Standing, unit: Availability) -> Standing:
    """The standing with what is no fault of the device and no drain of it."""
    if standing.kind not in ("well", "degraded"):
        return standing
    found = [each for each in unit.reasons if problem(each) and not each.is_fault]
    if found:
        parts = frozenset(each.part for each in found)
        return standing.but(kind="unavailable", why=join("; ", (each.text for each in found)), advice="", parts=parts)
    waits = standing.kind == "well" and any(each.kind == "waiting" for each in unit.reasons)
    return standing.but(kind="waiting") if waits else standing


def events(before: Mapping[str, Standing], after: Mapping[str, Standing]) -> Iterator[NodeEvent]:
    """What is worth an Event between two standings."""
    said: list[tuple[tuple[Type, str, Text], DeviceName]] = []
    for device, now in after.items():
        was = before.get(device, WELL)
        if now.kind != "waiting" and (now.kind, now.parts) != (was.kind, was.parts):
            said.append((_said(was, now), (device, now.index)))
    for device, was in before.items():
        if device not in after and was.kind in REASONS:
            said.append((("Normal", "GPURemoved", f"{was.kind}: {was.why}"), (device, was.index)))
    for (type, reason, why), devices in group_alike(said):
        names = [("" if device == _unnamed(index) else device, index) for device, index in devices]
        lead = LEADS.get(reason, (": ", ": "))[len(devices) > 1]
        message = clip(f"{describe_devices(names)}{lead}{why}", LONGEST)
        yield NodeEvent(devices=tuple(device for device, _ in devices), type=type, reason=reason, message=message)


LEADS = {
    "GPUDrained": (" is given out no more: ", " are given out no more: "),
    "GPURestored": (" is given out again; it was drained: ", " are given out again; they were drained: "),
    "GPURecovered": (" is well again; it was ", " are well again; they were "),
    "DriverRecovered": (" is well again; it was ", " are well again; they were "),
    "GPURemoved": (" is no longer there; it was ", " are no longer there; they were "),
}
"""The reason of an Event → what stands between the name of a device and the why, and the same of several devices."""


def _said(was: Standing, now: Standing) -> tuple[Type, str, Text]:
    """(type, reason, why) of a change."""
    if now.kind in REASONS:
        return "Warning", REASONS[now.kind], f"{now.why} ({now.advice})" if now.advice else now.why
    if now.kind == "drained":
        return "Normal", "GPUDrained", now.why
    if was.kind == "drained":
        return "Normal", "GPURestored", was.why
    return "Normal", "DriverRecovered" if was.kind == "failing" else "GPURecovered", f"{was.kind}: {was.why}"


def _unnamed(index: str) -> str:
    """What a device is called here whose UUID the driver does not tell."""
    return f"GPU {index}"
