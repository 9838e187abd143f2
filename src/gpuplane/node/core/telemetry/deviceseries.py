"""Series of the node's GPUs: DCGM's fields, who holds what, who uses how much, and for how long nobody did anything.

Every figure is told once. What is an instance's is on the instance's series and not on its GPU's again, and what is a
GPU's alone is on the GPU's. A device that several containers hold has one series without a pod, marked `shared`; what
each of them uses is in `gpuplane_container_…`. dcgm-exporter repeats a GPU's power for each instance, and a device's
figures for each pod.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from gpuplane.base.metrics import Labels, Metric
from gpuplane.kubernetes.podref import PodMetadata, PodRef
from gpuplane.node.core.health import devicehealth
from gpuplane.node.core.kinds.table import is_plain_unit
from gpuplane.node.core.serving import may_serve
from gpuplane.node.core.telemetry.counters import DEFAULT_COUNTERS, XID_FIELD
from gpuplane.node.core.telemetry.devices import DeviceKey, SeriesDevice, readings_of, series_devices
from gpuplane.node.core.telemetry.holdings import Holding, holdings_by_unit
from gpuplane.node.core.telemetry.state import TelemetryState, present_xids
from gpuplane.node.core.telemetry.usage import DeviceUsage, Usage, usage_by_device
from gpuplane.node.core.view import part_view
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.telemetry import LINK_FIELDS, DcgmCounter, GpuSample, Sample

Series = Iterator[tuple[Labels, float]]

MIB = 1 << 20
PodLabels = Mapping[tuple[str, str], Mapping[str, str]]
NO_LABELS: PodLabels = {}
NOT_IN_NAMES = re.compile("[^A-Za-z0-9_]")
MOST_CONTAINERS = 64
"""Containers of which labels are kept, for each device: there may be any number of processes that come and go."""
RECOVERY_ACTIONS = {
    "recovery-reset": "reset",
    "recovery-reboot": "reboot",
    "recovery-drain": "drain",
    "recovery-fabric": "fabric",
}
"""Code of a fault → what the driver asks for (NVML: nvmlDeviceGpuRecoveryAction_t)."""


class DeviceLabels(NamedTuple):
    """The labels of one device's series.

    `short`: those that join it with others, and who holds it; `plain`: without that. `own`: labels of pods. `links` and
    `containers`: what was made of them for one NVLink and for one container, so that its text is made once.
    """

    device: SeriesDevice
    full: Labels
    short: Labels
    plain: Labels
    own: "PodLabels"
    links: dict[int, Labels]
    containers: dict[PodRef, Labels]

    def link(self, number: int) -> Labels:
        """The labels of one NVLink's series; those of the GPU and which link it is."""
        if number not in self.links:
            self.links[number] = Labels({**self.full, "nvlink": str(number)})
        return self.links[number]

    def container(self, holder: PodRef) -> Labels:
        """The labels of what one container uses of the device."""
        if holder not in self.containers:
            if len(self.containers) >= MOST_CONTAINERS:
                self.containers.clear()
            self.containers[holder] = Labels({**self.plain, **pod_labels(holder, self.own)})
        return self.containers[holder]


def device_metrics(snapshot: Snapshot, state: TelemetryState, node_name: str) -> Iterator[Metric]:
    """The series of this node's devices. `node_name`: the value of the label `Hostname`, or `hostname`."""
    settings = snapshot.config.settings
    if settings is None or not may_serve(snapshot):  # an agent that serves shows them
        return
    counters = snapshot.config.counters or DEFAULT_COUNTERS
    samples = {each.uuid: each for each in state.sample.gpus} if state.sample is not None else {}
    devices = series_devices.of(snapshot, snapshot.gpus, state.identities)
    holdings = holdings_by_unit(snapshot)
    label_fields = [each for each in counters if each.kind == "label" and settings.metrics.dcgm_names]
    xids = present_xids(snapshot) if settings.metrics.clear_xids else state.last_xids
    texts = _field_labels(snapshot, xids, samples, devices, label_fields)
    host = (settings.metrics.hostname_label, node_name)
    labels = device_labels.of(snapshot, devices, holdings, texts, host, snapshot.pods)
    if settings.metrics.dcgm_names:
        yield from _dcgm_metrics(counters, labels, samples, xids)
    yield _metric(
        "gpuplane_device_info", "1 for each GPU and each MIG GPU instance", ((each.full, 1.0) for each in labels)
    )
    yield from _holder_metrics(snapshot, labels, holdings, state)
    yield from _usage_metrics(labels, samples, state)
    yield from _link_metrics(labels, samples)
    yield from _record_metrics(snapshot)
    if state.sampled_at:
        yield _metric(
            "gpuplane_sample_timestamp_seconds",
            "When the newest sample was taken, in seconds since 1970",
            [(Labels(), state.sampled_at)],
        )
    if state.sample is not None:
        yield from _sample_metrics(labels, samples, state.sample)


def _metric(name: str, help: str, series: Series | Iterable[tuple[Labels, float]]) -> Metric:
    return Metric(name=name, kind="counter" if name.endswith("_total") else "gauge", help=help, series=tuple(series))


def _field_labels(
    snapshot: Snapshot,
    xids: Mapping[str, int],
    samples: Mapping[str, GpuSample],
    devices: Sequence[SeriesDevice],
    fields: Sequence[DcgmCounter],
) -> tuple[tuple[str, ...], ...]:
    """The names of the fields that are labels of all series, and for each device their values. "" for none."""
    driver = snapshot.machine.driver if snapshot.machine is not None else None
    version = driver.version if driver is not None else ""

    def value(field: str, gpu: str) -> str:
        sample = samples.get(gpu) or GpuSample(gpu)
        if field in sample.readings:
            return f"{sample.readings[field]:.15g}"
        others = {"DCGM_FI_DRIVER_VERSION": version, XID_FIELD: str(xids.get(gpu, 0))}
        return sample.texts.get(field) or others.get(field, "")

    return (
        tuple(each.name for each in fields),
        *(tuple(value(each.field, device.key.gpu) for each in fields) for device in devices),
    )


@part_view
def device_labels(
    devices: tuple[SeriesDevice, ...],
    holdings: Mapping[str, tuple[Holding, ...]],
    texts: tuple[tuple[str, ...], ...],
    host: tuple[str, str],
    pods: Mapping[str, PodMetadata] | None,
) -> tuple[DeviceLabels, ...]:
    """The labels of each device's series. `texts`: names of further labels, then their values for each device.

    `host`: the name of the label with the node's name, and that name.
    """
    names, *values = texts
    own_labels = labels_of_pods(pods or {})
    found = []
    for device, told in zip(devices, values, strict=True):
        held = holder_labels([each for id in device.unit_ids for each in holdings.get(id, ())], own_labels)
        own = {host[0]: host[1], **dict(zip(names, told, strict=True)), **held}
        full = {**device.identity, **{name: value for name, value in own.items() if value}}
        short = Labels({**device.short_identity, **held})
        plain = Labels(device.short_identity)
        found.append(DeviceLabels(device, Labels(full), short, plain, own_labels, {}, {}))
    return tuple(found)


def labels_of_pods(pods: Mapping[str, PodMetadata]) -> PodLabels:
    """(namespace, name) of each pod → its own labels, by the names that they have on series: `label_app`."""
    return {
        (pod.namespace, pod.name): {f"label_{NOT_IN_NAMES.sub('_', name)}": each for name, each in pod.labels.items()}
        for pod in pods.values()
        if pod.labels
    }


def holder_labels(holdings: Sequence[Holding], own: PodLabels = NO_LABELS) -> Mapping[str, str]:
    """The labels of who holds a device: its container, or that there are several. `own`: labels of pods."""
    holders = {each.holder for each in holdings}
    if len(holders) > 1:
        return {"shared": "true"}
    return pod_labels(holders.pop(), own) if holders else {}


def pod_labels(holder: PodRef, own: PodLabels = NO_LABELS) -> Mapping[str, str]:
    """The labels of a container; those that are known."""
    told = {"namespace": holder.namespace, "pod": holder.name, "container": holder.container}
    told |= own.get((holder.namespace, holder.name), {})
    return {name: value for name, value in told.items() if value and holder.name}


def _dcgm_metrics(
    counters: Iterable[DcgmCounter],
    labels: Sequence[DeviceLabels],
    samples: Mapping[str, GpuSample],
    xids: Mapping[str, int],
) -> Iterator[Metric]:
    told = [
        (each, sample, readings_of(sample, each.device))
        for each in labels
        if (sample := samples.get(each.device.key.gpu)) is not None
    ]
    told_by_instances = {
        (DeviceKey(each.device.key.gpu), field)
        for each, _, readings in told
        if each.device.key.gpu_instance is not None
        for field in readings
    }
    for counter in counters:
        field = counter.field
        if counter.kind == "label":
            continue
        if field == XID_FIELD:
            series = [
                (each.full, float(xids.get(each.device.key.gpu, 0)))
                for each in labels
                if each.device.key.gpu_instance is None
            ]
        elif field in LINK_FIELDS and any(
            field in link for sample in samples.values() for link in sample.links.values()
        ):
            series = list(_link_series(told, field))
        else:
            series = [
                (each.full, readings[field])
                for each, _, readings in told
                if field in readings and (each.device.key, field) not in told_by_instances
            ]
        if series:  # what no device tells is not there, and listed elsewhere
            yield Metric(name=counter.name, kind=counter.kind, help=counter.help, series=tuple(series))


def _link_series(told: Iterable[tuple[DeviceLabels, GpuSample, Mapping[str, float]]], field: str) -> Series:
    for each, sample, _ in told:
        if each.device.key.gpu_instance is None:
            for number, readings in sample.links.items():
                if field in readings:
                    yield each.link(number), readings[field]


LINK_METRICS = {
    "DCGM_FI_DEV_NVLINK_TX_BYTES": ("gpuplane_nvlink_transmit_bytes_total", "Data sent over each NVLink, in bytes"),
    "DCGM_FI_DEV_NVLINK_RX_BYTES": ("gpuplane_nvlink_receive_bytes_total", "Data received over each NVLink, in bytes"),
}


def _link_metrics(labels: Sequence[DeviceLabels], samples: Mapping[str, GpuSample]) -> Iterator[Metric]:
    told: list[tuple[DeviceLabels, GpuSample, Mapping[str, float]]] = [
        (each, sample, {}) for each in labels if (sample := samples.get(each.device.key.gpu)) is not None
    ]
    for field, (name, help) in LINK_METRICS.items():
        yield _metric(name, help, _link_series(told, field))


def _holder_metrics(
    snapshot: Snapshot,
    labels: Sequence[DeviceLabels],
    holdings: Mapping[str, tuple[Holding, ...]],
    state: TelemetryState,
) -> Iterator[Metric]:
    yield _metric(
        "gpuplane_allocation_info",
        "1 for each container and each device that it holds",
        allocation_series.of(snapshot, tuple(labels), holdings),
    )
    held = [(each, state.held[each.device.key]) for each in labels if each.device.key in state.held]
    yield _metric(
        "gpuplane_held_seconds_total",
        "For how long the containers of today have held each device, in seconds, as far as this agent saw it",
        ((each.short, time.held) for each, time in held),
    )
    told = [(each, time) for each, time in held if time.was_told]
    yield _metric(
        "gpuplane_held_idle_seconds_total",
        "For how long of that the device did nothing, in seconds",
        ((each.short, time.idle) for each, time in told),
    )
    now = state.sample.taken_at if state.sample is not None else 0.0
    yield _metric(
        "gpuplane_idle_duration_seconds",
        "For how long each held device has done nothing now, in seconds; 0 while it does something",
        ((each.short, 0.0 if time.idle_since is None else now - time.idle_since) for each, time in told),
    )


@part_view
def allocation_series(
    labels: tuple[DeviceLabels, ...], holdings: Mapping[str, tuple[Holding, ...]]
) -> tuple[tuple[Labels, float], ...]:
    """The series of who holds what."""
    return tuple(_iterate_allocation_series(labels, holdings))


def _iterate_allocation_series(labels: Sequence[DeviceLabels], holdings: Mapping[str, tuple[Holding, ...]]) -> Series:
    known = set[str]()
    own = labels[0].own if labels else NO_LABELS
    for each in labels:
        held = [holding for id in each.device.unit_ids for holding in holdings.get(id, ())]
        known.update(each.device.unit_ids)
        shared = {"shared": "true"} if len({holding.holder for holding in held}) > 1 else {}
        identity = {**each.device.short_identity, "device": each.device.identity.get("device", "")}
        yield from _each_holding(identity | shared, held, own)
    for unit, units in holdings.items():
        if unit not in known and is_plain_unit(unit):
            yield from _each_holding({"UUID": unit}, units, own)


def _each_holding(identity: Mapping[str, str], held: Iterable[Holding], own: PodLabels) -> Series:
    """One series for each container and resource; two compute instances of one GPU instance are one.

    Containers that are not named yet are one too: series of a metric have to differ by their labels.
    """
    seen = set[str]()
    for holding in held:
        labels = Labels({**identity, "resource": holding.resource, **pod_labels(holding.holder, own)})
        if labels.text not in seen:
            seen.add(labels.text)
            yield labels, 1.0


def _usage_metrics(
    labels: Sequence[DeviceLabels], samples: Mapping[str, GpuSample], state: TelemetryState
) -> Iterator[Metric]:
    if state.sample is None or not state.sample.processes_visible:
        return
    used: list[tuple[DeviceLabels, DeviceUsage]] = []
    by_gpu: dict[str, list[DeviceLabels]] = {}
    for each in labels:
        by_gpu.setdefault(each.device.key.gpu, []).append(each)
    for gpu, parts in by_gpu.items():
        if gpu in samples:
            usage = usage_by_device(samples[gpu], [each.device for each in parts], state.names)
            used += ((each, usage[each.device.key]) for each in parts)
    for name, rest_name, what, reading in (
        (
            "gpuplane_container_memory_used_bytes",
            "gpuplane_unattributed_memory_used_bytes",
            "Memory of each device that {} uses, in bytes",
            _memory_bytes,
        ),
        (
            "gpuplane_container_sm_utilization_ratio",
            "gpuplane_unattributed_sm_utilization_ratio",
            "Part of the time of each device's multiprocessors that {} had",
            _sm_ratio,
        ),
    ):
        container = (
            (each.container(holder), reading(usage))
            for each, told in used
            for holder, usage in told.by_container.items()
        )
        yield _metric(name, what.format("each container"), _without_unknown(container))
        rest = ((each.plain, reading(told.unattributed)) for each, told in used)
        yield _metric(rest_name, what.format("no known container"), _without_unknown(rest))


def _memory_bytes(usage: Usage) -> float | None:
    return None if usage.memory_mib is None else usage.memory_mib * MIB


def _sm_ratio(usage: Usage) -> float | None:
    return None if usage.sm_percent is None else usage.sm_percent / 100


def _without_unknown(series: Iterable[tuple[Labels, float | None]]) -> Series:
    return ((labels, value) for labels, value in series if value is not None)


def _record_metrics(snapshot: Snapshot) -> Iterator[Metric]:
    """What is remembered of devices: what the driver asks for, and what a person wants."""
    health = devicehealth.health_without_parents(snapshot)
    records = snapshot.ledger.health.devices if snapshot.ledger.health is not None else {}
    actions = [
        (Labels(device=each.device or "node", index=each.index, action=action), 1.0)
        for each in health
        if (record := records.get(each.device)) is not None
        for action in sorted({RECOVERY_ACTIONS[f.code] for f in record.findings if f.code in RECOVERY_ACTIONS})
    ]
    yield _metric("gpuplane_recovery_action", "1 for what the driver asks to be done about each device", actions)
    drained = [
        (Labels(device=each.device or "node", index=each.index), 1.0)
        for each in health
        if (record := records.get(each.device)) is not None and record.drain is not None
    ]
    yield _metric("gpuplane_drained", "1 for each device that a person drains", drained)


def _sample_metrics(
    labels: Sequence[DeviceLabels], samples: Mapping[str, GpuSample], sample: Sample
) -> Iterator[Metric]:
    missing = (
        (Labels({**each.device.short_identity, "field": field, "reason": reason}), 1.0)
        for each in labels
        if each.device.key.gpu_instance is None and each.device.key.gpu in samples
        for field, reason in samples[each.device.key.gpu].missing.items()
    )
    yield _metric(
        "gpuplane_reading_missing",
        "1 for each DCGM field that a GPU does not tell, with NVML's name of the reason",
        missing,
    )
    yield _metric(
        "gpuplane_driver_calls_total",
        "Number of calls of the driver's library that samples took",
        [(Labels(), float(sample.calls))],
    )
