"""Sharing: a device becomes several ids of one resource (k8s-device-plugin 0.20, internal/rm/device_map.go).

By time slices or MPS into as many ids as are configured; by memory into one id for each grain of it. Entries are taken
in the order of the file, those of memory last, and a device goes to the first that selects it. What no entry selects
stays as it was, under its own name. An entry takes what it finds: a device that is not there today, or a count beyond
those that are, costs the others nothing.

A device that cannot be shared as its entry wants is left, with the reason, and the others are shared. Only too many
shares concern them all: which of them to leave nobody has said, so all are.
"""

from collections.abc import Iterable, Mapping, Sequence

from gpuplane.core.inventory.naming import Decision, matches
from gpuplane.core.text import format_memory
from gpuplane.model.config import MemoryResource, MemoryUnit, ReplicatedResource, Sharing
from gpuplane.model.text import Text
from gpuplane.model.views import Unit

MOST_MEMORY_IDS = 4096
"""Shares of memory on a node. Kubelet keeps each id in several maps and sends them all for each container."""

MOST_IDS = 32768
"""Shares on a node. A list to kubelet has some 70 bytes for each, and gRPC takes messages of 4 MiB."""

MPS_CLIENTS, MPS_CLIENTS_BEFORE_VOLTA, VOLTA = 48, 16, 7
"""Clients of an MPS server, and the compute capability from which on there may be more (NVIDIA's MPS documentation)."""

MIB = {"MiB": 1, "GiB": 1024}
"""MiB in each unit of memory."""


def share(decisions: Iterable[Decision], sharing: Sharing) -> list[Decision]:
    """The decisions with the shares of each unit, and the name that shared units go by."""
    shared = list(decisions)
    free: dict[str, list[int]] = {}
    for n, decision in enumerate(shared):
        free.setdefault(decision.name, []).append(n)
    for by, entry in entries(sharing).items():
        for n in _selected(entry, free.get(entry.name, []), shared):
            free[entry.name].remove(n)
            decision = shared[n].but(name=entry.rename or entry.name, shared_by=by)
            shared[n] = _cut(decision, entry, sharing) if isinstance(entry, MemoryResource) else _split(decision, entry)
    if sharing.strategy == "mps":
        shared = [_by_mps(decision) for decision in shared]
    return _within_a_message(_within_bounds(shared, sharing.memory_unit))


def entries(sharing: Sharing) -> Mapping[str, ReplicatedResource | MemoryResource]:
    """What an entry is called → the entry, in the order in which they take devices."""
    return {
        **{f"sharing.{i}": each for i, each in enumerate(sharing.resources)},
        **{f"memory.{i}": each for i, each in enumerate(sharing.memory)},
    }


def _selected(
    entry: ReplicatedResource | MemoryResource, free: Sequence[int], decisions: Sequence[Decision]
) -> list[int]:
    fitting = [n for n in free if not entry.model or matches(entry.model, decisions[n].unit.model)]
    match entry.devices:
        case None:
            return fitting
        case int(count):
            return fitting[:count]
        case references:
            wanted = set(references)
            return [n for n in fitting if not wanted.isdisjoint((decisions[n].unit.id, decisions[n].unit.index))]


def _split(decision: Decision, entry: ReplicatedResource) -> Decision:
    return decision.but(replicas=entry.replicas, distinct=entry.distinct_gpus)


def _by_mps(decision: Decision) -> Decision:
    if decision.replicas < 2 or decision.grain_mib:
        return decision
    if decision.replicas > MPS_CLIENTS_BEFORE_VOLTA and _before_volta(decision.unit):
        return left(
            decision,
            f"MPS has {MPS_CLIENTS_BEFORE_VOLTA} clients at most on a GPU of compute capability "
            f"{decision.unit.compute_capability}, and {decision.replicas} replicas are configured",
        )
    return decision.but(mps=True)


def _before_volta(unit: Unit) -> bool:
    major = unit.compute_capability.partition(".")[0]
    return major.isdecimal() and int(major) < VOLTA


def _cut(decision: Decision, entry: MemoryResource, sharing: Sharing) -> Decision:
    has, unit = decision.unit.memory_mib, sharing.memory_unit
    if not has:
        return left(decision, "the driver does not tell its memory, which is to be shared out")
    if has < entry.share_mib:
        grain = format_memory(entry.share_mib, unit)
        return left(
            decision, f"it has {format_memory(has, unit)} of memory, and one share is {grain}; make the grain smaller"
        )
    count = has // entry.share_mib
    return decision.but(replicas=count, grain_mib=entry.share_mib, mps=sharing.memory_by_mps)


def left(decision: Decision, reason: Text) -> Decision:
    """The decision not to offer a unit, for this reason."""
    return decision.but(name="", replicas=1, reason=reason)


def _within_bounds(decisions: list[Decision], unit: MemoryUnit) -> list[Decision]:
    """The decisions, without any share of memory where there would be too many of them for kubelet."""
    memory = [decision for decision in decisions if decision.grain_mib]
    count = sum(decision.replicas for decision in memory)
    if count <= MOST_MEMORY_IDS:
        return decisions
    fits = _grain([decision.unit.memory_mib for decision in memory], MIB[unit])
    sizes = " and ".join(sorted({format_memory(each.grain_mib, unit) for each in memory}))
    reason = (
        f"memory in shares of {sizes} would be "
        f"{count} devices on this node, and {MOST_MEMORY_IDS} are the most: "
        f"no memory is shared here until the grain is {format_memory(fits, unit)} or more"
    )
    return [left(decision, reason).but(grain_mib=0) if decision.grain_mib else decision for decision in decisions]


def _within_a_message(decisions: list[Decision]) -> list[Decision]:
    """The decisions, without any share where kubelet could not take the list."""
    count = sum(decision.replicas for decision in decisions if decision.shared)
    if count <= MOST_IDS:
        return decisions
    reason = f"there would be {count} shares on this node, and {MOST_IDS} are the most: configure fewer replicas"
    return [left(decision, reason).but(grain_mib=0) if decision.shared else decision for decision in decisions]


def _grain(memories: Sequence[int], step: int) -> int:
    """The smallest grain, in whole steps of MiB, that cuts all these into few enough shares."""
    grain = step
    while sum(memory // grain for memory in memories) > MOST_MEMORY_IDS:
        grain += step
    return grain


def ids(decision: Decision) -> list[str]:
    """The ids under which kubelet sees a unit: its own, or one for each share."""
    unit = decision.unit.id
    return [f"{unit}::{n}" for n in range(decision.replicas)] if decision.shared else [unit]


def base(id: str) -> str:
    """The unit of an id."""
    return id.split("::", 1)[0]
