"""Which devices of a plain kind a container preferably gets. Of how they are connected, only NUMA nodes are known."""

from collections import Counter
from collections.abc import Iterable, Set

from gpuplane.node.model.views import OfferedDevice


def choose_plain_devices(
    devices: Iterable[OfferedDevice], available: Set[str], required: Set[str], count: int
) -> list[str]:
    """At most `count` of the available ids, of as few NUMA nodes as possible: those of the required ids come first,
    then those with the most free ids. Between equals, the first in the order of the list."""
    every = list(devices)
    free = [each for each in every if each.id in available and each.id not in required and not each.reasons]
    with_required = {each.unit.numa for each in every if each.id in required}
    free_on_node = Counter(each.unit.numa for each in free)
    by_node = sorted(
        free_on_node, key=lambda numa: (numa not in with_required, -free_on_node[numa], -1 if numa is None else numa)
    )
    rank = {numa: n for n, numa in enumerate(by_node)}
    return [each.id for each in sorted(free, key=lambda each: rank[each.unit.numa])][:count]
