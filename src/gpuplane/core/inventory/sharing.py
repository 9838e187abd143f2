"""Sharing: a device becomes several ids of one resource (k8s-device-plugin 0.20, internal/rm/device_map.go).

Time slices and MPS make as many ids as are configured; memory makes one id for each share of it. Entries are taken in
the order of the file, those of memory last. A device goes to the first entry that selects it. A device that no entry
selects keeps its own name and is not shared. An entry takes the devices that exist: it may name a device that does not
exist today, or a larger count.

A device that cannot be shared as its entry says is not offered, with the reason, and the others are shared. Too many
shares concern all devices: nobody said which of them to leave out, so all of them are.
"""

from collections.abc import Iterable, Mapping, Sequence

from gpuplane.core.inventory.naming import UnitAssignment, matches_pattern
from gpuplane.core.shares import (
    MAX_MEMORY_SHARES,
    MAX_MPS_CLIENTS_BEFORE_VOLTA,
    MAX_SHARES,
    MIB_PER_UNIT,
    VOLTA_CAPABILITY,
)
from gpuplane.core.text import format_memory
from gpuplane.model.config import MemoryResource, MemoryUnit, ReplicatedResource, Sharing
from gpuplane.model.reasons import ReasonCode
from gpuplane.model.text import Text
from gpuplane.model.views import Unit


def share_units(assignments: Iterable[UnitAssignment], sharing: Sharing) -> list[UnitAssignment]:
    """The assignments, with the shares of each unit and the resource name of its shares."""
    shared = list(assignments)
    free: dict[str, list[int]] = {}
    for n, assignment in enumerate(shared):
        free.setdefault(assignment.resource, []).append(n)
    for by, entry in sharing_entries(sharing).items():
        for n in _select_units(entry, free.get(entry.name, []), shared):
            free[entry.name].remove(n)
            assignment = shared[n].but(resource=entry.rename or entry.name, sharing_entry=by)
            shared[n] = (
                _share_by_memory(assignment, entry, sharing)
                if isinstance(entry, MemoryResource)
                else _share_by_replicas(assignment, entry)
            )
    if sharing.strategy == "mps":
        shared = [_share_by_mps(assignment) for assignment in shared]
    return _limit_shares(_limit_memory_shares(shared, sharing.memory_unit))


def sharing_entries(sharing: Sharing) -> Mapping[str, ReplicatedResource | MemoryResource]:
    """Name of an entry ("sharing.0", "memory.0") → the entry, in the order in which they select devices."""
    return {
        **{f"sharing.{i}": each for i, each in enumerate(sharing.resources)},
        **{f"memory.{i}": each for i, each in enumerate(sharing.memory)},
    }


def _select_units(
    entry: ReplicatedResource | MemoryResource, free: Sequence[int], assignments: Sequence[UnitAssignment]
) -> list[int]:
    fitting = [n for n in free if not entry.model or matches_pattern(entry.model, assignments[n].unit.model)]
    match entry.devices:
        case None:
            return fitting
        case int(count):
            return fitting[:count]
        case references:
            wanted = set(references)
            return [n for n in fitting if not wanted.isdisjoint((assignments[n].unit.id, assignments[n].unit.index))]


def _share_by_replicas(assignment: UnitAssignment, entry: ReplicatedResource) -> UnitAssignment:
    return assignment.but(replicas=entry.replicas, distinct_gpus=entry.distinct_gpus)


def _share_by_mps(assignment: UnitAssignment) -> UnitAssignment:
    if assignment.replicas < 2 or assignment.share_mib:
        return assignment
    if assignment.replicas > MAX_MPS_CLIENTS_BEFORE_VOLTA and _is_before_volta(assignment.unit):
        return reject(
            assignment,
            "mps-too-many-clients",
            f"MPS has {MAX_MPS_CLIENTS_BEFORE_VOLTA} clients at most on a GPU of compute capability "
            f"{assignment.unit.compute_capability}, and {assignment.replicas} replicas are configured",
        )
    return assignment.but(mps=True)


def _is_before_volta(unit: Unit) -> bool:
    major = unit.compute_capability.partition(".")[0]
    return major.isdecimal() and int(major) < VOLTA_CAPABILITY


def _share_by_memory(assignment: UnitAssignment, entry: MemoryResource, sharing: Sharing) -> UnitAssignment:
    has, unit = assignment.unit.memory_mib, sharing.memory_unit
    if not has:
        return reject(
            assignment, "memory-not-reported", "the driver does not tell its memory, which is to be shared out"
        )
    if has < entry.share_mib:
        grain = format_memory(entry.share_mib, unit)
        text = f"it has {format_memory(has, unit)} of memory, and one share is {grain}; make the grain smaller"
        return reject(assignment, "memory-smaller-than-share", text)
    count = has // entry.share_mib
    return assignment.but(replicas=count, share_mib=entry.share_mib, mps=sharing.memory_by_mps)


def reject(assignment: UnitAssignment, code: ReasonCode, reason: Text) -> UnitAssignment:
    """The assignment of a unit that is not offered, for this reason."""
    return assignment.but(resource="", replicas=1, reason=reason, reason_code=code)


def _limit_memory_shares(assignments: list[UnitAssignment], unit: MemoryUnit) -> list[UnitAssignment]:
    """The assignments; without any share of memory if there would be too many of them for kubelet."""
    memory = [assignment for assignment in assignments if assignment.share_mib]
    count = sum(assignment.replicas for assignment in memory)
    if count <= MAX_MEMORY_SHARES:
        return assignments
    fits = _smallest_share_mib([assignment.unit.memory_mib for assignment in memory], MIB_PER_UNIT[unit])
    sizes = " and ".join(sorted({format_memory(each.share_mib, unit) for each in memory}))
    reason = (
        f"memory in shares of {sizes} would be "
        f"{count} devices on this node, and {MAX_MEMORY_SHARES} are the most: "
        f"no memory is shared here until the grain is {format_memory(fits, unit)} or more"
    )
    return [
        reject(each, "too-many-shares", reason).but(share_mib=0) if each.share_mib else each for each in assignments
    ]


def _limit_shares(assignments: list[UnitAssignment]) -> list[UnitAssignment]:
    """The assignments; without any share if the list would be too long for a message to kubelet."""
    count = sum(assignment.replicas for assignment in assignments if assignment.is_shared)
    if count <= MAX_SHARES:
        return assignments
    reason = f"there would be {count} shares on this node, and {MAX_SHARES} are the most: configure fewer replicas"
    return [
        reject(each, "too-many-shares", reason).but(share_mib=0) if each.is_shared else each for each in assignments
    ]


def _smallest_share_mib(memories: Sequence[int], step: int) -> int:
    """The smallest share, a multiple of `step` MiB, that makes few enough shares of these memories."""
    grain = step
    while sum(memory // grain for memory in memories) > MAX_MEMORY_SHARES:
        grain += step
    return grain
