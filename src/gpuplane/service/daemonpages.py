"""The pages of a daemon: /metrics, /healthz and /readyz, the same ones for every program.

A page of metrics is made by the thread of the HTTP server that is asked for it, at most once until there is something
new: a scrape does not touch the event loop, and while nobody asks nothing is made. Liveness is the event loop alone:
whatever else is wrong, a restart does not cure it.
"""

import gzip
import threading
import time
from collections.abc import Callable, Iterable

from gpuplane.base.metrics import Labels, Metric
from gpuplane.base.text import Text
from gpuplane.service.exposition import CONTENT_TYPES, Format, accepts_gzip, negotiate_format, render
from gpuplane.service.httpserver import Page
from gpuplane.service.ownprocess import process_metrics

EVENT_LOOP_STUCK_AFTER = 15.0
"""Seconds without a turn of the event loop after which the daemon counts as dead."""

GZIP_LEVEL = 1
"""The fastest: it makes an eighteenth of a page, and the best one a twenty-fifth in eight times as long."""

PLAIN_TEXT = "text/plain; charset=utf-8"


class DaemonPages:
    """The pages of one daemon."""

    def __init__(
        self,
        metrics: Callable[[], Iterable[Metric]] = tuple,
        not_ready_reason: Callable[[], Text] = str,
        was_read: Callable[[], None] = lambda: None,
    ) -> None:
        """`metrics`: those of the program itself. `not_ready_reason`: "" while it is ready. Threads call both, one at a
        time. `was_read` is told of each request for the metrics."""
        self._metrics, self._not_ready_reason, self._was_read = metrics, not_ready_reason, was_read
        self.turned = time.monotonic()  # when the event loop was here last
        self.certificate_expires_at: float | None = None
        self.refuse: Callable[[str], Page | None] = lambda authorization: None
        """The answer to a request for metrics with this header `Authorization`; None where it is allowed."""
        self._bodies: dict[tuple[Format, bool], bytes] = {}  # (format, whether it is compressed) → body
        self._lock = threading.Lock()

    def turn(self) -> None:
        """The event loop runs. It says so each second."""
        self.turned = time.monotonic()

    def renew(self) -> None:
        """The metrics have changed: pages are made anew. Belongs to the event loop."""
        self._bodies = {}

    def page(self, path: str, accept: str = "", accept_encoding: str = "", authorization: str = "") -> Page:
        """The page of a path. The rest are the headers of these names."""
        match path:
            case "/metrics":
                if refused := self.refuse(authorization):
                    return refused
                self._was_read()
                format, is_gzip = negotiate_format(accept), accepts_gzip(accept_encoding)
                return Page(200, CONTENT_TYPES[format], self._render(format, is_gzip), is_gzip)
            case "/readyz" if reason := self._why_not_ready():
                return text_page(503, reason)
            case "/healthz" if time.monotonic() - self.turned > EVENT_LOOP_STUCK_AFTER:
                return text_page(503, "the event loop is stuck")
            case "/readyz" | "/healthz":
                return text_page(200, "ok")
        return text_page(404, "here are /metrics, /healthz and /readyz")

    def _why_not_ready(self) -> Text:
        with self._lock:
            return self._not_ready_reason()

    def _render(self, format: Format, is_gzip: bool) -> bytes:
        with self._lock:
            bodies = self._bodies
            if (format, False) not in bodies:
                bodies[format, False] = render((*self._metrics(), self._expiry(), *process_metrics()), format)
            if is_gzip and (format, True) not in bodies:
                bodies[format, True] = gzip.compress(bodies[format, False], GZIP_LEVEL, mtime=0)
            return bodies[format, is_gzip]

    def _expiry(self) -> Metric:
        expires_at = self.certificate_expires_at
        return Metric(
            name="gpuplane_certificate_expiry_timestamp_seconds",
            kind="gauge",
            help="When the certificate of this port expires, in seconds since 1970; no series without TLS",
            series=() if expires_at is None else ((Labels(), expires_at),),
        )


def text_page(status: int, line: Text) -> Page:
    """A line for people."""
    return Page(status, PLAIN_TEXT, f"{line}\n".encode())
