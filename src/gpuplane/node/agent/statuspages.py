"""Metrics and health over HTTP: /metrics, /healthz, /readyz.

The event loop says once a second what the picture is. A page is made by the HTTP thread that is asked for it, at most
once for each picture, so scrapes touch neither the driver nor the event loop. Liveness is the event loop alone: a hung
driver or an absent kubelet is no reason to restart us.
"""

import gzip
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from gpuplane.base.pauses import sleep_until_next
from gpuplane.base.text import Text
from gpuplane.node.core.reports.readiness import not_ready_reason
from gpuplane.node.core.telemetry.agentmetrics import metrics
from gpuplane.node.core.telemetry.deviceseries import device_metrics
from gpuplane.node.core.telemetry.state import TelemetryState
from gpuplane.node.model.node import Node
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.service.exposition import CONTENT_TYPES, Format, accepts_gzip, negotiate_format, render
from gpuplane.service.httpserver import Page, serve_pages
from gpuplane.service.ownprocess import process_metrics

EVENT_LOOP_STUCK_AFTER = 15.0
"""Seconds without a turn of the event loop after which the agent counts as dead."""

GZIP_LEVEL = 1
"""The fastest: it makes an eighteenth of a page, and the best one a twenty-fifth in eight times as long."""


NO_TELEMETRY = TelemetryState()


class _Picture(NamedTuple):
    """What pages are made of, and those that were made of it: (format, whether it is compressed) → body."""

    snapshot: Snapshot
    telemetry: TelemetryState
    bodies: dict[tuple[Format, bool], bytes]


class StatusPages:
    """The pages, of the picture that the event loop showed last.

    A page is made by the thread that is asked for it, at most once for each picture: while nobody asks nothing is made.
    The views of pages have a memory of their own, for the other belongs to the event loop.
    """

    def __init__(self, node_name: str = "", was_read: Callable[[], None] = lambda: None) -> None:
        """`node_name`: the label `Hostname` of series. `was_read` is told of each request for the metrics."""
        self.node_name, self._was_read = node_name, was_read
        self.made = time.monotonic()  # when the event loop was here last
        self._picture = _Picture(Snapshot(), TelemetryState(), {})
        self._memory: dict[Any, Any] = {}  # of views, while the lock is held
        self._lock = threading.Lock()

    def show(self, snapshot: Snapshot, telemetry: TelemetryState = NO_TELEMETRY) -> None:
        """Pages are of this from now on. Belongs to the event loop."""
        self.made = time.monotonic()
        if snapshot is not self._picture.snapshot or telemetry is not self._picture.telemetry:
            self._picture = _Picture(snapshot, telemetry, {})

    def page(self, path: str, accept: str = "", accept_encoding: str = "") -> Page:
        """The page of a path. `accept`, `accept_encoding`: the headers of these names."""
        plain = "text/plain; charset=utf-8"
        match path:
            case "/metrics":
                self._was_read()
                format, is_gzip = negotiate_format(accept), accepts_gzip(accept_encoding)
                return Page(200, CONTENT_TYPES[format], self._metrics(format, is_gzip), is_gzip)
            case "/readyz" if reason := self._unready_reason():
                return Page(503, plain, f"{reason}\n".encode())
            case "/healthz" if time.monotonic() - self.made > EVENT_LOOP_STUCK_AFTER:
                return Page(503, plain, b"the event loop is stuck\n")
            case "/readyz" | "/healthz":
                return Page(200, plain, b"ok\n")
        return Page(404, plain, b"here are /metrics, /healthz and /readyz\n")

    def _unready_reason(self) -> Text:
        with self._lock:
            reason = not_ready_reason(self._picture.snapshot.with_memory(self._memory))
        return "" if reason is None else reason.text

    def _metrics(self, format: Format, is_gzip: bool) -> bytes:
        with self._lock:
            picture = self._picture
            bodies = picture.bodies
            if (format, False) not in bodies:
                bodies[format, False] = self._render(picture, format)
            if is_gzip and (format, True) not in bodies:
                bodies[format, True] = gzip.compress(bodies[format, False], GZIP_LEVEL, mtime=0)
            return bodies[format, is_gzip]

    def _render(self, picture: _Picture, format: Format) -> bytes:
        snapshot = picture.snapshot.with_memory(self._memory)
        series = device_metrics(snapshot, picture.telemetry, self.node_name)
        return render((*metrics(snapshot), *series, *process_metrics()), format)


async def serve_status_pages(
    node: Node,
    host: str,
    port: int,
    node_name: str = "",
    telemetry: Callable[[], TelemetryState] = TelemetryState,
    was_read: Callable[[], None] = lambda: None,
) -> None:
    """Serve the pages for ever, of a picture that is at most a second old. Raises OSError with the address."""
    pages = StatusPages(node_name, was_read)
    async with serve_pages(pages.page, host, port):
        while True:
            pages.show(node.snapshot, telemetry())
            await sleep_until_next(1.0)
