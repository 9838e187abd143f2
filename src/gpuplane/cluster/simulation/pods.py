"""The pods of a workload, and the classes by which acceptance is counted."""

from collections.abc import Iterable

from gpuplane.base.value import Value
from gpuplane.cluster.model.requests import MILLI_PER_GPU, Request

WITHOUT_GPU_CLASS, SHARED_CLASS = "cpu", "shared"


class TracePod(Value):
    """A pod of a trace, as it arrives. `demand_milli`: milli-GPU of all that it asks for. `lifetime`: seconds from its
    start to its end; None where nobody knows."""

    name: str
    request: Request
    demand_milli: int
    lifetime: float | None = None


def class_of(pod: TracePod) -> str:
    """`cpu` (no GPU), `shared` (parts of GPUs), or how many GPUs: `1`, `2`, `8`."""
    count = sum(each.count for each in pod.request.gpus)
    return WITHOUT_GPU_CLASS if not count else SHARED_CLASS if pod.demand_milli < MILLI_PER_GPU * count else str(count)


def ordered(classes: Iterable[str]) -> list[str]:
    """Classes from the smallest to the largest, each once."""
    small = {WITHOUT_GPU_CLASS: 0, SHARED_CLASS: 1}
    return sorted({*classes}, key=lambda each: (small.get(each, 2), 0 if each in small else int(each)))
