"""What pods take of a node and of each GPU, a row a dimension. Fitting, taking, giving back and explaining go through
these tables, so a new dimension is a row here, and a field of what has it (`Node` or `Gpu`) and of what asks for it
(`Request`, or `GpuRequest` and `Share`). Nothing here needs NumPy: amounts are numbers, or arrays of them.

MIG profiles and other resources of nodes have names, and are dimensions as soon as a node or a pod names one.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from operator import attrgetter
from typing import Any, NamedTuple

from gpuplane.cluster.model.nodes import Gpu
from gpuplane.cluster.model.requests import MILLI_PER_GPU

UNLIMITED_AMOUNT = 1 << 60
"""As much of a dimension as anybody likes."""
Needs = Sequence[tuple[int, Any]]
"""(the dimension, as its place among the arrays; how much of it is needed), of those of which anything is."""


class NodeDimension(NamedTuple):
    """Of a whole node. `field`: of a `Node`, how much it has, and of a `Request`, how much it takes. `in_use`: why a
    pod does not fit where too little is free (a code), and `in_use_text`."""

    field: str
    unit: str
    in_use: str
    in_use_text: str


NODE_DIMENSIONS = (
    NodeDimension("cpu_milli", "milli-CPU", "cpu-in-use", "whose CPU is in use"),
    NodeDimension("memory_bytes", "bytes of memory", "memory-in-use", "whose memory is in use"),
)
CPU, MEMORY = range(2)
ABSENT_RESOURCE = len(NODE_DIMENSIONS)
"""The dimension of other resources that no node has: nothing of it is free."""
OTHERS_IN_USE = "others-in-use"


class GpuDimension(NamedTuple):
    """Of each GPU. `has`: how much a GPU has. `takes`: how much of it a share takes, or a `TakenOfGpu`. `room`: the
    largest milli-GPU that fits where so much is free of so much; None: this sets no limit to them."""

    unit: str
    has: Callable[[Gpu], int]
    takes: Callable[[Any], Any]
    room: Callable[[Any, Any], Any] | None = None


def _milli_in_memory(free: Any, memory: Any) -> Any:
    """Rounded as `needed_of_gpu` does it; a GPU whose memory nobody knows has room for any number."""
    is_unknown = memory == 0
    return ((free + 1) * MILLI_PER_GPU - 1) // (memory + is_unknown) + UNLIMITED_AMOUNT * is_unknown


GPU_DIMENSIONS = (
    GpuDimension("milli-GPU", lambda gpu: MILLI_PER_GPU, attrgetter("milli"), lambda free, _: free),
    GpuDimension("MiB of a GPU", attrgetter("memory_mib"), attrgetter("memory_mib"), _milli_in_memory),
    GpuDimension("ids of a GPU", attrgetter("units"), attrgetter("units")),
    GpuDimension(
        "shares of a GPU",
        lambda gpu: gpu.containers or UNLIMITED_AMOUNT,
        lambda share: 1,
        lambda free, _: MILLI_PER_GPU * (free > 0),
    ),
)
GPU_MILLI, GPU_MEMORY, GPU_UNITS, GPU_SHARES = range(4)


def fits(free: Sequence[Any], at: Any, needs: Needs, found: Any) -> Any:
    """Where of what is `found` there is as much free as is needed: the only place that compares the two. `free`: arrays
    by dimension; `at`: the places of these to look at."""
    for dimension, amount in needs:
        found = found & (free[dimension][at] >= amount)
    return found


def largest_milli(amounts: Callable[[int], tuple[Any, Any]], least: Callable[[Any, Any], Any] = min) -> Any:
    """The largest milli-GPU that fits on a GPU; below 0 where pods hold more than it has. `amounts`: dimension → (how
    much is free, how much there is). `least`: the smaller one of two."""
    limits = (each.room(*amounts(place)) for place, each in enumerate(GPU_DIMENSIONS) if each.room is not None)
    return reduce(least, limits)
