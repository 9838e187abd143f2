"""The pools of devices that a node can reach, in the order in which devices are tried.

Rules of kube-scheduler 1.36 (dynamic-resource-allocation/structured/internal/incubating/pools_incubating.go):

- Of a pool only the slices of its newest generation count. While some of them are missing it is incomplete. (Where they
  disagree on their number, kube-scheduler believes a random one; here it is the last one.)
- A pool in which two devices have one name, or that consumes a counter that is not there, is invalid.
- Pools go by driver and name, those that have devices with binding conditions after all others; slices by name.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from gpuplane.kubernetes.objects import ApiNode
from gpuplane.kubernetes.selectors import NodeSelector
from gpuplane.sandbox.scheduler.nodeselection import matches_node
from gpuplane.sandbox.scheduler.slices import CounterConsumption, Device, ResourceSlice

DeviceId = tuple[str, str, str]
"""Driver, pool, name."""


class Candidate(msgspec.Struct, frozen=True):
    """A device, and the slice that it is from."""

    device: Device
    slice: ResourceSlice

    @property
    def id(self) -> DeviceId:
        return self.slice.spec.driver, self.slice.spec.pool.name, self.device.name

    @property
    def node_restrictions(self) -> tuple[str | None, NodeSelector | None]:
        """The node that it is on, or the selector of nodes that reach it; neither where all do."""
        spec = self.device if self.slice.spec.per_device_node_selection else self.slice.spec
        return spec.node_name, spec.node_selector


class Pool(msgspec.Struct, frozen=True):
    """A pool as one node sees it. `others`: devices of the pool that this node does not reach."""

    driver: str
    name: str
    candidates: tuple[Candidate, ...] = ()
    others: tuple[Candidate, ...] = ()
    counter_sets: Mapping[str, CounterConsumption] = {}
    is_incomplete: bool = False
    is_invalid: bool = False

    def __str__(self) -> str:
        return f"{self.driver}/{self.name}"


def gather_pools(slices: Sequence[ResourceSlice], node: ApiNode) -> tuple[Pool, ...]:
    """The pools that have a slice for the node."""
    reached: dict[tuple[str, str], list[ResourceSlice]] = {}
    for each in sorted(slices, key=lambda each: each.metadata.name):
        if not (each.spec.shared_counters or _slice_includes_node(each, node)):
            continue
        known = reached.setdefault((each.spec.driver, each.spec.pool.name), [])
        newer = each.spec.pool.generation - (known[0].spec.pool.generation if known else 0)
        if not known or newer >= 0:
            known[:] = [each] if newer > 0 else [*known, each]
    pools = [pool for found in reached.values() if (pool := _make_pool(found, slices))]
    return tuple(sorted(pools, key=lambda pool: (_has_binding_conditions(pool), pool.driver, pool.name)))


def _make_pool(reached: Sequence[ResourceSlice], slices: Sequence[ResourceSlice]) -> Pool | None:
    """The pool of some slices of one generation; None where it is obsolete."""
    spec = reached[-1].spec
    pool, here = Pool(spec.driver, spec.pool.name), {each.metadata.name for each in reached}
    elsewhere: list[ResourceSlice] = []
    if len(reached) != spec.pool.resource_slice_count:
        same = [each for each in slices if (each.spec.driver, each.spec.pool.name) == (pool.driver, pool.name)]
        if any(each.spec.pool.generation > spec.pool.generation for each in same):
            return None
        current = [each for each in same if each.spec.pool.generation == spec.pool.generation]
        if len(current) != spec.pool.resource_slice_count:
            return msgspec.structs.replace(pool, is_incomplete=True)
        elsewhere = [each for each in current if each.metadata.name not in here]
    candidates, others = _make_candidates(reached), _make_candidates(elsewhere)
    sets = [each for found in reached for each in found.spec.shared_counters]
    counter_sets = {each.name: each for each in sets}
    names = [each.device.name for each in candidates]
    if (
        len(set(names)) < len(names)
        or len(counter_sets) < len(sets)
        or _lacks_counter(counter_sets, candidates + others)
    ):
        return msgspec.structs.replace(pool, is_invalid=True)
    return msgspec.structs.replace(pool, candidates=candidates, others=others, counter_sets=counter_sets)


def _make_candidates(slices: Iterable[ResourceSlice]) -> tuple[Candidate, ...]:
    return tuple(Candidate(device, each) for each in slices for device in each.spec.devices)


def _lacks_counter(counter_sets: Mapping[str, CounterConsumption], candidates: Iterable[Candidate]) -> bool:
    """Whether a device consumes a counter that is not there."""
    return any(
        taken.counter_set not in counter_sets or set(taken.counters) - set(counter_sets[taken.counter_set].counters)
        for each in candidates
        for taken in each.device.consumes_counters
    )


def _slice_includes_node(found: ResourceSlice, node: ApiNode) -> bool:
    spec = found.spec
    if spec.per_device_node_selection:
        return any(includes_node(each.node_name, each.node_selector, each.all_nodes, node) for each in spec.devices)
    return includes_node(spec.node_name, spec.node_selector, spec.all_nodes, node)


def includes_node(name: str | None, selector: NodeSelector | None, everywhere: bool, node: ApiNode) -> bool:
    """Whether what says this of its nodes means the node, too."""
    if name:
        return name == node.metadata.name
    return everywhere or (selector is not None and matches_node(selector, node))


def _has_binding_conditions(pool: Pool) -> bool:
    return any(each.device.binding_conditions for each in pool.candidates)
