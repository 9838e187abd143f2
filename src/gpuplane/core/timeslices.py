"""How long the time slices of shared GPUs are, and what has to be set for that.

A time slice is how long the driver lets one process compute before the next. A GPU has one length for all, "default"
until somebody sets another; programs ask for it when they begin. The driver has it in memory (gpu_db.c of NVIDIA's open
kernel modules): it is gone when the driver is loaded anew, and nobody promises that it outlives a reset of the GPU. A
GPU in MIG mode has none. Nothing tells who has set a length, so the ledger remembers what we did.

- What no entry of the configuration names is left as it is, but for what we set: that becomes "default" again.
- A length is set again where the GPU may have forgotten it: it was reset, or the driver was away, or we were.
- That a try is under way is on disk before it begins. One that broke off may have done it: another follows.
- One GPU at a time, and none that does not answer. A try that failed is repeated later and later; at once where there
  is something new about the GPU or its wish.
- It is no reason to withhold a GPU: with another length it shares its time all the same.
"""

from collections.abc import Iterator, Mapping

from gpuplane.core.faults.catalogue import HIDING_OTHERS
from gpuplane.core.inventory.resources import assign_units
from gpuplane.core.inventory.sharing import sharing_entries
from gpuplane.core.requests import driver_release_reason
from gpuplane.core.view import part_view
from gpuplane.model.config import ReplicatedResource, Settings, TimeSlice
from gpuplane.model.facts import SetTimeSlice, TimeSliceFinished
from gpuplane.model.health import DeviceRecord, HealthRecords
from gpuplane.model.machine import Gpu, Machine
from gpuplane.model.snapshot import Snapshot, TimeSliceState
from gpuplane.model.status import DRIVER, State, TimeSliceStatus

REST, LONGEST_REST = 10.0, 600.0
"""Seconds from a try that failed to the next: doubled with each, up to the second."""

IN_MIG_MODE = "it is in MIG mode, and its time slices have no length"


def wanted(snapshot: Snapshot) -> Mapping[str, TimeSlice] | None:
    """UUID of a GPU → how long its time slices shall be; None while too little is known to say."""
    machine, settings = snapshot.machine, snapshot.config.settings
    if machine is None or machine.gpus is None or settings is None:
        return None
    sharing = settings.sharing
    if sharing.strategy != "time-slicing" or not any(each.time_slice for each in sharing.resources):
        return {}
    return _wanted.of(snapshot, machine, settings)


@part_view
def _wanted(machine: Machine, settings: Settings) -> Mapping[str, TimeSlice]:
    named, found = sharing_entries(settings.sharing), dict[str, TimeSlice]()
    for decision in assign_units(machine, settings):
        entry = named.get(decision.sharing_entry)
        if decision.resource and isinstance(entry, ReplicatedResource) and entry.time_slice is not None:
            found.setdefault(decision.unit.gpu, entry.time_slice)
    return found


def settled(snapshot: Snapshot, now: float) -> Snapshot:
    """The snapshot with the next try under way, where there is one to make now, and without what is over."""
    wishes, known = wanted(snapshot), snapshot.ledger.time_slices or {}
    if wishes is None or not (wishes or known):
        return snapshot
    found = {gpu: _checked(each, _begun(snapshot, gpu)) for gpu, each in known.items()}
    found = {gpu: each for gpu, each in found.items() if gpu in wishes or _ours(each)}
    ready = (gpu for gpu, at in _waiting(snapshot, wishes, found) if at <= now)
    if not any(each.pending for each in found.values()) and (gpu := next(ready, None)) is not None:
        found[gpu] = _tried(found.get(gpu), wishes.get(gpu, "default"), _begun(snapshot, gpu), now)
    return snapshot.but(ledger=snapshot.ledger.but(time_slices=found or None))


def _checked(slicing: TimeSliceState, begun: float | None) -> TimeSliceState:
    """What is known of it. A try of another agent, or before the driver went away, has broken off."""
    if not slicing.pending or begun is None or slicing.requested_at >= begun:
        return slicing
    return slicing.but(pending=False, outcome_unknown=True)


def _ours(slicing: TimeSliceState) -> bool:
    """Whether the GPU may have another length by our doing."""
    return slicing.pending or slicing.outcome_unknown or slicing.set_length not in (None, "default")


def _tried(slicing: TimeSliceState | None, length: TimeSlice, begun: float | None, now: float) -> TimeSliceState:
    """What becomes of it when a try begins."""
    if slicing is None or _fresh(slicing, length, begun):
        slicing = (slicing or TimeSliceState(tried=length, requested_at=now)).but(failed_tries=0, failure="")
    return slicing.but(tried=length, requested_at=now, pending=True)


def _fresh(slicing: TimeSliceState, length: TimeSlice, begun: float | None) -> bool:
    """Whether the tries before tell nothing about the next."""
    return slicing.tried != length or begun is None or slicing.requested_at < begun


def _waiting(
    snapshot: Snapshot, wishes: Mapping[str, TimeSlice], found: Mapping[str, TimeSliceState]
) -> Iterator[tuple[str, float]]:
    """GPUs that can be set and have to be, in the driver's order, and when: before now where at once."""
    for gpu in _answering(snapshot):
        slicing, begun = found.get(gpu.uuid), _begun(snapshot, gpu.uuid)
        length = wishes.get(gpu.uuid, "default")
        if begun is None or (slicing is None and gpu.uuid not in wishes) or _done(slicing, length, begun):
            continue
        at_once = slicing is None or not slicing.failed_tries or _fresh(slicing, length, begun)
        yield gpu.uuid, begun if at_once or slicing is None else slicing.requested_at + _rest(slicing.failed_tries)


def _done(slicing: TimeSliceState | None, length: TimeSlice, begun: float) -> bool:
    """Whether the last try was to set this length, has set it, and the GPU remembers."""
    if slicing is None or slicing.pending or slicing.outcome_unknown or slicing.failed_tries:
        return False
    return slicing.set_length == length and slicing.requested_at >= begun


def _rest(tries: int) -> float:
    return min(REST * 2.0 ** min(tries - 1, 16), LONGEST_REST)


def _answering(snapshot: Snapshot) -> Iterator[Gpu]:
    """The GPUs that can be set now."""
    if driver_release_reason(snapshot):
        return
    for gpu in snapshot.gpus:
        blind = any(fault.code in HIDING_OTHERS for fault in gpu.faults)
        if gpu.uuid and not blind and not gpu.mig_enabled:
            yield gpu


def _begun(snapshot: Snapshot, gpu: str) -> float | None:
    """Since when a GPU remembers what it is told: since its last reset, or since the driver is there for us.

    None while the driver is not. (It is away for us, too, while we are: its status begins anew with us.)
    """
    driver = snapshot.status.of(DRIVER)
    if driver is None or driver.state != "ok":
        return None
    record = (snapshot.ledger.health or HealthRecords()).devices.get(gpu, DeviceRecord())
    return max(driver.since, record.reset_at)


def done(snapshot: Snapshot, fact: TimeSliceFinished) -> Snapshot:
    """The snapshot after a try has ended. What was tried before the one that is under way tells nothing any more."""
    known = snapshot.ledger.time_slices or {}
    slicing = known.get(fact.gpu)
    if slicing is None or not slicing.pending or slicing.requested_at != fact.requested_at:
        return snapshot
    if fact.problem:
        after = slicing.but(
            pending=False,
            outcome_unknown=slicing.outcome_unknown or fact.outcome_unknown,
            failed_tries=slicing.failed_tries + 1,
            failure=fact.problem,
        )
    else:
        after = TimeSliceState(tried=fact.length, requested_at=slicing.requested_at, set_length=fact.length)
    return snapshot.but(ledger=snapshot.ledger.but(time_slices={**known, fact.gpu: after}))


def setting(snapshot: Snapshot) -> SetTimeSlice | None:
    """The try that is under way, or shall be."""
    for gpu, each in (snapshot.ledger.time_slices or {}).items():
        begun = _begun(snapshot, gpu)
        if each.pending and begun is not None and each.requested_at >= begun:
            return SetTimeSlice(gpu=gpu, length=each.tried, requested_at=each.requested_at)
    return None


def due(snapshot: Snapshot) -> float | None:
    """When time alone begins the next try, or None."""
    wishes, known = wanted(snapshot), snapshot.ledger.time_slices or {}
    if wishes is None or not (wishes or known) or any(each.pending for each in known.values()):
        return None
    return min((at for _, at in _waiting(snapshot, wishes, known)), default=None)


def status(snapshot: Snapshot) -> TimeSliceStatus | None:
    """The status of the time slices; None where nobody wants any length and none is ours."""
    wishes, known = wanted(snapshot), snapshot.ledger.time_slices or {}
    if wishes is None or not (wishes or known):
        return None
    failing, waiting, lengths = [], [], dict[TimeSlice, list[str]]()
    for gpu in snapshot.gpus:
        slicing, length = known.get(gpu.uuid), wishes.get(gpu.uuid, "default")
        begun = _begun(snapshot, gpu.uuid)
        if gpu.uuid not in wishes and slicing is None:
            continue
        if gpu.mig_enabled:
            failing += [f"{_name(gpu)}: {IN_MIG_MODE}"] if gpu.uuid in wishes else []
        elif slicing is not None and slicing.failure and not _fresh(slicing, length, begun):
            failing.append(f"{_name(gpu)} could not be set to {length}: {slicing.failure}")
        else:
            lengths.setdefault(length, []).append(str(gpu.index))
            waiting += [] if begun is not None and _done(slicing, length, begun) else [gpu.uuid]
    said = "; ".join(f"{length}: GPU {', '.join(each)}" for length, each in lengths.items())
    reason = "; ".join(filter(None, (*failing, f"to be set: {said}" if waiting else said)))
    state: State = "failing" if failing else "waiting" if waiting else "ok"
    return TimeSliceStatus(state, reason, pending=tuple(waiting)) if reason else None


def _name(gpu: Gpu) -> str:
    return f"GPU {gpu.index} ({gpu.uuid})"
