"""What writers to the API server share: how long they rest after a failure, and how they say the time."""

import random
import time
from typing import TYPE_CHECKING

from gpuplane.apiserver.node import rest
from gpuplane.model.node import Node
from gpuplane.model.snapshot import Snapshot
from gpuplane.model.status import API_SERVER

if TYPE_CHECKING:
    from gpuplane.apiserver.connection import Away

REFUSED = (401, 403)
LONG = 300.0  # seconds to rest after a refusal that only a person can end


def followed(snapshot: Snapshot) -> float | None:
    """Since when our Node object is followed; None while it is not. Another time means that there was a gap."""
    status = snapshot.status.of(API_SERVER)
    return status.since if status is not None and status.state == "ok" else None


def stamp() -> str:
    """Now, as metav1.Time."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class Rests:
    """The rests of one writer: longer after each failure, cut short when our Node begins to be followed again."""

    def __init__(self) -> None:
        self._last = 0.0

    def well(self) -> None:
        """The next failure is a first one."""
        self._last = 0.0

    async def after(self, node: Node, away: "Away") -> None:
        """Rest after a failure."""
        link = followed(node.snapshot)
        self._last = LONG if away.code in REFUSED else rest(self._last, 0.0)
        seconds = self._last * random.uniform(0.5, 1)  # noqa: S311 (spreads load; no secret)
        await node.until(lambda snapshot: followed(snapshot) not in (None, link), seconds)
