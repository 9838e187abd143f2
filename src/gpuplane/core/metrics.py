"""What the agent measures of itself: a pure view, rendered elsewhere."""

from collections import Counter
from collections.abc import Iterator, Mapping

from gpuplane.core.readiness import unready
from gpuplane.core.resources.offer import offer
from gpuplane.model.snapshot import Snapshot
from gpuplane.model.views import Gauge

Samples = Iterator[tuple[Mapping[str, str], float]]


def metrics(snapshot: Snapshot) -> tuple[Gauge, ...]:
    """Every gauge, with all its series."""
    return tuple(Gauge(name=name, help=text, series=tuple(derive(snapshot))) for name, (text, derive) in GAUGES.items())


def _ready(snapshot: Snapshot) -> Samples:
    yield {}, not unready(snapshot)


def _devices(snapshot: Snapshot) -> Samples:
    for resource in offer(snapshot).resources:
        counts = Counter("unhealthy" if device.trouble else "healthy" for device in resource.devices)
        for health in ("healthy", "unhealthy"):
            yield {"resource": resource.name, "health": health}, counts[health]


def _gpus(snapshot: Snapshot) -> Samples:
    if snapshot.machine is not None and snapshot.machine.gpus is not None:
        yield {}, len(snapshot.machine.gpus)


def _left(snapshot: Snapshot) -> Samples:
    for left in offer(snapshot).left:
        yield {"unit": left.unit, "reason": left.reason}, 1


def _waiting(snapshot: Snapshot) -> Samples:
    if waiting := offer(snapshot).waiting:
        yield {"reason": waiting}, 1


def _conditions(snapshot: Snapshot) -> Samples:
    for part, condition in sorted(snapshot.conditions.items()):
        yield {"part": part, "standing": condition.standing}, 1


def _held(snapshot: Snapshot) -> Samples:
    counts = Counter[str]()
    for allocation in snapshot.allocations or ():
        counts[allocation.resource] += len(allocation.devices)
    for resource in offer(snapshot).resources:
        yield {"resource": resource.name}, counts[resource.name]


def _generation(snapshot: Snapshot) -> Samples:
    yield {}, snapshot.generation


GAUGES = {
    "gpuplane_ready": ("1 while kubelet reads every resource, or the reason for having none is known", _ready),
    "gpuplane_gpus": ("GPUs that the driver counts; no series while it cannot", _gpus),
    "gpuplane_devices": ("Devices told to kubelet", _devices),
    "gpuplane_devices_held": ("Devices that containers hold, as kubelet says", _held),
    "gpuplane_unit_left": ("1 for each GPU or MIG device that is offered under no name", _left),
    "gpuplane_waiting": ("1 while nothing may be advertised, with the reason", _waiting),
    "gpuplane_condition": ("1 for the standing of each part", _conditions),
    "gpuplane_generation": ("How often the picture of the node has changed", _generation),
}
