"""What is asked: which GPUs of those that there are."""

from collections.abc import Mapping

from gpuplane.model.value import Value


class Question(Value):
    """Choose `size` of the available GPUs, the required ones among them. GPUs are positions in the machine's list.

    `costs`: what is rather left alone; of sets that are as good, the one whose costs sum up to the least is taken.
    `leaves`: whether it matters what is left over. It does where a GPU that is chosen is gone, and not where others
    may have a share of it.
    """

    available: frozenset[int]
    required: frozenset[int]
    size: int
    costs: Mapping[int, int] = {}
    leaves: bool = True

    @property
    def there(self) -> frozenset[int]:
        """All that may be in the answer."""
        return self.available | self.required

    @property
    def possible(self) -> bool:
        """Whether there is any such set."""
        return len(self.required) <= self.size <= len(self.there)
