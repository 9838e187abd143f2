"""Metrics and health over HTTP: /metrics, /healthz, /readyz.

Everything is rendered on the event loop's own clock and only handed out by the HTTP threads, so a scrape costs nothing
and cannot disturb an Allocate. Liveness is the event loop alone: a hung driver or an absent kubelet is no reason to
restart us.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, ThreadingWSGIServer, generate_latest

from gpuplane.core.metrics import metrics
from gpuplane.core.readiness import unready
from gpuplane.model.node import Node
from gpuplane.model.snapshot import Snapshot

STUCK = 15.0
"""Seconds without a turn of the event loop after which the agent counts as dead."""


class Status:
    """The pages, and when the event loop last made them."""

    def __init__(self) -> None:
        self.metrics, self.unready, self.made = b"", "the agent is starting", time.monotonic()

    def make(self, snapshot: Snapshot) -> None:
        """Render the pages of a snapshot."""
        self.metrics, self.unready = _render(snapshot), unready(snapshot)

    def page(self, path: str) -> tuple[str, str, bytes]:
        """(HTTP status, content type, body) of a path."""
        plain = "text/plain; charset=utf-8"
        match path:
            case "/metrics":
                return "200 OK", CONTENT_TYPE_LATEST, self.metrics
            case "/readyz" if self.unready:
                return "503 Service Unavailable", plain, f"{self.unready}\n".encode()
            case "/healthz" if time.monotonic() - self.made > STUCK:
                return "503 Service Unavailable", plain, b"the event loop is stuck\n"
            case "/readyz" | "/healthz":
                return "200 OK", plain, b"ok\n"
        return "404 Not Found", plain, b"here are /metrics, /healthz and /readyz\n"


async def status(node: Node, host: str, port: int) -> None:
    """Serve the pages for ever, made anew at most once a second."""
    pages = Status()

    def app(environ: dict[str, Any], start: Callable[..., object]) -> Iterable[bytes]:
        code, kind, body = pages.page(environ.get("PATH_INFO", "/"))
        start(code, [("Content-Type", kind), ("Content-Length", str(len(body)))])
        return [body]

    server = make_server(host, port, app, ThreadingWSGIServer, handler_class=_Quiet)
    threading.Thread(target=server.serve_forever, name="status", daemon=True).start()
    try:
        seen = None
        while True:
            if node.snapshot is not seen:
                seen = node.snapshot
                pages.make(seen)
            pages.made = time.monotonic()
            await asyncio.sleep(1.0)
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()


class _Quiet(WSGIRequestHandler):
    timeout = 10  # seconds that one connection may dawdle

    def log_message(self, format: str, *args: object) -> None:
        pass


class _Pages:
    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        for gauge in metrics(self.snapshot):
            labels = list(dict.fromkeys(name for names, _ in gauge.series for name in names))
            family = GaugeMetricFamily(gauge.name, gauge.help, labels=labels)
            for names, value in gauge.series:
                family.add_metric([names[label] for label in labels], value)
            yield family


def _render(snapshot: Snapshot) -> bytes:
    registry = CollectorRegistry()
    registry.register(_Pages(snapshot))
    return generate_latest(registry)
