"""What the agent measures of itself: a pure view, rendered elsewhere."""

from collections import Counter
from collections.abc import Iterator, Mapping

from gpuplane.core.advertising import offer
from gpuplane.core.availability import availability, standing
from gpuplane.core.containers.strategy import current_decision
from gpuplane.core.faults.overrides import entry_for
from gpuplane.core.health import devicehealth
from gpuplane.core.reports import nodecondition
from gpuplane.core.reports.readiness import unready
from gpuplane.model.health import DeviceHealth, DeviceRecord, HealthRecords
from gpuplane.model.snapshot import Snapshot
from gpuplane.model.views import Metric

Samples = Iterator[tuple[Mapping[str, str], float]]


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


def _ready(snapshot: Snapshot) -> Samples:
    yield {}, not unready(snapshot)


def _devices(snapshot: Snapshot) -> Samples:
    for resource in offer(snapshot).resources:
        counts = Counter("unhealthy" if device.reasons else "healthy" for device in resource.devices)
        for health in ("healthy", "unhealthy"):
            yield {"resource": resource.name, "health": health}, counts[health]


def _gpus(snapshot: Snapshot) -> Samples:
    if snapshot.machine is not None and snapshot.machine.gpus is not None:
        yield {}, len(snapshot.machine.gpus)


def _left(snapshot: Snapshot) -> Samples:
    for left in offer(snapshot).not_offered:
        yield {"unit": left.unit, "reason": f"{left.reason}"}, 1


def _waiting(snapshot: Snapshot) -> Samples:
    if waiting := offer(snapshot).waiting:
        yield {"reason": f"{waiting}"}, 1


def _strategies(snapshot: Snapshot) -> Samples:
    if (decided := current_decision(snapshot)) is not None:
        for strategy in decided.strategies:
            yield {"strategy": strategy, "reason": f"{decided.reason}"}, 1


def _statuses(snapshot: Snapshot) -> Samples:
    for name, status in sorted((part.name, status) for part, status in snapshot.status.items()):
        yield {"part": name, "standing": status.state}, 1


def _held(snapshot: Snapshot) -> Samples:
    counts = Counter[str]()
    for allocation in snapshot.allocations or ():
        counts[allocation.resource] += len(allocation.devices)
    for resource in offer(snapshot).resources:
        yield {"resource": resource.name}, counts[resource.name]


def _health(snapshot: Snapshot) -> Samples:
    for each in standing(snapshot):
        yield {"device": _device(each), "index": each.index, "state": each.state}, 1


def _reasons(snapshot: Snapshot) -> Samples:
    for each in availability(snapshot):
        for kind, part, code in dict.fromkeys((why.kind, why.part, why.code) for why in each.reasons):
            yield {"device": each.device, "index": each.index, "kind": kind, "part": part, "code": code}, 1


def _problem(snapshot: Snapshot) -> Samples:
    if (told := nodecondition.condition(snapshot)) is not None:
        yield {"status": told.status, "reason": told.reason}, 1


def _faults(snapshot: Snapshot) -> Samples:
    for each in devicehealth.own_health(snapshot):
        for code in sorted({finding.code for finding in _record(snapshot, each).findings if finding.confirmed}):
            severity = entry_for(code, snapshot.config.settings).severity
            yield {"device": _device(each), "code": code, "severity": severity}, 1


def _events(snapshot: Snapshot) -> Samples:
    for each in devicehealth.own_health(snapshot):
        for code, count in each.fault_counts.items():
            yield {"device": _device(each), "code": code}, count


def _device(diagnosis: DeviceHealth) -> str:
    return diagnosis.device or "node"


def _record(snapshot: Snapshot, diagnosis: DeviceHealth) -> DeviceRecord:
    return (snapshot.ledger.health or HealthRecords()).devices.get(diagnosis.device, DeviceRecord())


def _generation(snapshot: Snapshot) -> Samples:
    yield {}, snapshot.generation


METRICS = {
    "gpuplane_ready": ("1 while kubelet reads every resource, or the reason for having none is known", _ready),
    "gpuplane_gpus": ("GPUs that the driver counts; no series while it cannot", _gpus),
    "gpuplane_devices": ("Devices told to kubelet", _devices),
    "gpuplane_devices_held": ("Devices that containers hold, as kubelet says", _held),
    "gpuplane_unit_left": ("1 for each GPU or MIG device that is offered under no name", _left),
    "gpuplane_waiting": ("1 while nothing may be advertised, with the reason", _waiting),
    "gpuplane_device_list_strategy": ("1 for each way in which containers are given devices", _strategies),
    "gpuplane_condition": ("1 for the standing of each part", _statuses),
    "gpuplane_device_health": ("1 for the state that each device is in", _health),
    "gpuplane_device_withheld": ("1 for each reason why a device is not given out", _reasons),
    "gpuplane_node_problem": ("1 for what the condition GPUProblem of the Node says", _problem),
    "gpuplane_fault": ("1 for each fault that stands", _faults),
    "gpuplane_fault_events_total": ("How often each thing has befallen a device in this boot", _events),
    "gpuplane_generation": ("How often the picture of the node has changed", _generation),
}
