"""Metrics and health over HTTP: /metrics, /healthz, /readyz.

The event loop says once a second what the picture is. A page is made by the HTTP thread that is asked for it, at most
once for each picture, so scrapes touch neither the driver nor the event loop. Liveness is the event loop alone: a hung
driver or an absent kubelet is no reason to restart us.

Whoever reaches the port may do what it likes: connections are few and short, and none of them makes a log line. Where
there are too many the oldest gives way: a probe is over at once, so those that fill the room are silent ones.
"""

import asyncio
import gzip
import logging
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from gpuplane.agent.ownprocess import process_metrics
from gpuplane.base.pauses import sleep_until_next
from gpuplane.base.text import Text
from gpuplane.core.reports.readiness import not_ready_reason
from gpuplane.core.telemetry.agentmetrics import metrics
from gpuplane.core.telemetry.deviceseries import device_metrics
from gpuplane.core.telemetry.exposition import CONTENT_TYPES, Format, accepts_gzip, negotiate_format, render
from gpuplane.core.telemetry.state import TelemetryState
from gpuplane.model.node import Node
from gpuplane.model.snapshot import Snapshot

EVENT_LOOP_STUCK_AFTER = 15.0
"""Seconds without a turn of the event loop after which the agent counts as dead."""

MOST_CONNECTIONS = 32
POLL = 2.0
"""Seconds between two looks of the server's thread whether it should end; a request wakes it at once."""
LONGEST_CONNECTION = 10.0
"""Seconds."""
GZIP_LEVEL = 1
"""The fastest: it makes an eighteenth of a page, and the best one a twenty-fifth in eight times as long."""

log = logging.getLogger(__name__)


NO_TELEMETRY = TelemetryState()


class Page(NamedTuple):
    """What a request is answered with."""

    status: int
    content_type: str
    body: bytes
    is_gzip: bool = False


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
    server = await _listen(pages, host, port)
    threading.Thread(target=server.serve_forever, args=(POLL,), name="status", daemon=True).start()
    try:
        while True:
            pages.show(node.snapshot, telemetry())
            await sleep_until_next(1.0)
    finally:
        threading.Thread(target=_end, args=(server,), name="status ends", daemon=True).start()


def _end(server: "_Server") -> None:
    """Takes up to `POLL` seconds, and waits for whoever is at it: so nobody waits for this."""
    server.shutdown()
    server.server_close()


async def _listen(pages: StatusPages, host: str, port: int) -> "_Server":
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        return _Server(pages, family, address)
    except OSError as error:
        shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        raise OSError(error.errno, f"cannot listen there: {error.strerror}", shown) from error


class _Server(ThreadingHTTPServer):
    """One thread a connection. `_began`: when each open connection did, the oldest first."""

    request_queue_size = 128

    def __init__(self, pages: StatusPages, family: socket.AddressFamily, address: Any) -> None:
        self.pages, self.address_family = pages, family
        self._began: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Without looking up our own name, as HTTPServer does: a resolver may be slow."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        socketserver.TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            while len(self._began) >= MOST_CONNECTIONS:
                self._hang_up(next(iter(self._began)))
            self._began[request] = time.monotonic()
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Twice a second: a connection that dawdles is over, however often it says a byte."""
        with self._lock:
            for request, began in list(self._began.items()):
                if time.monotonic() - began > LONGEST_CONNECTION:
                    self._hang_up(request)

    def _hang_up(self, request: socket.socket) -> None:
        """Its thread sees the end, and closes it."""
        del self._began[request]
        with suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._began.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("%s: %r", client_address, sys.exception())


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = LONGEST_CONNECTION

    def do_GET(self) -> None:
        accept = ", ".join(self.headers.get_all("Accept", ()))
        encodings = ", ".join(self.headers.get_all("Accept-Encoding", ()))
        page = self.server.pages.page(urlsplit(self.path).path, accept, encodings)
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(page.body)))
        if page.is_gzip:
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Vary", "Accept, Accept-Encoding")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(page.body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:
        pass
