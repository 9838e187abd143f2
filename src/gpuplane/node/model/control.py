"""What the command line sends to a running agent, and what it answers."""

from gpuplane.base.text import Text
from gpuplane.base.value import Value
from gpuplane.node.model.partitions import LayoutRequest
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.views import Offer

MAX_DRIVER_RELEASE_SECONDS = 7 * 86400.0
MAX_DRAIN_SECONDS = 3650 * 86400.0
"""The longest release and the longest drain that can be requested, in seconds."""


class GetNodeState(Value, tag=True, forbid_unknown_fields=False):
    """Send the state of the node. What a command of another version adds to this request is ignored."""


class ReleaseDriver(Value, tag=True):
    """Release the driver for `seconds`. `requested_at`: CLOCK_BOOTTIME."""

    requested_at: float
    seconds: float
    reason: Text


class ResumeDriver(Value, tag=True):
    """End the release of the driver before its time."""

    requested_at: float


class DrainDevice(Value, tag=True):
    """Drain a device: no container gets it any more. `device`: a UUID, an index ("0", "0:1") or a PCI address.

    `seconds` None: until the device is restored.
    """

    requested_at: float
    device: str
    seconds: float | None
    reason: Text


class RestoreDevice(Value, tag=True):
    """End the drain of a device and take it for repaired: faults that wait for a reset or a person end, too."""

    requested_at: float
    device: str


class RequestLayouts(Value, tag=True):
    """Request layouts of GPUs, in the place of an earlier request. `requested_at`: CLOCK_BOOTTIME."""

    requested_at: float
    request: LayoutRequest


class WithdrawLayouts(Value, tag=True):
    """End the request of layouts. What it made stays. `requested_at`: CLOCK_BOOTTIME."""

    requested_at: float


ControlRequest = (
    GetNodeState | ReleaseDriver | ResumeDriver | DrainDevice | RestoreDevice | RequestLayouts | WithdrawLayouts
)


class NodeState(Value):
    """The snapshot, and what the node advertises because of it, at `now` (CLOCK_BOOTTIME)."""

    snapshot: Snapshot
    offer: Offer
    now: float


class AgentInfo(Value):
    """The agent that answers. `started_at`: CLOCK_BOOTTIME; `node`: "" where it has no cluster."""

    version: str = ""
    node: str = ""
    started_at: float | None = None


class ControlResponse(Value):
    """The answer: `state` to `GetNodeState`; nothing to another request, once it is on disk; or an error for a
    person."""

    state: NodeState | None = None
    error: Text = ""
    agent: AgentInfo = AgentInfo()
