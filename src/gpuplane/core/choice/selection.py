"""A request to select a set of whole GPUs."""

from collections.abc import Mapping

from gpuplane.model.value import Value


class SelectionRequest(Value):
    """Choose `size` of the available GPUs, the required ones among them. GPUs are positions in the machine's list.

    `costs`: of GPUs that are better left free; of equally good sets the one with the lowest sum of costs is taken.
    `considers_remainder`: whether the remaining GPUs matter. They do if a chosen GPU is no longer free; they do not if
    other containers can still have a share of it.
    """

    available: frozenset[int]
    required: frozenset[int]
    size: int
    costs: Mapping[int, int] = {}
    considers_remainder: bool = True

    @property
    def candidates(self) -> frozenset[int]:
        """All GPUs that can be selected."""
        return self.available | self.required

    @property
    def is_possible(self) -> bool:
        """Whether such a set exists."""
        return len(self.required) <= self.size <= len(self.candidates)
