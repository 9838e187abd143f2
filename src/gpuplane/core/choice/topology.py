"""What two GPUs of a machine are worth to each other: how fast they can talk.

Points as NVIDIA's go-gpuallocator gives them (internal/links, gpuallocator/device.go): 100 for each NVLink lane between
the two, and 10 to 50 for where their ways over PCIe meet. So one lane outweighs where any pair meets, and of a set the
points of its pairs are summed. Three things are otherwise than there:
- Lanes to an NVSwitch count: whatever is behind one switch fabric is a full mesh, and a pair has as many lanes as the
  lesser of the two has to the switches. Theirs counts none.
- A link that only one end has up is down: the lesser of the two ends counts. Theirs panics.
- Where no distance is known, the NUMA nodes stand for it: one node is as NODE, two are as SYS. Where these are not
  known either, the pair is worth nothing.

Two GPUs on one board, 60 there, are PIX here: nvidia-smi and the machine file have no word of their own for it.

Under the policy `numa` it comes first that two GPUs are on one NUMA node, whatever their links.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from gpuplane.core.view import view
from gpuplane.model.machine import Gpu

Policy = Literal["distributed", "packed", "topology", "numa"]
"""What is wanted of a choice. Of whole GPUs only `numa` means anything else than the others."""

Worths: TypeAlias = tuple[tuple[int, ...], ...]
"""worths[i][j]: what the machine's GPUs i and j, by position, are worth to each other. Symmetric, and 0 for i = j."""

LANE = 100
LEVELS = {"SYS": 10, "NODE": 20, "PHB": 30, "PXB": 40, "PIX": 50}
ONE_NODE = 1_000_000
"""Under `numa`: more than all links of any 16 GPUs together."""


@view
def worths(gpus: Sequence[Gpu], policy: Policy) -> Worths:
    """The worth of each pair of GPUs."""
    lanes = [{link.peer: link.lanes for link in gpu.links} for gpu in gpus]
    extra = ONE_NODE if policy == "numa" else 0
    rows = [[0] * len(gpus) for _ in gpus]
    for i, one in enumerate(gpus):
        for j, other in enumerate(gpus[:i]):
            direct = min(lanes[i].get(other.pci, 0), lanes[j].get(one.pci, 0))
            worth = LANE * (direct + _switched(lanes[i], lanes[j])) + _near(one, other)
            rows[i][j] = rows[j][i] = worth + (extra if _one_node(one, other) else 0)
    return tuple(map(tuple, rows))


def worth(worths: Worths, gpus: Sequence[int]) -> int:
    """What a set is worth: the sum of its pairs."""
    return sum(worths[one][other] for n, one in enumerate(gpus) for other in gpus[:n])


def _switched(one: Mapping[str, int], other: Mapping[str, int]) -> int:
    return min(one.get("nvswitch", 0), other.get("nvswitch", 0))


def _near(one: Gpu, other: Gpu) -> int:
    """Where the ways of two GPUs meet; what both say, or the one that can tell."""
    told = {LEVELS[far] for far in (one.distances.get(other.pci), other.distances.get(one.pci)) if far in LEVELS}
    if told:
        return min(told)
    if one.numa is None or other.numa is None:
        return 0
    return LEVELS["NODE" if one.numa == other.numa else "SYS"]


def _one_node(one: Gpu, other: Gpu) -> bool:
    return one.numa is not None and one.numa == other.numa
