"""What writers to the API server share: how a pause is cut short, and the format of times."""

import time
from collections.abc import Callable

from gpuplane.node.model.node import Node
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import API_SERVER_PART


def followed_since(snapshot: Snapshot) -> float | None:
    """Since when our Node object is watched; None while it is not. Another time means an interruption."""
    status = snapshot.statuses.of(API_SERVER_PART)
    return status.since if status is not None and status.state == "ok" else None


def timestamp(after: float = 0.0) -> str:
    """So many seconds from now, as metav1.Time."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + after))


async def pause(node: Node, seconds: float, is_over: Callable[[Snapshot], bool] = lambda _: False) -> None:
    """Pause so long at the most: until `is_over`, or until our Node is watched again, when a new try may work."""
    link = followed_since(node.snapshot)
    await node.wait_until(lambda snapshot: followed_since(snapshot) not in (None, link) or is_over(snapshot), seconds)
