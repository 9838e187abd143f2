"""The HTTP server of a daemon's status and metrics. A page is made by the thread that is asked for it.

Whoever reaches the port may do what it likes: connections are few and short, and none of them makes a log line. Where
there are too many the oldest gives way: a probe is over at once, so those that fill the room are silent ones.
"""

import asyncio
import logging
import socket
import socketserver
import ssl
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import urlsplit

MAX_CONNECTIONS = 32
MAX_CONNECTION_SECONDS = 10.0
SECONDS_BETWEEN_LOOKS = 2.0
"""Of the server's thread, whether it should end; a request wakes it at once."""

log = logging.getLogger(__name__)


class Page(NamedTuple):
    """What a request is answered with."""

    status: int
    content_type: str
    body: bytes
    is_gzip: bool = False


Pages = Callable[[str, str, str, str], Page]
"""(path, headers Accept, Accept-Encoding and Authorization) → the page. It is called by several threads."""

TlsContext = Callable[[], ssl.SSLContext]
"""Gives the certificate for a new connection: it may be another one each time."""


@asynccontextmanager
async def serve_pages(pages: Pages, host: str, port: int, tls_context: TlsContext | None = None) -> AsyncIterator[None]:
    """Serve the pages meanwhile, over TLS where there is a context. Raises OSError with the address."""
    server = await _listen(pages, host, port, tls_context)
    threading.Thread(target=server.serve_forever, args=(SECONDS_BETWEEN_LOOKS,), name="status", daemon=True).start()
    try:
        yield
    finally:
        threading.Thread(target=_end, args=(server,), name="status ends", daemon=True).start()


def _end(server: "_Server") -> None:
    """Takes up to `SECONDS_BETWEEN_LOOKS` seconds, and waits for whoever is at it: so nobody waits for this."""
    server.shutdown()
    server.server_close()


async def _listen(pages: Pages, host: str, port: int, tls_context: TlsContext | None) -> "_Server":
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        return _Server(pages, family, address, tls_context)
    except OSError as error:
        shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        raise OSError(error.errno, f"cannot listen there: {error.strerror}", shown) from error


class _Server(ThreadingHTTPServer):
    """One thread a connection. `_began`: when each open connection did, the oldest first."""

    request_queue_size = 128

    def __init__(
        self, pages: Pages, family: socket.AddressFamily, address: Any, tls_context: TlsContext | None
    ) -> None:
        self.pages, self.address_family, self._tls_context = pages, family, tls_context
        self._began: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Without looking up our own name, as HTTPServer does: a resolver may be slow."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        socketserver.TCPServer.server_bind(self)

    def get_request(self) -> tuple[socket.socket, Any]:
        """The handshake is left to the connection's thread: a client may take its time with it."""
        connection, address = super().get_request()
        if self._tls_context is None:
            return connection, address
        return self._tls_context().wrap_socket(connection, server_side=True, do_handshake_on_connect=False), address

    def finish_request(self, request: Any, client_address: Any) -> None:
        if isinstance(request, ssl.SSLSocket):
            request.settimeout(MAX_CONNECTION_SECONDS)
            request.do_handshake()
        super().finish_request(request, client_address)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            while len(self._began) >= MAX_CONNECTIONS:
                self._hang_up(next(iter(self._began)))
            self._began[request] = time.monotonic()
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Twice a second: a connection that dawdles is over, however often it says a byte."""
        with self._lock:
            for request, began in list(self._began.items()):
                if time.monotonic() - began > MAX_CONNECTION_SECONDS:
                    self._hang_up(request)

    def _hang_up(self, request: socket.socket) -> None:
        """Its thread sees the end, and closes it. (SSLSocket's own shutdown would let it go on without TLS.)"""
        del self._began[request]
        with suppress(OSError):
            socket.socket.shutdown(request, socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._began.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("%s: %r", client_address, sys.exception())


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = MAX_CONNECTION_SECONDS

    def do_GET(self) -> None:
        accept = ", ".join(self.headers.get_all("Accept", ()))
        encodings = ", ".join(self.headers.get_all("Accept-Encoding", ()))
        authorization = self.headers.get("Authorization", "")
        page = self.server.pages(urlsplit(self.path).path, accept, encodings, authorization)
        self.send_response(page.status)
        if page.status == HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")  # RFC 9110, 15.5.2
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
