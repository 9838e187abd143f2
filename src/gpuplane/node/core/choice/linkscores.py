"""The link score of two GPUs of a machine: how fast they can communicate.

The points are those of NVIDIA's go-gpuallocator (internal/links, gpuallocator/device.go): 100 for each NVLink lane
between the two, and 10 to 50 for the place where their PCIe paths meet. So one lane counts more than any PCIe path. The
link score of a set is the sum over its pairs. Three things differ from go-gpuallocator:
- Lanes to an NVSwitch count: the GPUs behind one switch fabric form a full mesh, and a pair has as many lanes as the
  GPU with fewer lanes to the switches. Theirs counts none.
- A link that is up at one end only is down: the lower number of the two ends counts. Theirs panics.
- If the PCIe distance is not known, the NUMA nodes replace it: the same node counts as NODE, another one as SYS. If
  these are not known either, the pair gets no points for PCIe.

Two GPUs on one board have 60 points there, and count as PIX here: nvidia-smi and the machine file have no name for it.

Under the policy `numa` the first criterion is that two GPUs are on the same NUMA node, whatever their links.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from gpuplane.node.core.view import part_view
from gpuplane.node.model.machine import Gpu

Policy = Literal["distributed", "packed", "topology", "numa"]
"""By what devices are chosen. For whole GPUs only `numa` differs from the others."""

LinkScoreMatrix: TypeAlias = tuple[tuple[int, ...], ...]
"""matrix[i][j]: the link score of the machine's GPUs i and j, by position. Symmetric, and 0 for i = j."""

POINTS_PER_LANE = 100
POINTS_BY_DISTANCE = {"SYS": 10, "NODE": 20, "PHB": 30, "PXB": 40, "PIX": 50}
SAME_NUMA_POINTS = 1_000_000
"""Under `numa`, for a pair on the same NUMA node: more than all links of any 16 GPUs together."""


@part_view
def link_score_matrix(gpus: Sequence[Gpu], policy: Policy) -> LinkScoreMatrix:
    """The link score of each pair of GPUs."""
    lanes = [{link.peer: link.nvlink_count for link in gpu.links} for gpu in gpus]
    extra = SAME_NUMA_POINTS if policy == "numa" else 0
    rows = [[0] * len(gpus) for _ in gpus]
    for i, one in enumerate(gpus):
        for j, other in enumerate(gpus[:i]):
            direct = min(lanes[i].get(other.pci, 0), lanes[j].get(one.pci, 0))
            points = POINTS_PER_LANE * (direct + _nvswitch_lanes(lanes[i], lanes[j])) + _pcie_points(one, other)
            rows[i][j] = rows[j][i] = points + (extra if _is_same_numa_node(one, other) else 0)
    return tuple(map(tuple, rows))


def total_link_score(matrix: LinkScoreMatrix, gpus: Sequence[int]) -> int:
    """The link score of a set: the sum over its pairs."""
    return sum(matrix[one][other] for n, one in enumerate(gpus) for other in gpus[:n])


def _nvswitch_lanes(one: Mapping[str, int], other: Mapping[str, int]) -> int:
    return min(one.get("nvswitch", 0), other.get("nvswitch", 0))


def _pcie_points(one: Gpu, other: Gpu) -> int:
    """The points for the place where the PCIe paths of two GPUs meet; the lower if their two ends differ."""
    known_points = {
        POINTS_BY_DISTANCE[far]
        for far in (one.distances.get(other.pci), other.distances.get(one.pci))
        if far in POINTS_BY_DISTANCE
    }
    if known_points:
        return min(known_points)
    if one.numa is None or other.numa is None:
        return 0
    return POINTS_BY_DISTANCE["NODE" if one.numa == other.numa else "SYS"]


def _is_same_numa_node(one: Gpu, other: Gpu) -> bool:
    return one.numa is not None and one.numa == other.numa
