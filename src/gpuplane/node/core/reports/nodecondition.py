"""Our Node's condition `GPUProblem`, as a function of the snapshot.

As for node-problem-detector, "True" means that there is a problem. The message accounts for every device that is not
given out: how many they are of how many, and each reason once, with the devices that have it. What people and pods want
(a drain, a device that is held by another name, a layout that has no name) is said, and is no problem. Neither is a
device that is only suspect.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpuplane.base.text import clip, format_count
from gpuplane.node.core import lookup, requests
from gpuplane.node.core.advertising import missing_information_reason
from gpuplane.node.core.availability import availability, devices_by_reason
from gpuplane.node.core.devicenames import DeviceName, describe_devices, describe_part_of
from gpuplane.node.core.health import devicehealth, reasons
from gpuplane.node.core.health.absence import ABSENT_CODE
from gpuplane.node.core.kinds.table import is_plain_unit
from gpuplane.node.core.observation import NOT_OBSERVED_FAULT
from gpuplane.node.core.serving import standby_reason
from gpuplane.node.core.view import view, without_allocations
from gpuplane.node.model.machine import Gpu, Machine
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import CONFIG_PART, DRIVER_PART
from gpuplane.node.model.views import Availability, NodeCondition, Reason

MAX_MESSAGE_CHARACTERS = 1000
"""Characters of a message at the most. (An Event's has 1024 bytes, pkg/apis/core/validation/events.go, where its writer
speaks events.k8s.io; for core/v1 there is no limit.)"""

CONDITION_REASONS_WORST_FIRST = (
    "DriverFailing",
    "GPUUnhealthy",
    "GPUUnavailable",
    "DeviceUnhealthy",
    "DeviceUnavailable",
    "GPUDegraded",
    "DeviceDegraded",
)
"""The reasons of a problem, the worst first. `Device…` is about devices that are no GPUs, and about no GPU."""

NODE_DEVICE_NAME: DeviceName = ("", "")


def is_machine_and_config_settled(snapshot: Snapshot) -> bool:
    """Whether enough is known to judge by: the machine was looked at, and the configuration says what counts."""
    config = snapshot.statuses.of(CONFIG_PART)
    settled = snapshot.config.settings is not None or (config is not None and config.state == "failing")
    return snapshot.machine is not None and settled


def node_condition(snapshot: Snapshot) -> NodeCondition | None:
    """The condition; None while nothing can be said, so that what was said last stays."""
    return _derive_node_condition(
        without_allocations(snapshot), missing_information_reason(snapshot), availability(snapshot)
    )


@view
def _derive_node_condition(
    snapshot: Snapshot, missing_information: Reason | None, units: tuple[Availability, ...]
) -> NodeCondition | None:
    """`snapshot` is apart from what containers hold: a grant changes nothing here."""
    if standby_reason(snapshot) or (missing_information is not None and missing_information.kind == "waiting"):
        return None
    found = list(_device_reasons(snapshot, units))
    causes = frozenset(_condition_causes(snapshot, units, found))
    worst = {condition_reason_name(reason, *device) for device, reason in found}
    for reason in CONDITION_REASONS_WORST_FIRST:
        if reason in worst:
            return NodeCondition("True", reason, _clip_message(_reason_texts(units, found)), causes)
    if away := requests.driver_release_reason(snapshot):
        return NodeCondition("Unknown", "DriverReleased", _clip_message([f"the driver is released: {away}"]), causes)
    machine = snapshot.machine
    if machine is None or machine.gpus is None or NOT_OBSERVED_FAULT in machine.faults:
        return None
    return NodeCondition(
        "False", "NoProblem", _clip_message(_no_problem_texts(snapshot, machine.gpus, units, found)), causes
    )


def _clip_message(sentences: Iterable[str]) -> str:
    return clip("; ".join(sentences), MAX_MESSAGE_CHARACTERS)


def condition_reason_name(reason: Reason, device: str = "", index: str = "") -> str:
    """The condition's reason for a reason that is a problem; "" for one that is none. `device`, `index`: who has it."""
    return reason_name_of_kind(_gpu_condition_reason_name(reason), device)


def reason_name_of_kind(name: str, device: str) -> str:
    """The name of a condition's or Event's reason for a device: "GPUUnhealthy" is "DeviceUnhealthy" for no GPU."""
    return f"Device{name.removeprefix('GPU')}" if is_plain_unit(device) and name.startswith("GPU") else name


def _gpu_condition_reason_name(reason: Reason) -> str:
    of_node = bool(reason.part == DRIVER_PART.name and reason.is_fault and not reason.faulty_device)
    if reason.kind == "degraded":
        return "DriverFailing" if of_node else "GPUDegraded"
    if reason.kind != "problem":
        return ""
    if of_node:
        return "DriverFailing"
    return "GPUUnhealthy" if reason.faulty_device or reason.part == DRIVER_PART.name else "GPUUnavailable"


def _condition_causes(
    snapshot: Snapshot, units: Iterable[Availability], found: Iterable[tuple[DeviceName, Reason]]
) -> Iterator[tuple[str, ...]]:
    """What the condition says, whatever the words."""
    yield from ((*each.identity_key, *named) for named, each in found)
    yield from ((each.device, each.index, str(not each.reasons)) for each in units)
    yield from (("drained", name) for name in _drains_of_unknown_devices(snapshot))
    yield "released", requests.driver_release_requester(snapshot)


def _device_reasons(snapshot: Snapshot, units: tuple[Availability, ...]) -> Iterator[tuple[DeviceName, Reason]]:
    """(device, reason) of all that is worth saying: what keeps devices from being given out, each by the device whose
    fault it is; and what else health has found."""
    if not is_machine_and_config_settled(snapshot):
        driver = snapshot.statuses.of(DRIVER_PART)
        if snapshot.machine is None and driver is not None and driver.state == "failing":
            yield (
                NODE_DEVICE_NAME,
                Reason(kind="problem", text=driver.text, part=DRIVER_PART.name, code=driver.code or "driver-failed"),
            )
        return
    names, said = _index_by_uuid(snapshot.machine), set[tuple[str, ...]]()
    for each in units:
        for reason in each.reasons:
            said.add(reason.identity_key)
            named = (
                (reason.faulty_device, names[reason.faulty_device])
                if reason.faulty_device in names
                else (each.device, each.index)
            )
            yield named, reason
    for diagnosis in devicehealth.health_without_parents(snapshot):
        if diagnosis.state in ("degraded", "unhealthy", "probing"):
            ailments = reasons.direct_health_reasons(snapshot, diagnosis.device)
            new = (each for each in ailments if each.identity_key not in said and each.kind != "released")
            yield from (((diagnosis.device, diagnosis.index), each) for each in new)


def _index_by_uuid(machine: Machine | None) -> Mapping[str, str]:
    """UUID → index, of each GPU and MIG device."""
    gpus = [gpu for gpu in (machine.gpus if machine else None) or () if gpu.uuid]
    parts = {part.uuid: f"{gpu.index}:{part.mig_index}" for gpu in gpus for part in gpu.mig_devices if part.uuid}
    return {**{gpu.uuid: str(gpu.index) for gpu in gpus}, **parts}


def _reason_texts(units: tuple[Availability, ...], found: Iterable[tuple[DeviceName, Reason]]) -> Iterator[str]:
    """Which GPUs are absent; how many devices are not given out and why, the worst first; what is wrong with others."""
    groups = sorted(devices_by_reason(found).items(), key=lambda each: _condition_severity_rank(each[0], each[1][0]))
    yield from (_describe_devices_with_reason(each, reason) for reason, each in groups if reason.code == ABSENT_CODE)
    against = [
        _describe_devices_with_reason(devices, reason)
        for reason, devices in groups
        if reason.kind != "degraded" and reason.code != ABSENT_CODE
    ]
    if out := [each for each in units if each.reasons]:
        count = describe_part_of(_names(out), _names(units))
        yield f"{count} not given out: {'; '.join(against)}"
    else:
        yield from against
    if slight := [
        _describe_devices_with_reason(devices, reason) for reason, devices in groups if reason.kind == "degraded"
    ]:
        yield "; ".join(slight)


def _describe_devices_with_reason(devices: tuple[DeviceName, ...], reason: Reason) -> str:
    return f"{describe_devices(devices)}: {reason.text}"


def _condition_severity_rank(reason: Reason, device: DeviceName) -> int:
    worst = condition_reason_name(reason, *device)
    return CONDITION_REASONS_WORST_FIRST.index(worst) if worst else len(CONDITION_REASONS_WORST_FIRST)


def _names(units: Iterable[Availability]) -> list[DeviceName]:
    return [(each.device, each.index) for each in units]


def _no_problem_texts(
    snapshot: Snapshot, gpus: Sequence[Gpu], units: tuple[Availability, ...], found: Iterable[tuple[DeviceName, Reason]]
) -> Iterator[str]:
    yield f"{format_count(len(gpus), 'GPU')}, no problem" if gpus else "the driver lists no GPU"
    yield from _reason_texts(units, found)
    for name in _drains_of_unknown_devices(snapshot):
        yield f"the Node object requests a drain of {name!r}, but this node has no such device; correct the annotation"


def _drains_of_unknown_devices(snapshot: Snapshot) -> Iterator[str]:
    for name in requests.node_requests(snapshot).drain_reasons:
        if name != lookup.ALL_DEVICES_NAME and lookup.find_device(snapshot, name) is None:
            yield name
