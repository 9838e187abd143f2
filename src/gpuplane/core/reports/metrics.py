"""What the agent measures of itself: a pure view, rendered elsewhere."""

from collections import Counter
from collections.abc import Iterator, Mapping

from gpuplane.core.advertising import offer
from gpuplane.core.availability import availability, standing
from gpuplane.core.containers.strategy import current_decision
from gpuplane.core.faults.overrides import effective_entry
from gpuplane.core.health import devicehealth
from gpuplane.core.reports import nodecondition
from gpuplane.core.reports.readiness import not_ready_reason
from gpuplane.model.health import DeviceHealth, DeviceRecord, HealthRecords
from gpuplane.model.snapshot import Snapshot
from gpuplane.model.views import Metric

Series = Iterator[tuple[Mapping[str, str], float]]


def metrics(snapshot: Snapshot) -> tuple[Metric, ...]:
    """Every metric, with all its series. One whose name ends with _total is a counter."""
    return tuple(
        Metric(
            name=name,
            kind="counter" if name.endswith("_total") else "gauge",
            help=text,
            series=tuple(derive(snapshot)),
        )
        for name, (text, derive) in METRICS.items()
    )


def _ready(snapshot: Snapshot) -> Series:
    yield {}, not not_ready_reason(snapshot)


def _device_counts(snapshot: Snapshot) -> Series:
    for resource in offer(snapshot).resources:
        counts = Counter("unhealthy" if device.reasons else "healthy" for device in resource.devices)
        for health in ("healthy", "unhealthy"):
            yield {"resource": resource.name, "health": health}, counts[health]


def _gpu_count(snapshot: Snapshot) -> Series:
    if snapshot.machine is not None and snapshot.machine.gpus is not None:
        yield {}, len(snapshot.machine.gpus)


def _units_not_offered(snapshot: Snapshot) -> Series:
    for left in offer(snapshot).not_offered:
        yield {"unit": left.unit, "reason": f"{left.reason}"}, 1


def _waiting(snapshot: Snapshot) -> Series:
    if waiting := offer(snapshot).waiting:
        yield {"reason": f"{waiting}"}, 1


def _device_list_strategies(snapshot: Snapshot) -> Series:
    if (decided := current_decision(snapshot)) is not None:
        for strategy in decided.strategies:
            yield {"strategy": strategy, "reason": f"{decided.reason}"}, 1


def _part_states(snapshot: Snapshot) -> Series:
    for name, status in sorted((part.name, status) for part, status in snapshot.status.items()):
        yield {"part": name, "standing": status.state}, 1


def _devices_held(snapshot: Snapshot) -> Series:
    counts = Counter[str]()
    for allocation in snapshot.allocations or ():
        counts[allocation.resource] += len(allocation.devices)
    for resource in offer(snapshot).resources:
        yield {"resource": resource.name}, counts[resource.name]


def _device_states(snapshot: Snapshot) -> Series:
    for each in standing(snapshot):
        yield {"device": _device_label(each), "index": each.index, "state": each.state}, 1


def _unavailability_reasons(snapshot: Snapshot) -> Series:
    for each in availability(snapshot):
        for kind, part, code in dict.fromkeys((why.kind, why.part, why.code) for why in each.reasons):
            yield {"device": each.device, "index": each.index, "kind": kind, "part": part, "code": code}, 1


def _node_problem(snapshot: Snapshot) -> Series:
    if (told := nodecondition.node_condition(snapshot)) is not None:
        yield {"status": told.status, "reason": told.reason}, 1


def _confirmed_faults(snapshot: Snapshot) -> Series:
    for each in devicehealth.own_health(snapshot):
        for code in sorted({finding.code for finding in _device_record(snapshot, each).findings if finding.confirmed}):
            severity = effective_entry(code, snapshot.config.settings).severity
            yield {"device": _device_label(each), "code": code, "severity": severity}, 1


def _fault_events(snapshot: Snapshot) -> Series:
    for each in devicehealth.own_health(snapshot):
        for code, count in each.fault_counts.items():
            yield {"device": _device_label(each), "code": code}, count


def _device_label(diagnosis: DeviceHealth) -> str:
    return diagnosis.device or "node"


def _device_record(snapshot: Snapshot, diagnosis: DeviceHealth) -> DeviceRecord:
    return (snapshot.ledger.health or HealthRecords()).devices.get(diagnosis.device, DeviceRecord())


def _generation(snapshot: Snapshot) -> Series:
    yield {}, snapshot.generation


METRICS = {
    "gpuplane_ready": ("1 while kubelet reads every resource, or the reason for having none is known", _ready),
    "gpuplane_gpus": ("GPUs that the driver counts; no series while it cannot", _gpu_count),
    "gpuplane_devices": ("Devices told to kubelet", _device_counts),
    "gpuplane_devices_held": ("Devices that containers hold, as kubelet says", _devices_held),
    "gpuplane_unit_left": ("1 for each GPU or MIG device that is offered under no name", _units_not_offered),
    "gpuplane_waiting": ("1 while nothing may be advertised, with the reason", _waiting),
    "gpuplane_device_list_strategy": ("1 for each way in which containers are given devices", _device_list_strategies),
    "gpuplane_condition": ("1 for the standing of each part", _part_states),
    "gpuplane_device_health": ("1 for the state that each device is in", _device_states),
    "gpuplane_device_withheld": ("1 for each reason why a device is not given out", _unavailability_reasons),
    "gpuplane_node_problem": ("1 for what the condition GPUProblem of the Node says", _node_problem),
    "gpuplane_fault": ("1 for each fault that stands", _confirmed_faults),
    "gpuplane_fault_events_total": ("How often each thing has befallen a device in this boot", _fault_events),
    "gpuplane_generation": ("How often the picture of the node has changed", _generation),
}
