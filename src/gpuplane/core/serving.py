"""Which agent serves this node's kubelet: one at a time. The others stand by.

Two agents that know nothing of each other would give every GPU out twice. So whoever serves a kubelet holds a lock on
its directory, and everybody else watches, is ready to take over, and changes nothing in the world.

The conditions `kubelet lock` and `state` say whose turn it is; their detail is the code that programs read.
"""

from gpuplane.model.snapshot import Snapshot
from gpuplane.model.text import Text

LOCK, STATE = "kubelet lock", "state"
"""The conditions: of the lock on kubelet's directory, and of the state directory."""

STANDBY = "standby"
"""The detail of either while another agent has that lock."""

LEAVING, LEFT = "leaving", "left"
"""The detail of `kubelet lock` once this agent was told to end: it registers no more; it serves no more."""


def standby(snapshot: Snapshot) -> Text:
    """For whom this agent waits before it may serve; "" if it waits for nobody."""
    for part in (LOCK, STATE):
        condition = snapshot.conditions.get(part)
        if condition is not None and condition.detail == STANDBY:
            return condition.reason
    return ""


def registers(snapshot: Snapshot) -> bool:
    """Whether this agent may still register with kubelet. One that was told to end never does again: kubelet would drop
    the devices of its successor when it ends."""
    return serves(snapshot) and _detail(snapshot) != LEAVING


def serves(snapshot: Snapshot) -> bool:
    """Whether the streams that kubelet reads may stay open."""
    return not standby(snapshot) and _detail(snapshot) != LEFT


def _detail(snapshot: Snapshot) -> str:
    condition = snapshot.conditions.get(LOCK)
    return condition.detail if condition is not None else ""
