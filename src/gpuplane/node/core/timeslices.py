"""The lengths of the time slices of shared GPUs, and the tries to set them.

A time slice is the time for which the driver lets one process compute before the next. A GPU has one length for all
processes, "default" until somebody sets another; programs read it when they start. The driver has it in memory
(gpu_db.c of NVIDIA's open kernel modules): it is lost when the driver is loaded again, and perhaps at a reset of the
GPU. A GPU in MIG mode has none. The driver does not report who has set a length, so the ledger has what we did.

- A GPU without an entry in the configuration, or in that of the claim which has it, stays as it is, unless we set its
  length: that becomes "default" again.
- A length is set again if the GPU may have lost it: it was reset, or the driver or the agent was not running.
- A try is written to disk before it begins. An interrupted try may have set the length, so another one follows.
- One GPU at a time, and only GPUs that answer. A failed try is repeated with growing delays; at once if the GPU was
  reset or its desired length changed.
- A wrong length is no reason to withhold a GPU: it shares its time all the same.
"""

from collections.abc import Iterator, Mapping

from gpuplane.node.core.inventory.resources import assign_units
from gpuplane.node.core.inventory.sharing import sharing_entry_by_name
from gpuplane.node.core.kinds.nvidia.faults import CODES_THAT_HIDE_OTHERS
from gpuplane.node.core.requests import driver_release_reason
from gpuplane.node.core.view import part_view
from gpuplane.node.model.config import ReplicatedResource, Settings, TimeSlice
from gpuplane.node.model.facts import SetTimeSlice, TimeSliceFinished
from gpuplane.node.model.health import DeviceRecord, HealthRecords
from gpuplane.node.model.machine import Gpu, Machine
from gpuplane.node.model.snapshot import Snapshot, TimeSliceState
from gpuplane.node.model.status import DRIVER_PART, PartState, TimeSliceStatus

RETRY_DELAY_S, MAX_RETRY_DELAY_S = 10.0, 600.0
"""Seconds from a failed try to the next: the first, doubled with each failure, up to the second."""

MIG_MODE_TEXT = "it is in MIG mode; a GPU in MIG mode has no time slice length"


def desired_lengths(snapshot: Snapshot) -> Mapping[str, TimeSlice] | None:
    """UUID of a GPU → desired length of its time slices; None while too little is known."""
    machine, settings = snapshot.machine, snapshot.config.settings
    if machine is None or machine.gpus is None or settings is None:
        return None
    claimed = _claimed_lengths(snapshot)
    sharing = settings.sharing
    if sharing.strategy != "time-slicing" or not any(each.time_slice for each in sharing.replicated_resources):
        return claimed
    return {**_configured_lengths.of(snapshot, machine, settings), **claimed}


def _claimed_lengths(snapshot: Snapshot) -> Mapping[str, TimeSlice]:
    """What claims ask for by their configuration, of GPUs that are theirs alone."""
    claims = (snapshot.ledger.claims or {}).values()
    return {each.unit: each.time_slice for claim in claims for each in claim.devices if each.time_slice is not None}


@part_view
def _configured_lengths(machine: Machine, settings: Settings) -> Mapping[str, TimeSlice]:
    named, found = sharing_entry_by_name(settings.sharing), dict[str, TimeSlice]()
    for decision in assign_units(machine, settings):
        entry = named.get(decision.sharing_entry)
        if decision.resource and isinstance(entry, ReplicatedResource) and entry.time_slice is not None:
            found.setdefault(decision.unit.gpu, entry.time_slice)
    return found


def start_next_try(snapshot: Snapshot, now: float) -> Snapshot:
    """The snapshot with the next try started, if one is due now, and without states that no longer matter."""
    desired, states = desired_lengths(snapshot), snapshot.ledger.time_slices or {}
    if desired is None or not (desired or states):
        return snapshot
    found = {gpu: _mark_interrupted(each, _remembers_since(snapshot, gpu)) for gpu, each in states.items()}
    found = {gpu: each for gpu, each in found.items() if gpu in desired or _is_set_by_us(each)}
    ready = (gpu for gpu, at in _next_tries(snapshot, desired, found) if at <= now)
    if not any(each.pending for each in found.values()) and (gpu := next(ready, None)) is not None:
        found[gpu] = _begin_try(found.get(gpu), desired.get(gpu, "default"), _remembers_since(snapshot, gpu), now)
    return snapshot.but(ledger=snapshot.ledger.but(time_slices=found or None))


def _mark_interrupted(slice_state: TimeSliceState, since: float | None) -> TimeSliceState:
    """The state, with a pending try of an earlier agent or driver marked as interrupted: its outcome is unknown."""
    if not slice_state.pending or since is None or slice_state.requested_at >= since:
        return slice_state
    return slice_state.but(pending=False, outcome_unknown=True)


def _is_set_by_us(slice_state: TimeSliceState) -> bool:
    """Whether the GPU may have a length other than "default" that we set."""
    return slice_state.pending or slice_state.outcome_unknown or slice_state.last_set_length not in (None, "default")


def _begin_try(
    slice_state: TimeSliceState | None, length: TimeSlice, since: float | None, now: float
) -> TimeSliceState:
    """The state when a try begins."""
    if slice_state is None or _is_unrelated_try(slice_state, length, since):
        slice_state = (slice_state or TimeSliceState(tried_length=length, requested_at=now)).but(
            failed_tries=0, failure=""
        )
    return slice_state.but(tried_length=length, requested_at=now, pending=True)


def _is_unrelated_try(slice_state: TimeSliceState, length: TimeSlice, since: float | None) -> bool:
    """Whether earlier tries do not matter for the next: another length, or the GPU or driver was reset since."""
    return slice_state.tried_length != length or since is None or slice_state.requested_at < since


def _next_tries(
    snapshot: Snapshot, desired: Mapping[str, TimeSlice], found: Mapping[str, TimeSliceState]
) -> Iterator[tuple[str, float]]:
    """(UUID, time of the next try) of each GPU to set, in the driver's order. A time before now means at once."""
    for gpu in _settable_gpus(snapshot):
        slice_state, since = found.get(gpu.uuid), _remembers_since(snapshot, gpu.uuid)
        length = desired.get(gpu.uuid, "default")
        if (
            since is None
            or (slice_state is None and gpu.uuid not in desired)
            or _has_desired_length(slice_state, length, since)
        ):
            continue
        at_once = slice_state is None or not slice_state.failed_tries or _is_unrelated_try(slice_state, length, since)
        yield (
            gpu.uuid,
            since
            if at_once or slice_state is None
            else slice_state.requested_at + _retry_delay(slice_state.failed_tries),
        )


def _has_desired_length(slice_state: TimeSliceState | None, length: TimeSlice, since: float) -> bool:
    """Whether the last try set this length, and the GPU has kept it since."""
    if slice_state is None or slice_state.pending or slice_state.outcome_unknown or slice_state.failed_tries:
        return False
    return slice_state.last_set_length == length and slice_state.requested_at >= since


def _retry_delay(tries: int) -> float:
    return min(RETRY_DELAY_S * 2.0 ** min(tries - 1, 16), MAX_RETRY_DELAY_S)


def _settable_gpus(snapshot: Snapshot) -> Iterator[Gpu]:
    """The GPUs whose length can be set now."""
    if driver_release_reason(snapshot):
        return
    for gpu in snapshot.gpus:
        blind = any(fault.code in CODES_THAT_HIDE_OTHERS for fault in gpu.faults)
        if gpu.uuid and not blind and not gpu.mig_enabled:
            yield gpu


def _remembers_since(snapshot: Snapshot, gpu: str) -> float | None:
    """Since when a GPU remembers what it is told: since its last reset, or since the driver is there for us.

    None while the driver is not. (It is away for us, too, while we are: its status begins anew with us.)
    """
    driver = snapshot.statuses.of(DRIVER_PART)
    if driver is None or driver.state != "ok":
        return None
    record = (snapshot.ledger.health or HealthRecords()).devices.get(gpu, DeviceRecord())
    return max(driver.since, record.last_reset_at)


def finish_try(snapshot: Snapshot, fact: TimeSliceFinished) -> Snapshot:
    """The snapshot after a try has finished. The result of an earlier try than the pending one is ignored."""
    states = snapshot.ledger.time_slices or {}
    slice_state = states.get(fact.gpu)
    if slice_state is None or not slice_state.pending or slice_state.requested_at != fact.requested_at:
        return snapshot
    if fact.problem:
        after = slice_state.but(
            pending=False,
            outcome_unknown=slice_state.outcome_unknown or fact.outcome_unknown,
            failed_tries=slice_state.failed_tries + 1,
            failure=fact.problem,
        )
    else:
        after = TimeSliceState(
            tried_length=fact.length, requested_at=slice_state.requested_at, last_set_length=fact.length
        )
    return snapshot.but(ledger=snapshot.ledger.but(time_slices={**states, fact.gpu: after}))


def current_try(snapshot: Snapshot) -> SetTimeSlice | None:
    """The action for the pending try; None if no try is pending."""
    for gpu, each in (snapshot.ledger.time_slices or {}).items():
        since = _remembers_since(snapshot, gpu)
        if each.pending and since is not None and each.requested_at >= since:
            return SetTimeSlice(gpu=gpu, length=each.tried_length, requested_at=each.requested_at)
    return None


def next_try_at(snapshot: Snapshot) -> float | None:
    """The time of the next try if nothing else happens; None if there is none."""
    desired, states = desired_lengths(snapshot), snapshot.ledger.time_slices or {}
    if desired is None or not (desired or states) or any(each.pending for each in states.values()):
        return None
    return min((at for _, at in _next_tries(snapshot, desired, states)), default=None)


def time_slice_status(snapshot: Snapshot) -> TimeSliceStatus | None:
    """The status of the time slices; None if no length is configured and none was set by us."""
    desired, states = desired_lengths(snapshot), snapshot.ledger.time_slices or {}
    if desired is None or not (desired or states):
        return None
    failing, waiting, lengths = [], [], dict[TimeSlice, list[str]]()
    for gpu in snapshot.gpus:
        slice_state, length = states.get(gpu.uuid), desired.get(gpu.uuid, "default")
        since = _remembers_since(snapshot, gpu.uuid)
        if gpu.uuid not in desired and slice_state is None:
            continue
        if gpu.mig_enabled:
            failing += [f"{_describe_gpu(gpu)}: {MIG_MODE_TEXT}"] if gpu.uuid in desired else []
        elif slice_state is not None and slice_state.failure and not _is_unrelated_try(slice_state, length, since):
            failing.append(
                f"the time slice length of {_describe_gpu(gpu)} could not be set to {length}: {slice_state.failure}"
            )
        else:
            lengths.setdefault(length, []).append(str(gpu.index))
            waiting += [] if since is not None and _has_desired_length(slice_state, length, since) else [gpu.uuid]
    said = "; ".join(f"{length}: GPU {', '.join(each)}" for length, each in lengths.items())
    reason = "; ".join(filter(None, (*failing, f"the agent will set: {said}" if waiting else said)))
    state: PartState = "failing" if failing else "waiting" if waiting else "ok"
    return TimeSliceStatus(state, reason, pending_gpus=tuple(waiting)) if reason else None


def _describe_gpu(gpu: Gpu) -> str:
    return f"GPU {gpu.index} ({gpu.uuid})"
