"""What we say of a claim's devices in its `status.devices` (KEP-4817): that they are prepared, and their health.

`Ready` and `Healthy` are conditions as of metav1.Condition. They are written when what they say changes, and not when
it is worded in another way.
"""

from collections.abc import Mapping
from typing import Literal

from gpuplane.base.text import Text, clip
from gpuplane.base.value import Value
from gpuplane.node.core.dra.preparing import claim_problem
from gpuplane.node.core.health.devicehealth import health_with_parents
from gpuplane.node.core.view import part_view, view
from gpuplane.node.model.claims import AllocatedDevice, PreparedClaim
from gpuplane.node.model.health import DeviceHealth
from gpuplane.node.model.snapshot import Snapshot

MAX_MESSAGE = 1024
"""Characters of a message that we write."""


class DeviceCondition(Value):
    """One condition. `reason`: a word in CamelCase, for programs."""

    type: Literal["Ready", "Healthy"]
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: Text = ""

    def same_as(self, other: "DeviceCondition") -> bool:
        """Whether it says the same, if in other words."""
        return (self.type, self.status, self.reason) == (other.type, other.status, other.reason)


ClaimConditions = tuple[tuple[AllocatedDevice, tuple[DeviceCondition, ...]], ...]
"""Each device of a claim, with its conditions."""


@view
def claim_conditions(snapshot: Snapshot) -> Mapping[str, ClaimConditions]:
    """UID of each claim whose containers can start → what its status shall say."""
    claims = {uid: each for uid, each in (snapshot.ledger.claims or {}).items() if claim_problem(snapshot, uid) is None}
    return _claim_conditions.of(snapshot, claims, health_with_parents(snapshot)) if claims else {}


@part_view
def _claim_conditions(
    claims: Mapping[str, PreparedClaim], health: tuple[DeviceHealth, ...]
) -> Mapping[str, ClaimConditions]:
    by_device = {each.device: each for each in health}
    ready = DeviceCondition("Ready", "True", "Prepared")
    return {
        uid: tuple((each.allocated, (ready, _health_condition(by_device.get(each.unit)))) for each in claim.devices)
        for uid, claim in claims.items()
    }


def _health_condition(health: DeviceHealth | None) -> DeviceCondition:
    if health is None:
        return DeviceCondition("Healthy", "Unknown", "NotSeen")
    status: Literal["True", "False"] = "False" if health.state in ("unhealthy", "probing") else "True"
    return DeviceCondition("Healthy", status, health.state.capitalize(), clip(health.reason, MAX_MESSAGE))
