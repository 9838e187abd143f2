"""Claims of Dynamic Resource Allocation: what the API server says of one, and what we promised for it.

Only what concerns our driver: a claim may have devices of other drivers beside ours. Names are those of
resource.k8s.io/v1 (https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/resource-claim-v1/).
"""

from collections.abc import Awaitable, Callable, Mapping

from gpuplane.base.value import Value
from gpuplane.node.model.config import TimeSlice
from gpuplane.node.model.reasons import Reason


class ClaimName(Value):
    """Which claim: its name, which another claim may have had before, and its UID, which no other has."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class ClaimUnavailable(Exception):
    """A claim cannot be had from the API server; `reason` says why."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(f"{reason.text}")
        self.reason = reason


class AllocatedDevice(Value):
    """One result of a claim's allocation. `request`: "main", or "main/sub" of a prioritized list."""

    request: str
    pool: str
    device: str
    is_admin: bool = False  # admin access: beside others, who are not to be disturbed
    share_id: str = ""

    @property
    def main_request(self) -> str:
        """The name by which pods and kubelet know the request."""
        return self.request.partition("/")[0]


class OpaqueConfig(Value):
    """One entry of a claim's configuration for our driver. `parameters`: JSON text, as a person wrote it.

    `requests`: the main requests or subrequests that it is for; () for all.
    """

    parameters: str
    requests: tuple[str, ...] = ()
    is_from_class: bool = False


class AllocatedClaim(Value):
    """A claim as the API server told it. `devices`: those of our driver; () while nothing is allocated.

    `pods`: name → UID of the pods for which it is reserved. `pod_claim_name`: how the pod names it that it was made
    for, by a template; "" for others.
    """

    claim: ClaimName
    devices: tuple[AllocatedDevice, ...] = ()
    configs: tuple[OpaqueConfig, ...] = ()
    pods: Mapping[str, str] = {}
    pod_claim_name: str = ""
    generation: int = 0
    is_allocated: bool = True


FetchClaim = Callable[[ClaimName], Awaitable[AllocatedClaim]]
"""Fetches a claim from the API server; of any UID where the name has none. Raises ClaimUnavailable."""


class PreparedDevice(Value):
    """A device that a claim got. `unit`: its UUID; `cdi_id`: what kubelet has the runtime inject for it.

    `time_slice`: the length that the claim's configuration asks for; None for none.
    """

    allocated: AllocatedDevice
    unit: str
    cdi_id: str
    time_slice: TimeSlice | None = None


class PreparedClaim(Value):
    """What we promised for a claim: the same answer to each Prepare, until its Unprepare. A file of the ledger."""

    claim: ClaimName
    driver: str
    devices: tuple[PreparedDevice, ...]
    pods: Mapping[str, str] = {}
    pod_claim_name: str = ""
    generation: int = 0
