"""Which agent serves this node's kubelet: one at a time. The others stand by.

Two agents that know nothing of each other would give every GPU out twice. So whoever serves a kubelet holds a lock on
its directory, and everybody else watches, is ready to take over, and changes nothing in the world.

The status of the kubelet lock and that of the state directory say whose turn it is.
"""

from gpuplane.base.text import Text
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import KUBELET_LOCK_PART, STATE_DIRECTORY_PART, Turn


def standby_reason(snapshot: Snapshot) -> Text:
    """Which agent this one waits for before it may serve, for people; "" if it waits for none."""
    for part in (KUBELET_LOCK_PART, STATE_DIRECTORY_PART):
        status = snapshot.statuses.of(part)
        if status is not None and status.turn == "standby":
            return status.text
    return ""


def may_register(snapshot: Snapshot) -> bool:
    """Whether this agent may still register with kubelet. One that was told to end never does again: kubelet would drop
    the devices of its successor when it ends."""
    return may_serve(snapshot) and _kubelet_lock_turn(snapshot) != "leaving"


def may_serve(snapshot: Snapshot) -> bool:
    """Whether the streams that kubelet reads may stay open."""
    return not standby_reason(snapshot) and _kubelet_lock_turn(snapshot) != "left"


def _kubelet_lock_turn(snapshot: Snapshot) -> Turn:
    lock = snapshot.statuses.of(KUBELET_LOCK_PART)
    return lock.turn if lock is not None else ""
