"""A request to select a set of whole GPUs."""

from collections.abc import Mapping

from gpuplane.base.value import Value


class GpuSetRequest(Value):
    """Choose `size` of the available GPUs, the required ones among them. GPUs are positions in the machine's list.

    `cost_by_gpu`: of GPUs that are better left free. Of equally good sets the one with the lowest sum is taken.
    `considers_later_requests`: whether the remaining GPUs matter. They do if a chosen GPU is no longer free; they do
    not if other containers can still have a share of it.
    """

    available_gpus: frozenset[int]
    required_gpus: frozenset[int]
    size: int
    cost_by_gpu: Mapping[int, int] = {}
    considers_later_requests: bool = True

    @property
    def selectable_gpus(self) -> frozenset[int]:
        """All GPUs that can be selected."""
        return self.available_gpus | self.required_gpus

    @property
    def can_be_satisfied(self) -> bool:
        """Whether such a set exists."""
        return len(self.required_gpus) <= self.size <= len(self.selectable_gpus)
