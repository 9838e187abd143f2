"""Whether the counters of a pool suffice for one more device: how partitions of one device exclude each other. Pure.

A device that is allocated has taken its counters, wherever its slice is; a shared one takes them once, with its first
share. Once a counter of a pool is negative, no device of the pool that consumes counters can be had. Admin access needs
free counters like anybody else.

Source: allocator_incubating.go of 1.36 (checkAvailableCounters). Unlike there, counters are a pool's and not a pool
name's (k/k#140434), and a candidate that is turned down takes nothing (k/k#140436).
"""

from collections.abc import Iterable
from fractions import Fraction

from gpuplane.sandbox.apiserver.quantities import parse_quantity
from gpuplane.sandbox.scheduler.capacity import InUse
from gpuplane.sandbox.scheduler.pools import Candidate, DeviceId, Pool


def has_available_counters(pool: Pool, candidate: Candidate, in_use: InUse, chosen: Iterable[Candidate]) -> bool:
    """Whether a device may be taken, beside what is in use and those chosen."""
    if not candidate.device.consumes_counters:
        return True
    taken: dict[DeviceId, Candidate] = {each.id: each for each in chosen}
    if candidate.device.allow_multiple_allocations and (candidate.id in in_use.shared or candidate.id in taken):
        return True
    allocated = [each for each in (*pool.candidates, *pool.others) if in_use.holds(each.id)]
    mine = [each for each in taken.values() if (each.id[0], each.id[1]) == (pool.driver, pool.name)]
    consumed = _sum_consumed([*allocated, *mine, candidate])
    return all(
        consumed.get((name, counter), Fraction()) <= parse_quantity(value["value"]).value
        for name, counters in pool.counter_sets.items()
        for counter, value in counters.counters.items()
    )


def _sum_consumed(candidates: Iterable[Candidate]) -> dict[tuple[str, str], Fraction]:
    found: dict[tuple[str, str], Fraction] = {}
    for each in candidates:
        for taken in each.device.consumes_counters:
            for counter, value in taken.counters.items():
                key = (taken.counter_set, counter)
                found[key] = found.get(key, Fraction()) + parse_quantity(value["value"]).value
    return found
