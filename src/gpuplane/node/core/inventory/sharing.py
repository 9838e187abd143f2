"""Sharing: a device becomes several ids of one resource (k8s-device-plugin 0.20, internal/rm/device_map.go).

Time slices and MPS make as many ids as are configured; memory makes one id for each share of it. Entries are taken in
the order of the file, those of memory last. A device goes to the first entry that selects it. A device that no entry
selects keeps its own name and is not shared. An entry takes the devices that exist: it may name a device that does not
exist today, or a larger count.

A device that cannot be shared as its entry says is not offered, with the reason, and the others are shared. Too many
shares concern all devices: nobody said which of them to leave out, so all of them are.
"""

from collections.abc import Iterable, Mapping, Sequence

from gpuplane.base.text import Text, format_memory, matches_pattern
from gpuplane.node.core.kinds.unitresource import UnitResource
from gpuplane.node.core.shares import (
    MAX_MEMORY_SHARES_PER_NODE,
    MAX_MPS_CLIENTS_BEFORE_VOLTA,
    MAX_SHARES_PER_NODE,
    MIB_PER_MEMORY_UNIT,
    VOLTA_CAPABILITY,
)
from gpuplane.node.model.config import MemorySharedResource, MemoryUnit, ReplicatedResource, Sharing
from gpuplane.node.model.reasons import ReasonCode
from gpuplane.node.model.views import Unit


def apply_sharing(assignments: Iterable[UnitResource], sharing: Sharing) -> list[UnitResource]:
    """The assignments, with the shares of each unit and the resource name of its shares."""
    shared = list(assignments)
    free: dict[str, list[int]] = {}
    for n, assignment in enumerate(shared):
        free.setdefault(assignment.resource, []).append(n)
    for by, entry in sharing_entry_by_name(sharing).items():
        for n in _select_unit_positions(entry, free.get(entry.name, []), shared):
            free[entry.name].remove(n)
            assignment = shared[n].but(resource=entry.rename or entry.name, sharing_entry=by)
            shared[n] = (
                _share_by_memory(assignment, entry, sharing)
                if isinstance(entry, MemorySharedResource)
                else _share_by_replicas(assignment, entry)
            )
    if sharing.strategy == "mps":
        shared = [_share_by_mps_within_client_limit(assignment) for assignment in shared]
    return _drop_shares_if_too_many(_drop_memory_shares_if_too_many(shared, sharing.memory_unit))


def sharing_entry_by_name(sharing: Sharing) -> Mapping[str, ReplicatedResource | MemorySharedResource]:
    """Name of an entry ("sharing.0", "memory.0") → the entry, in the order in which they select devices."""
    return {
        **{f"sharing.{i}": each for i, each in enumerate(sharing.replicated_resources)},
        **{f"memory.{i}": each for i, each in enumerate(sharing.memory_resources)},
    }


def _select_unit_positions(
    entry: ReplicatedResource | MemorySharedResource,
    unshared_positions: Sequence[int],
    assignments: Sequence[UnitResource],
) -> list[int]:
    fitting = [
        n for n in unshared_positions if not entry.model or matches_pattern(entry.model, assignments[n].unit.model)
    ]
    match entry.devices:
        case None:
            return fitting
        case int(count):
            return fitting[:count]
        case references:
            wanted = set(references)
            return [n for n in fitting if not wanted.isdisjoint((assignments[n].unit.id, assignments[n].unit.index))]


def _share_by_replicas(assignment: UnitResource, entry: ReplicatedResource) -> UnitResource:
    return assignment.but(replicas=entry.replicas, distinct_gpus=entry.distinct_gpus)


def _share_by_mps_within_client_limit(assignment: UnitResource) -> UnitResource:
    if assignment.replicas < 2 or assignment.share_mib:
        return assignment
    if assignment.replicas > MAX_MPS_CLIENTS_BEFORE_VOLTA and _is_before_volta(assignment.unit):
        return without_resource(
            assignment,
            "mps-too-many-clients",
            f"MPS allows at most {MAX_MPS_CLIENTS_BEFORE_VOLTA} clients on a GPU of compute capability "
            f"{assignment.unit.compute_capability}, but {assignment.replicas} replicas are configured; configure "
            "fewer replicas",
        )
    return assignment.but(is_shared_by_mps=True)


def _is_before_volta(unit: Unit) -> bool:
    major = unit.compute_capability.partition(".")[0]
    return major.isdecimal() and int(major) < VOLTA_CAPABILITY


def _share_by_memory(assignment: UnitResource, entry: MemorySharedResource, sharing: Sharing) -> UnitResource:
    has, unit = assignment.unit.memory_mib, sharing.memory_unit
    if not has:
        return without_resource(
            assignment,
            "memory-not-reported",
            "the driver does not report the memory size of the device, so the agent cannot share its memory",
        )
    if has < entry.share_mib:
        grain = format_memory(entry.share_mib, unit)
        text = f"the device has {format_memory(has, unit)} of memory, but one share is {grain}; set a smaller shareSize"
        return without_resource(assignment, "memory-smaller-than-share", text)
    count = has // entry.share_mib
    return assignment.but(replicas=count, share_mib=entry.share_mib, is_shared_by_mps=sharing.mps_limits_memory)


def without_resource(assignment: UnitResource, code: ReasonCode, reason: Text) -> UnitResource:
    """The assignment of a unit that is not offered, for this reason."""
    return assignment.but(resource="", replicas=1, not_offered_reason=reason, not_offered_reason_code=code)


def _drop_memory_shares_if_too_many(assignments: list[UnitResource], unit: MemoryUnit) -> list[UnitResource]:
    """The assignments; without any share of memory if there would be too many of them for kubelet."""
    memory = [assignment for assignment in assignments if assignment.share_mib]
    count = sum(assignment.replicas for assignment in memory)
    if count <= MAX_MEMORY_SHARES_PER_NODE:
        return assignments
    fits = _smallest_allowed_share_mib([assignment.unit.memory_mib for assignment in memory], MIB_PER_MEMORY_UNIT[unit])
    sizes = " and ".join(sorted({format_memory(each.share_mib, unit) for each in memory}))
    reason = (
        f"memory shares of {sizes} would make {count} devices on this node, but the limit is "
        f"{MAX_MEMORY_SHARES_PER_NODE}: set shareSize to {format_memory(fits, unit)} or more; until then no memory is "
        "shared on this node"
    )
    return [
        without_resource(each, "too-many-shares-on-node", reason).but(share_mib=0) if each.share_mib else each
        for each in assignments
    ]


def _drop_shares_if_too_many(assignments: list[UnitResource]) -> list[UnitResource]:
    """The assignments; without any share if the list would be too long for a message to kubelet."""
    count = sum(assignment.replicas for assignment in assignments if assignment.is_shared)
    if count <= MAX_SHARES_PER_NODE:
        return assignments
    reason = f"this node would have {count} shares, but the limit is {MAX_SHARES_PER_NODE}: configure fewer replicas"
    return [
        without_resource(each, "too-many-shares-on-node", reason).but(share_mib=0) if each.is_shared else each
        for each in assignments
    ]


def _smallest_allowed_share_mib(memories: Sequence[int], step_mib: int) -> int:
    """The smallest share, a multiple of `step` MiB, that makes few enough shares of these memories."""
    grain = step_mib
    while sum(memory // grain for memory in memories) > MAX_MEMORY_SHARES_PER_NODE:
        grain += step_mib
    return grain
