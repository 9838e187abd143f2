"""Metrics and health over HTTP: /metrics, /healthz, /readyz.

Everything is rendered on the event loop's own clock and only handed out by the HTTP threads, so a scrape costs nothing
and cannot disturb an Allocate. Liveness is the event loop alone: a hung driver or an absent kubelet is no reason to
restart us.

Whoever reaches the port may do what it likes: connections are few and short, and none of them makes a log line. Where
there are too many the oldest gives way: a probe is over at once, so those that fill the room are silent ones.
"""

import asyncio
import logging
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from gpuplane.core.reports.metrics import metrics
from gpuplane.core.reports.readiness import not_ready_reason
from gpuplane.model.node import Node
from gpuplane.model.snapshot import Snapshot
from gpuplane.model.text import Text
from gpuplane.pauses import sleep_until_next

EVENT_LOOP_STUCK_AFTER = 15.0
"""Seconds without a turn of the event loop after which the agent counts as dead."""

MOST_CONNECTIONS = 32
POLL = 2.0
"""Seconds between two looks of the server's thread whether it should end; a request wakes it at once."""
LONGEST_CONNECTION = 10.0
"""Seconds."""

log = logging.getLogger(__name__)


class StatusPages:
    """The pages, and when the event loop last made them."""

    def __init__(self) -> None:
        self.unready: Text = "the agent is starting"
        self.metrics, self.made = b"", time.monotonic()

    def make(self, snapshot: Snapshot) -> None:
        """Render the pages of a snapshot."""
        why = not_ready_reason(snapshot)
        self.metrics, self.unready = _render(snapshot), why.text if why is not None else ""

    def page(self, path: str) -> tuple[int, str, bytes]:
        """(HTTP status, content type, body) of a path."""
        plain = "text/plain; charset=utf-8"
        match path:
            case "/metrics":
                return 200, CONTENT_TYPE_LATEST, self.metrics
            case "/readyz" if self.unready:
                return 503, plain, f"{self.unready}\n".encode()
            case "/healthz" if time.monotonic() - self.made > EVENT_LOOP_STUCK_AFTER:
                return 503, plain, b"the event loop is stuck\n"
            case "/readyz" | "/healthz":
                return 200, plain, b"ok\n"
        return 404, plain, b"here are /metrics, /healthz and /readyz\n"


async def serve_status_pages(node: Node, host: str, port: int) -> None:
    """Serve the pages for ever, made anew at most once a second. Raises OSError with the address."""
    pages = StatusPages()
    server = await _listen(pages, host, port)
    threading.Thread(target=server.serve_forever, args=(POLL,), name="status", daemon=True).start()
    try:
        seen = None
        while True:
            if node.snapshot is not seen:
                seen = node.snapshot
                pages.make(seen)
            pages.made = time.monotonic()
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
        code, kind, body = self.server.pages.page(urlsplit(self.path).path)
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:
        pass


FAMILIES = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}


class _Pages:
    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        for metric in metrics(self.snapshot):
            labels = list(dict.fromkeys(name for names, _ in metric.series for name in names))
            family = FAMILIES[metric.kind](metric.name, metric.help, labels=labels)
            for names, value in metric.series:
                family.add_metric([names[label] for label in labels], value)
            yield family


def _render(snapshot: Snapshot) -> bytes:
    registry = CollectorRegistry()
    registry.register(_Pages(snapshot))
    return generate_latest(registry)
