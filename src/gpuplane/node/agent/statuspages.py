"""The pages of the agent: what /metrics and /readyz say of its picture of the node.

The event loop says once a second what the picture is. A hung driver or an absent kubelet is no reason to restart us.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from gpuplane.base.metrics import Metric
from gpuplane.base.text import Text
from gpuplane.node.core.reports.readiness import not_ready_reason
from gpuplane.node.core.telemetry.agentmetrics import metrics
from gpuplane.node.core.telemetry.deviceseries import device_metrics
from gpuplane.node.core.telemetry.state import TelemetryState
from gpuplane.node.model.facts import StatusChanged
from gpuplane.node.model.node import Node
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import CERTIFICATE_PART, METRICS_AUTHORIZATION_PART, AnyPart, Status
from gpuplane.service.daemonpages import DaemonPages
from gpuplane.service.pageserver import serve_daemon_pages
from gpuplane.service.servingoptions import ServingOptions

NO_TELEMETRY = TelemetryState()


class _Picture(NamedTuple):
    """What pages are made of."""

    snapshot: Snapshot
    telemetry: TelemetryState


class StatusPages(DaemonPages):
    """The pages, of the picture that the event loop showed last.

    The views of pages have a memory of their own, for the other belongs to the event loop.
    """

    def __init__(self, node_name: str = "", was_read: Callable[[], None] = lambda: None) -> None:
        """`node_name`: the label `Hostname` of series. `was_read` is told of each request for the metrics."""
        super().__init__(self._node_metrics, self._unready_reason, was_read)
        self.node_name = node_name
        self._picture = _Picture(Snapshot(), TelemetryState())
        self._memory: dict[Any, Any] = {}  # of views; one thread at a time has it

    def show(self, snapshot: Snapshot, telemetry: TelemetryState = NO_TELEMETRY) -> None:
        """Pages are of this from now on. Belongs to the event loop."""
        if snapshot is not self._picture.snapshot or telemetry is not self._picture.telemetry:
            self._picture = _Picture(snapshot, telemetry)
            self.renew()

    def _unready_reason(self) -> Text:
        reason = not_ready_reason(self._picture.snapshot.with_memory(self._memory))
        return "" if reason is None else reason.text

    def _node_metrics(self) -> Iterator[Metric]:
        picture = self._picture
        snapshot = picture.snapshot.with_memory(self._memory)
        yield from metrics(snapshot)
        yield from device_metrics(snapshot, picture.telemetry, self.node_name)


async def serve_status_pages(
    node: Node,
    options: ServingOptions,
    node_name: str = "",
    telemetry: Callable[[], TelemetryState] = TelemetryState,
    was_read: Callable[[], None] = lambda: None,
) -> None:
    """Serve the pages for ever, of a picture that is at most a second old. Raises OSError with the address."""
    pages = StatusPages(node_name, was_read)
    await serve_daemon_pages(
        pages,
        options,
        lambda: pages.show(node.snapshot, telemetry()),
        partial(_report, node, CERTIFICATE_PART),
        partial(_report, node, METRICS_AUTHORIZATION_PART),
    )


def _report(node: Node, part: AnyPart, problem: str) -> None:
    """A part has a status only while something is wrong with it."""
    node.apply(StatusChanged(part, Status("failing", problem) if problem else None))
