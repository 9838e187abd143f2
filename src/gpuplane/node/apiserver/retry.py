"""What writers to the API server share: the pauses after failures, and the format of times."""

import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from gpuplane.node.apiserver.node import next_pause
from gpuplane.node.model.node import Node
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import API_SERVER

if TYPE_CHECKING:
    from gpuplane.kubernetes.client.connection import ApiServerError

REFUSED_CODES = (401, 403)
LONG_PAUSE = 300.0  # seconds to pause after a refusal that only a person can resolve


def followed_since(snapshot: Snapshot) -> float | None:
    """Since when our Node object is watched; None while it is not. Another time means an interruption."""
    status = snapshot.statuses.of(API_SERVER)
    return status.since if status is not None and status.state == "ok" else None


def timestamp(after: float = 0.0) -> str:
    """So many seconds from now, as metav1.Time."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + after))


class Backoff:
    """The pauses of one writer: longer after each failure, and cut short when our Node is watched again."""

    def __init__(self) -> None:
        self._last_pause = 0.0

    def reset(self) -> None:
        """A write succeeded: the next pause is a short one."""
        self._last_pause = 0.0

    async def wait(
        self, node: Node, error: "ApiServerError", is_over: Callable[[Snapshot], bool] = lambda _: False
    ) -> None:
        """Pause after a failure, or until `is_over`."""
        link = followed_since(node.snapshot)
        self._last_pause = LONG_PAUSE if error.code in REFUSED_CODES else next_pause(self._last_pause, 0.0)
        seconds = self._last_pause * random.uniform(0.5, 1)  # noqa: S311 (spreads load; no secret)
        await node.wait_until(
            lambda snapshot: followed_since(snapshot) not in (None, link) or is_over(snapshot), seconds
        )
