"""What telemetry remembers from one sample to the next. It is no part of the snapshot: a restart may forget it.

It is bounded by the node's devices and by the processes of the newest sample.
"""

from collections.abc import Iterable, Iterator, Mapping

from gpuplane.base.value import Value
from gpuplane.kubernetes.podref import ContainerId, PodRef
from gpuplane.node.core.kinds.nvidia.xids import xid_number
from gpuplane.node.core.telemetry.devices import (
    DeviceKey,
    GpuIdentity,
    SeriesDevice,
    readings_of,
    remembered_identities,
    series_devices,
)
from gpuplane.node.core.telemetry.holdings import holdings_by_unit
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.telemetry import GpuSample, Sample

LONGEST_GAP = 180.0
"""Seconds between two samples that still count as held, or as idle: for longer nobody looked."""

XID = "xid-"

ACTIVITY = ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_DEV_GPU_UTIL")
"""Readings that are above 0 where a device did something."""


class HeldTime(Value):
    """For how long one set of containers has held a device. Seconds.

    `idle_since`: when the sample was taken since which the device has done nothing; None: it did something last.
    """

    holders: tuple[PodRef, ...]
    held: float = 0.0
    idle: float = 0.0
    idle_since: float | None = None
    was_told: bool = False  # whether a reading ever told what the device did


class TelemetryState(Value):
    """The newest sample, and what is remembered. `names`: the containers of its processes, as far as they are known.

    `xid_counts`: GPU → code of an XID → how often it was counted, to see which came last.
    """

    sample: Sample | None = None
    sampled_at: float = 0.0  # seconds since 1970; 0: never
    names: Mapping[ContainerId, PodRef] = {}
    identities: Mapping[str, GpuIdentity] = {}
    held: Mapping[DeviceKey, HeldTime] = {}
    xid_counts: Mapping[str, Mapping[str, int]] = {}
    last_xids: Mapping[str, int] = {}


def next_state(
    state: TelemetryState, snapshot: Snapshot, sample: Sample, names: Mapping[ContainerId, PodRef], sampled_at: float
) -> TelemetryState:
    """The state after a sample. `sampled_at`: when it was taken, in seconds since 1970."""
    counts = _xid_counts(snapshot)
    gpus = snapshot.machine.gpus if snapshot.machine is not None else None
    identities = remembered_identities(gpus, state.identities)
    devices = series_devices.of(snapshot, gpus or (), identities)
    return TelemetryState(
        sample=sample,
        sampled_at=sampled_at,
        names=names,
        identities=identities,
        held=dict(_held_times(state, snapshot, sample, devices)),
        xid_counts=counts,
        last_xids=_last_xids(state, snapshot, counts),
    )


def _held_times(
    state: TelemetryState, snapshot: Snapshot, sample: Sample, devices: Iterable[SeriesDevice]
) -> Iterator[tuple[DeviceKey, HeldTime]]:
    holdings = holdings_by_unit(snapshot)
    passed = 0.0 if state.sample is None else sample.taken_at - state.sample.taken_at
    passed = passed if 0 < passed <= LONGEST_GAP else 0.0
    samples = {each.uuid: each for each in sample.gpus}
    for device in devices:
        holders = tuple(dict.fromkeys(each.holder for id in device.unit_ids for each in holdings.get(id, ())))
        if holders:
            before = state.held.get(device.key)
            is_same = before is not None and before.holders == holders
            held = before if before is not None and is_same else HeldTime(holders=holders)
            busy = is_busy(samples.get(device.key.gpu), device)
            yield device.key, _after(held, passed if is_same else 0.0, busy, sample.taken_at)


def _after(before: HeldTime, elapsed: float, busy: bool | None, now: float) -> HeldTime:
    held = before.held + elapsed
    if busy is None:
        return before.but(held=held, idle_since=None)
    if busy:
        return before.but(held=held, idle_since=None, was_told=True)
    since = now if before.idle_since is None else before.idle_since
    idle = before.idle + (0.0 if before.idle_since is None else elapsed)
    return before.but(held=held, idle=idle, idle_since=since, was_told=True)


def is_busy(sample: GpuSample | None, device: SeriesDevice) -> bool | None:
    """Whether a device did something since the sample before; None where no reading tells."""
    if sample is None:
        return None
    readings, instance = readings_of(sample, device), device.key.gpu_instance
    told = [readings[name] for name in ACTIVITY if name in readings]
    told += (
        process.sm_percent
        for process in sample.processes
        if process.sm_percent is not None and instance in (None, process.gpu_instance)
    )
    return any(value > 0 for value in told) if told else None


def _xid_counts(snapshot: Snapshot) -> Mapping[str, Mapping[str, int]]:
    """GPU → XID code → count; a MIG device's are its GPU's."""
    health = snapshot.ledger.health
    found: dict[str, dict[str, int]] = {}
    if health is None:
        return found
    parents = snapshot.machine.mig_parents if snapshot.machine is not None else {}
    for device, record in health.devices.items():
        for code, count in record.fault_counts.items():
            if code.startswith(XID):
                counts = found.setdefault(parents.get(device, device), {})
                counts[code] = counts.get(code, 0) + count
    return found


def _last_xids(state: TelemetryState, snapshot: Snapshot, counts: Mapping[str, Mapping[str, int]]) -> Mapping[str, int]:
    """GPU → the number of its last XID. Of those before the first sample, the newest that still counts against it."""
    last: dict[str, int] = {}
    for gpu, codes in counts.items():
        before = state.xid_counts.get(gpu, {})
        grown = [code for code, count in codes.items() if count > before.get(code, 0)]
        if gpu in state.last_xids and not grown:
            last[gpu] = state.last_xids[gpu]
        elif grown:
            last[gpu] = xid_number(max(grown, key=lambda code: _last_seen(snapshot, gpu, code))) or 0
    return last


def _last_seen(snapshot: Snapshot, gpu: str, code: str) -> float:
    health = snapshot.ledger.health
    record = health.devices.get(gpu) if health is not None else None
    return max(
        (each.last_seen or each.since for each in (record.findings if record else ()) if each.code == code), default=0.0
    )


def present_xids(snapshot: Snapshot) -> Mapping[str, int]:
    """GPU → the number of the newest of its XIDs that have not ended; one of a MIG device is its GPU's."""
    health = snapshot.ledger.health
    parents = snapshot.machine.mig_parents if snapshot.machine is not None else {}
    newest: dict[str, tuple[float, int]] = {}
    for device, record in (health.devices if health is not None else {}).items():
        gpu = parents.get(device, device)
        for each in record.findings:
            if (number := xid_number(each.code)) is not None:
                seen = 0.0 if each.from_earlier_boot else each.last_seen or each.since
                newest[gpu] = max(newest.get(gpu, (0.0, 0)), (seen, number))
    return {gpu: number for gpu, (_, number) in newest.items()}
