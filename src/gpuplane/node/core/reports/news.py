"""What is worth saying in the log, once, about two snapshots that follow each other.

A cause is said once with all devices that it concerns, and again where it becomes another, or where devices join or
leave it. Another wording is nothing new: a driver that fails may fail in another call at each look.

A warning tells of something wrong. A drain, a release of the driver, and a container that holds a device under another
name are wanted: they are no warning. Of a claim that has a device there is no line, as there is none of a grant.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

from gpuplane.base.logsubject import LogSubject
from gpuplane.base.text import Text, format_count
from gpuplane.base.value import Value
from gpuplane.node.core.advertising import (
    is_ready_to_take_over,
    missing_information_reason,
    offer,
    part_with_missing_information,
)
from gpuplane.node.core.commands import INSPECT, command_line
from gpuplane.node.core.containers import strategy
from gpuplane.node.core.devicenames import DeviceName, describe_devices, device_uuids_or_indices
from gpuplane.node.core.dra.twice import OFFERED_TWICE_TEXT, devices_offered_twice
from gpuplane.node.core.health import devicehealth
from gpuplane.node.core.health.absence import ABSENT_CODE
from gpuplane.node.core.health.context import health_context
from gpuplane.node.core.partitions.plans import gpus_awaiting_layout
from gpuplane.node.core.requests import driver_release_reason, driver_release_requester
from gpuplane.node.core.serving import standby_reason
from gpuplane.node.model.config import Config
from gpuplane.node.model.health import DeviceHealth
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import CONFIG_PART, DRIVER_PART, KUBELET_LOCK_PART, SLICES_PART, AnyPart, Statuses
from gpuplane.node.model.views import News, Offer, OfferedDevice, Reason, Resource

READY_TO_TAKE_OVER_TEXT = "ready to take over"
"""What a standby agent says when a rollout may stop the old one. The sandbox waits for this line of the log."""


def news(before: Snapshot, after: Snapshot) -> Iterator[News]:
    """What is worth saying, once, about two snapshots that follow each other."""
    if driver_release_requester(before) != driver_release_requester(after):
        why = driver_release_reason(after)
        yield _part_news("info", DRIVER_PART, f"released: {why}" if why else "resumed")
    if is_ready_to_take_over(after) and not is_ready_to_take_over(before):
        yield _part_news("info", KUBELET_LOCK_PART, READY_TO_TAKE_OVER_TEXT)
    if before.statuses is not after.statuses:
        yield from _status_news(before.statuses, after.statuses)
    if _only_warnings(before.config) != _only_warnings(after.config):
        yield from (_part_news("warning", CONFIG_PART, each) for each in after.config.warnings)
    if before.ledger.health is not after.ledger.health:
        yield from _health_news(before, after)
    yield from strategy.strategy_news(before, after)
    old, new = offer(before), offer(after)
    awaited, awaits = gpus_awaiting_layout(before), gpus_awaiting_layout(after)
    if old is not new and not standby_reason(after):  # the status of the lock has said that
        yield from _news_of_alike_messages(
            _availability_messages({each.name: each for each in old.resources}, new.resources)
        )
        yield from _waiting_news(before, after)
        yield from _resource_news(old, new, awaited | awaits)
    if (twice := devices_offered_twice(after)) and not devices_offered_twice(before):
        subject = LogSubject(part=SLICES_PART.name, devices=device_uuids_or_indices(twice))
        yield News("warning", _describe_news_devices(twice), OFFERED_TWICE_TEXT, subject)
    if awaited and not awaits and not standby_reason(after):
        yield from (_count_news(each) for each in new.resources)


def _only_warnings(config: Config) -> Config:
    """The warnings alone, as a whole value: a change of anything else in the configuration does not repeat them."""
    return Config(warnings=config.warnings)


def _part_news(level: str, part: AnyPart, text: Text, code: str = "") -> News:
    resources = (part.subject,) if part.kind == "plugin" else ()
    subject = LogSubject(part=part.name, code=code, resources=resources)
    return News(level=level, about=part.name, text=text, subject=subject)


def _status_news(before: Statuses, after: Statuses) -> Iterator[News]:
    for part, status in after.items():
        last = before.get(part)
        if last is None or not status.has_same_state_and_cause(last):
            level = "warning" if status.state == "failing" or status.warns else "info"
            text = f"{status.state}: {status.text}" if status.text else status.state
            yield _part_news(level, part, text, status.code)


class _DeviceMessage(Value):
    """What is said of a device, or of several alike: `lead`, the resources that it is about, and `why`."""

    level: str
    beginning: Text
    end: Text = ""
    part: str = ""
    code: str = ""


def _news_of_alike_messages(messages: Iterable[tuple[_DeviceMessage, DeviceName, str]]) -> Iterator[News]:
    """One line for all devices of which the same is to be said, each with its resource, "" for none."""
    devices: dict[_DeviceMessage, dict[DeviceName, None]] = {}
    resources: dict[_DeviceMessage, dict[str, None]] = {}
    for line, named, resource in messages:
        devices.setdefault(line, {})[named] = None
        resources.setdefault(line, {})[resource] = None
    for line, each in devices.items():
        names = tuple(filter(None, resources[line]))
        subject = LogSubject(devices=device_uuids_or_indices(each), part=line.part, code=line.code, resources=names)
        text = f"{line.beginning}{', '.join(names)}{line.end}"
        yield News(level=line.level, about=_describe_news_devices(tuple(each)), text=text, subject=subject)


def _describe_news_devices(devices: tuple[DeviceName, ...]) -> str:
    """One device is named as programs do, by its UUID."""
    [(uuid, index), *more] = devices
    return describe_devices(devices) if more or (index and not uuid) else uuid or "node"


def _health_news(before: Snapshot, after: Snapshot) -> Iterator[News]:
    """What befalls the devices and is not said by what kubelet is told."""
    yield from _news_of_alike_messages((line, named, "") for line, named in _health_messages(before, after))


def _health_messages(before: Snapshot, after: Snapshot) -> Iterator[tuple[_DeviceMessage, DeviceName]]:
    old = {each.device: each for each in devicehealth.health_without_parents(before)}
    for each in devicehealth.health_without_parents(after):
        known, named = each.device in old, (each.device, each.index)  # else it is remembered from before a restart
        last = old.pop(each.device, DeviceHealth(device=each.device, index="", state="healthy"))
        if (last.state, last.code) != (each.state, each.code) and not (
            _is_told_to_kubelet(each) or (_is_told_to_kubelet(last) and each.code != ABSENT_CODE)
        ):
            level = "info" if each.state == "healthy" else "warning"
            was = f", was {last.state}" if each.state == "healthy" else ""
            text = f"{each.state}{was}{': ' if each.reason else ''}{each.reason}"
            yield _DeviceMessage(level=level, beginning=text, code=each.code or last.code), named
        for code, text in _repeated_fault_texts(last, each, after) if known else ():
            yield _DeviceMessage(level="info", beginning=text, code=code), named
    for device, last in old.items():
        if last.state != "healthy" and not (device == "" and _is_told_to_kubelet(last)):
            gone = "device removed; the agent deleted its health record" if device else f"healthy, was {last.state}"
            yield _DeviceMessage(level="info", beginning=gone, code=last.code), (device, last.index)


def _repeated_fault_texts(last: DeviceHealth, now: DeviceHealth, snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    """(code, text) of what has happened again, ever more seldom."""
    context = health_context(snapshot)
    for code, count in now.fault_counts.items():
        entry = context.effective_entry(code)
        again = count > 1 or entry.severity == "note"
        if count != last.fault_counts.get(code, 0) and count & (count - 1) == 0 and again:
            yield code, f"{code}: {entry.title} ({'once' if count == 1 else f'{count} times so far'})"


def _is_told_to_kubelet(health: DeviceHealth) -> bool:
    """Whether what kubelet is told says it: of the node, that of each of its devices. Of what is absent it is told
    nothing."""
    return health.state in ("unhealthy", "probing", "drained") and health.code != ABSENT_CODE


def _waiting_news(before: Snapshot, after: Snapshot) -> Iterator[News]:
    """What keeps everything from being offered. Where the status of a part says why, the log has it already."""
    text = _waiting_text(after)
    if text != _waiting_text(before):
        lack = missing_information_reason(after)
        subject = LogSubject(part=lack.part, code=lack.code) if lack is not None else LogSubject()
        yield News(level="info", about="offer", text=text, subject=subject)


def _waiting_text(snapshot: Snapshot) -> str:
    part, machine = part_with_missing_information(snapshot), snapshot.machine
    status = snapshot.statuses.get(part) if part is not None else None
    uncounted = part == DRIVER_PART and machine is not None  # a look that fails comes before the status that says why
    if part is not None and (uncounted or (status is not None and status.state != "ok")):
        inspect = command_line(INSPECT, snapshot.state_dir)
        return f"waiting for the part {part.name}; to see why, run {inspect} or read the log lines of this part"
    waiting = offer(snapshot).waiting_reason
    return f"waiting: {waiting}" if waiting else "ready to offer"


def _resource_news(before: Offer, after: Offer, awaiting: Collection[str]) -> Iterator[News]:
    """What is offered under which names. `awaiting`: GPUs whose MIG layouts are made. While there are any, the number
    of devices changes with each instance, and is said once at the end."""
    earlier = {resource.name: resource for resource in before.resources}
    for resource in after.resources:
        old = earlier.pop(resource.name, None)
        if not awaiting and (old is None or len(old.devices) != len(resource.devices)):
            yield _count_news(resource)
    for name in earlier:
        yield _single_resource_news(name, "no longer offered")
    if before.not_offered is not after.not_offered:
        left = [each for each in after.not_offered if each not in before.not_offered and each.device not in awaiting]
        yield from _news_of_alike_messages(
            (
                _DeviceMessage(level="info", beginning=f"not offered under any resource name: {each.reason}"),
                (each.device, each.index),
                "",
            )
            for each in left
        )


def _count_news(resource: Resource) -> News:
    away = sum(bool(_lasting_reasons(each)) for each in resource.devices)
    offered = f"{format_count(len(resource.devices), 'device')} offered"
    return _single_resource_news(resource.name, offered + (f", {away} of them not available" if away else ""))


def _single_resource_news(name: str, text: str) -> News:
    return News(level="info", about=name, text=text, subject=LogSubject(resources=(name,)))


def _availability_messages(
    before: Mapping[str, Resource], after: Iterable[Resource]
) -> Iterator[tuple[_DeviceMessage, DeviceName, str]]:
    """What has befallen the units of each resource; once for a unit, however many ids share it."""
    for resource in after:
        if (old := before.get(resource.name)) != resource:
            for line, named in _unit_availability_messages(
                _first_device_by_unit(old) if old else {}, _first_device_by_unit(resource)
            ):
                yield line, named, resource.name


def _unit_availability_messages(
    before: Mapping[str, OfferedDevice], after: Mapping[str, OfferedDevice]
) -> Iterator[tuple[_DeviceMessage, DeviceName]]:
    for unit, device in after.items():
        now, last = _lasting_reasons(device), _lasting_reasons(before[unit]) if unit in before else {}
        new = [each for key, each in now.items() if key not in last]
        for each in new or (now.values() if last.keys() - now.keys() else ()):
            yield _unavailable_message(each), (unit, device.unit.index)
        if last and not now:
            yield _DeviceMessage("info", "available again as "), (unit, device.unit.index)


def _unavailable_message(reason: Reason) -> _DeviceMessage:
    level = "warning" if reason.kind == "problem" else "info"
    return _DeviceMessage(level, "not available as ", f": {reason.text}", reason.part, reason.code)


def _first_device_by_unit(resource: Resource) -> Mapping[str, OfferedDevice]:
    return {device.unit.id: device for device in resource.devices}


def _lasting_reasons(device: OfferedDevice) -> Mapping[tuple[str, ...], Reason]:
    """The reasons but those that are over in a moment, and but a claim that has the device; each by its identity."""
    return {each.identity_key: each for each in device.reasons if each.kind != "waiting" and not _is_claim(each)}


def _is_claim(reason: Reason) -> bool:
    return reason.holder is not None and bool(reason.holder.claim)
