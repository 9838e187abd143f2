"""Why a device must not be allocated, by its health and by what people request."""

from collections.abc import Iterable, Iterator

from gpuplane.base.text import Text
from gpuplane.node.core.health.context import HealthContext, device_record, health_context, health_records
from gpuplane.node.core.health.drains import drain_reason, plain_drain_reason
from gpuplane.node.core.health.findings import makes_unhealthy
from gpuplane.node.core.kinds.kind import Kind
from gpuplane.node.core.observation import NOT_OBSERVED_FAULT
from gpuplane.node.core.requests import driver_release_reason
from gpuplane.node.model.health import NODE_RECORD_KEY, DeviceRecord, Finding
from gpuplane.node.model.machine import Device, Fault, Gpu, MigDevice
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import DRIVER_PART
from gpuplane.node.model.views import Reason, ReasonKind

PROBE_FAILED_CODE = "probe-failed"
"""The code of a reason where only a failed recovery probe keeps a device from being allocated."""


def unavailable_reasons(
    snapshot: Snapshot, context: HealthContext, gpu: Gpu, device: MigDevice | None = None
) -> tuple[Reason, ...]:
    """Why a GPU, or a MIG device of it, must not be allocated now; () if it may."""
    found = []
    if release := driver_release_reason(snapshot):
        text = f"the driver is released: {release}"
        found.append(Reason(kind="released", text=text, part=DRIVER_PART.name, code="driver-released"))
    health = health_records(snapshot)
    for key in (NODE_RECORD_KEY, gpu.uuid, *([device.uuid] if device else [])):
        record = health.devices.get(key)
        if record is not None:
            reasons = _unhealthy_reasons(key, record, context)
            found += (each for each in reasons if not (release and each.code == NOT_OBSERVED_FAULT.code))
    if drained := drain_reason(snapshot, gpu, device):
        found.append(Reason(kind="drained", text=f"drained: {drained}", code="drained"))
    return tuple(found)


def unavailable_plain_reasons(
    snapshot: Snapshot, context: HealthContext, kind: Kind, device: Device
) -> tuple[Reason, ...]:
    """Why a device of a plain kind must not be allocated now; () if it may."""
    found: list[Reason] = []
    health = health_records(snapshot)
    for key in (kind.record_key, kind.unit_id(device.id)):
        if (record := health.devices.get(key)) is not None:
            found += _unhealthy_reasons(key, record, context)
    if drained := plain_drain_reason(snapshot, kind, device):
        found.append(Reason(kind="drained", text=f"drained: {drained}", code="drained"))
    return tuple(found)


def _unhealthy_reasons(key: str, record: DeviceRecord, context: HealthContext) -> Iterator[Reason]:
    """Why a device, or the node, is unhealthy by its own record."""
    findings = [each for each in record.findings if makes_unhealthy(each, context)]
    part = "" if key else DRIVER_PART.name
    for each in findings:
        kind: ReasonKind = "released" if each.code == NOT_OBSERVED_FAULT.code else "problem"
        yield Reason(kind=kind, text=f"{each.code}: {each.message}", part=part, code=each.code, faulty_device=key)
    for text in describe_failed_probe(record, findings):
        yield Reason(kind="problem", text=text, part=part, code=PROBE_FAILED_CODE, faulty_device=key)


def direct_health_reasons(snapshot: Snapshot, key: str) -> tuple[Reason, ...]:
    """What is wrong with a device, or the node, by its own record: why it is unhealthy, else why it is degraded."""
    record, context = device_record(snapshot, key), health_context(snapshot)
    degrading = (
        each for each in record.findings if each.confirmed and context.effective_entry(each.code).severity == "degraded"
    )
    part = "" if key else DRIVER_PART.name
    return tuple(_unhealthy_reasons(key, record, context)) or tuple(
        Reason(kind="degraded", text=f"{each.code}: {each.message}", part=part, code=each.code, faulty_device=key)
        for each in degrading
    )


def describe_failed_probe(record: DeviceRecord, findings: Iterable[Finding]) -> Iterator[Text]:
    """Why the recovery probe failed, if it did; it does not repeat what these findings say."""
    probe = record.probe
    if probe is not None and probe.failure:
        again = probe.failure_code in {each.code for each in findings}
        yield (
            "the recovery probe found the same fault again" if again else f"the recovery probe failed: {probe.failure}"
        )


def describe_faults(faults: Iterable[Fault]) -> Text:
    """Faults in words; "" for none."""
    return "; ".join(f"{fault.code}: {fault.message}" for fault in faults)


def any_device_awaits_container_end(snapshot: Snapshot) -> bool:
    """Whether a device becomes healthy only when a container ends that kubelet still lists."""
    context = health_context(snapshot)
    findings = (each for record in health_records(snapshot).devices.values() for each in record.findings)
    awaiting = (
        each
        for each in findings
        if makes_unhealthy(each, context) and context.effective_entry(each.code).clear_when == "process-ended"
    )
    return any(context.holds_any_device(holder) for each in awaiting for holder in each.holders)
