"""What the agent measures of itself: a pure view, rendered elsewhere."""

from collections import Counter
from collections.abc import Iterator, Mapping

from gpuplane.base.metrics import Labels, Metric
from gpuplane.node.core.advertising import missing_kind_reasons, offer
from gpuplane.node.core.allocations import held_allocations
from gpuplane.node.core.availability import availability, device_health_with_availability
from gpuplane.node.core.containers.strategy import decision_if_inputs_known
from gpuplane.node.core.faults.overrides import effective_entry
from gpuplane.node.core.health import devicehealth
from gpuplane.node.core.reports import nodecondition
from gpuplane.node.core.reports.readiness import not_ready_reason
from gpuplane.node.core.view import view
from gpuplane.node.model.health import DeviceHealth, DeviceRecord, HealthRecords
from gpuplane.node.model.snapshot import Snapshot

Series = Iterator[tuple[Mapping[str, str], float]]


@view
def metrics(snapshot: Snapshot) -> tuple[Metric, ...]:
    """Every metric, with all its series. One whose name ends with _total is a counter."""
    return tuple(
        Metric(
            name=name,
            kind="counter" if name.endswith("_total") else "gauge",
            help=text,
            series=tuple((Labels(labels), value) for labels, value in derive(snapshot)),
        )
        for name, (text, derive) in HELP_AND_SAMPLES_BY_METRIC.items()
    )


def _ready_samples(snapshot: Snapshot) -> Series:
    yield {}, not not_ready_reason(snapshot)


def _device_count_samples(snapshot: Snapshot) -> Series:
    for resource in offer(snapshot).resources:
        counts = Counter("unhealthy" if device.reasons else "healthy" for device in resource.devices)
        for health in ("healthy", "unhealthy"):
            yield {"resource": resource.name, "health": health}, counts[health]


def _gpu_count_samples(snapshot: Snapshot) -> Series:
    if snapshot.machine is not None and snapshot.machine.gpus is not None:
        yield {}, len(snapshot.machine.gpus)


def _missing_kind_samples(snapshot: Snapshot) -> Series:
    for kind, why in missing_kind_reasons(snapshot).items():
        yield {"kind": kind, "part": why.part, "code": why.code}, 1


def _not_offered_samples(snapshot: Snapshot) -> Series:
    for left in offer(snapshot).not_offered:
        yield {"unit": left.unit, "reason": f"{left.reason}"}, 1


def _offer_waiting_samples(snapshot: Snapshot) -> Series:
    if waiting := offer(snapshot).waiting_reason:
        yield {"reason": f"{waiting}"}, 1


def _strategy_samples(snapshot: Snapshot) -> Series:
    if (decided := decision_if_inputs_known(snapshot)) is not None:
        for strategy in decided.strategies:
            yield {"strategy": strategy, "reason": f"{decided.reason}"}, 1


def _part_state_samples(snapshot: Snapshot) -> Series:
    for name, status in sorted((part.name, status) for part, status in snapshot.statuses.items()):
        yield {"part": name, "state": status.state}, 1


def _held_count_samples_by_resource(snapshot: Snapshot) -> Series:
    counts = Counter[str]()
    for allocation in held_allocations(snapshot) or ():
        counts[allocation.resource] += len(allocation.devices)
    for resource in offer(snapshot).resources:
        yield {"resource": resource.name}, counts[resource.name]


def _device_state_samples(snapshot: Snapshot) -> Series:
    for each in device_health_with_availability(snapshot):
        yield {"device": _device_label(each), "index": each.index, "state": each.state}, 1


def _unavailable_reason_samples(snapshot: Snapshot) -> Series:
    for each in availability(snapshot):
        for kind, part, code in dict.fromkeys((why.kind, why.part, why.code) for why in each.reasons):
            yield {"device": each.device, "index": each.index, "kind": kind, "part": part, "code": code}, 1


def _node_problem_samples(snapshot: Snapshot) -> Series:
    if (told := nodecondition.node_condition(snapshot)) is not None:
        yield {"status": told.status, "reason": told.reason}, 1


def _confirmed_fault_samples(snapshot: Snapshot) -> Series:
    for each in devicehealth.health_without_parents(snapshot):
        for code in sorted({finding.code for finding in _device_record(snapshot, each).findings if finding.confirmed}):
            severity = effective_entry(code, snapshot.config.settings).severity
            yield {"device": _device_label(each), "code": code, "severity": severity}, 1


def _fault_event_samples(snapshot: Snapshot) -> Series:
    for each in devicehealth.health_without_parents(snapshot):
        for code, count in each.fault_counts.items():
            yield {"device": _device_label(each), "code": code}, count


def _device_label(health: DeviceHealth) -> str:
    return health.device or "node"


def _device_record(snapshot: Snapshot, health: DeviceHealth) -> DeviceRecord:
    return (snapshot.ledger.health or HealthRecords()).devices.get(health.device, DeviceRecord())


def _generation_samples(snapshot: Snapshot) -> Series:
    yield {}, snapshot.generation


HELP_AND_SAMPLES_BY_METRIC = {
    "gpuplane_ready": (
        (
            "1 while the agent is ready: kubelet reads the list of every resource, or there is no resource and the "
            "agent knows why"
        ),
        _ready_samples,
    ),
    "gpuplane_gpus": (
        "Number of GPUs that the driver lists; no series while the driver cannot list them",
        _gpu_count_samples,
    ),
    "gpuplane_kind_not_counted": (
        "1 for each kind of devices that are not counted now",
        _missing_kind_samples,
    ),
    "gpuplane_devices": ("Devices that the agent reports to kubelet", _device_count_samples),
    "gpuplane_devices_held": ("Devices that containers hold, as reported by kubelet", _held_count_samples_by_resource),
    "gpuplane_unit_not_offered": (
        "1 for each GPU or MIG device that is not offered under any resource name",
        _not_offered_samples,
    ),
    "gpuplane_waiting": ("1 while the agent cannot advertise any device, with the reason", _offer_waiting_samples),
    "gpuplane_device_list_strategy": ("1 for each device list strategy in use", _strategy_samples),
    "gpuplane_part_state": ("1 for the current state of each part", _part_state_samples),
    "gpuplane_device_health": ("1 for the state that each device is in", _device_state_samples),
    "gpuplane_device_withheld": ("1 for each reason why a device is not given out", _unavailable_reason_samples),
    "gpuplane_node_problem": (
        "1 for the current status and reason of the Node condition GPUProblem",
        _node_problem_samples,
    ),
    "gpuplane_fault": ("1 for each active fault", _confirmed_fault_samples),
    "gpuplane_fault_events_total": ("Number of events of each fault on a device since boot", _fault_event_samples),
    "gpuplane_generation": ("Number of changes of the node state that the agent has seen", _generation_samples),
}
