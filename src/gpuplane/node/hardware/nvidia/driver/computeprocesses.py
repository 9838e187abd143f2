"""Who computes on a GPU, as the driver says it: the processes that this one may see, by its namespace's numbers."""

from collections.abc import Iterable
from typing import Any

from gpuplane.node.hardware.nvidia.driver.errors import NO_ANSWER_ERRORS
from gpuplane.node.hardware.nvidia.driver.nvml import Subject

InstanceIds = tuple[int | None, int | None]  # a GPU instance, and perhaps one compute instance of it; None: any

ANY_INSTANCE: InstanceIds = (None, None)


def compute_process_ids(
    subject: Subject, handles: Iterable[Any], instance: InstanceIds = ANY_INSTANCE
) -> tuple[int, ...]:
    """The processes that compute on any of these. A GPU tells of those in its MIG devices too, to the privileged."""
    function, found = "nvmlDeviceGetComputeRunningProcesses", set[int]()
    for handle in handles:
        for each in subject.ask((), function, handle, fine=NO_ANSWER_ERRORS):
            place = each.gpuInstanceId, each.computeInstanceId
            if all(wanted in (None, there) for wanted, there in zip(instance, place, strict=True)):
                found.add(each.pid)
    return tuple(sorted(found - {0}))
