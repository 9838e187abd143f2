"""One unit, and what this node offers it as: its resource name and its device ids.

An id is not the unit that it stands for: kubelet counts ids, containers get units. A unit has one id or several (its
shares), and only here is said which.
"""

from gpuplane.base.text import Text
from gpuplane.base.value import Value
from gpuplane.node.core.shares import share_ids
from gpuplane.node.model.views import ReasonKind, Unit


class UnitResource(Value):
    """Under which resource name a unit is offered, or why under none. `setting` is the one that decided."""

    unit: Unit
    resource: str = ""
    not_offered_reason: Text = ""
    not_offered_reason_kind: ReasonKind = "configured"
    not_offered_reason_code: str = ""
    deciding_setting: str = (
        ""  # a field of Settings, with the entry's number where it is a list: "mig_strategy", "gpus.0"
    )
    replicas: int = 1
    sharing_entry: str = ""  # likewise, "sharing.0" or "memory.0"
    share_mib: int = 0  # memory that each share stands for; 0: shares are not of memory
    distinct_gpus: bool = False
    is_shared_by_mps: bool = False

    @property
    def device_ids(self) -> list[str]:
        """The device ids by which kubelet knows the unit: its own, or one for each share."""
        return share_ids(self.unit.id, self.replicas) if self.is_shared else [self.unit.id]

    @property
    def is_shared(self) -> bool:
        """Whether its ids are shares of it. A GPU's memory may make no more than one."""
        return self.replicas > 1 or self.share_mib > 0


def plain_unit_id(kind: str, device_id: str) -> str:
    """The id of the unit that a device of a plain kind is."""
    return f"{kind}:{device_id}"
