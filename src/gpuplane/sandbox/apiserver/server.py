"""A small API server on a real socket, and everything that can go wrong with one.

What it knows of the protocol: get, list in pages (`paging.py`), watch (bookmarks, expired versions, timeoutSeconds),
field selectors, create, patches (merge, strategic merge and JSON patches, of an object or its status), server-side
apply with field managers (`fieldmanagers.py`), delete, metadata only (`as=PartialObjectMetadata`), bearer tokens, TLS.
It knows no kind: what is sent is kept, and `admit` alone refuses or changes it. What a real server makes of our objects
is tried on a real one (`tests/cluster`).

Each server has a token of its own, which its kubeconfig has: other users of the machine reach the port, too. A page in
a browser of this user reaches it under a name that leads here (DNS rebinding): the Host is checked.

`failures` says what happens to requests; `drop_connections`, `end_streams` and `expire_history` end the open streams;
`stop` and `start` the whole server, on the same port.
"""

import asyncio
import hmac
import secrets
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Self

import msgspec

from gpuplane.sandbox.apiserver.fieldmanagers import Manager, record_update
from gpuplane.sandbox.apiserver.objects import Json, Objects, ResourcePath, StatusError, parse_path
from gpuplane.sandbox.apiserver.queries import is_watch, parse_integer_option
from gpuplane.sandbox.apiserver.registry import Admit, Registry
from gpuplane.sandbox.apiserver.selectors import parse_selector
from gpuplane.sandbox.apiserver.watch import Watcher
from gpuplane.sandbox.changes import DEFAULT_TIMEOUT_SECONDS
from gpuplane.sandbox.http import (
    MAX_REQUEST_BYTES,
    Request,
    read_request,
    send_endlessly,
    send_response,
    send_stream,
)
from gpuplane.sandbox.kubeconfig import kubeconfig_document

REASON_BY_CODE = {401: "Unauthorized", 403: "Forbidden", 429: "TooManyRequests", 500: "InternalError"}
DEFAULT_WATCH_SECONDS = 1800
"""Seconds of a watch whose client names none."""
DEFAULT_USER = "somebody"
"""The field manager of what a test puts here."""


class InjectedFailure(msgspec.Struct):
    """What becomes of the next `times` requests that look like "GET /api/v1/nodes" (`*` matches any run; a watch's
    method is WATCH): a pause of `delay` seconds, then a refusal, other bytes as the answer, a lost connection, one that
    is lost when all is done but the answer, or an answer without an end: the bytes of `endless` again and again,
    `pause` seconds apart, as its body ("body" in chunks, "length" in one piece) or in its "head"."""

    request: str = "*"
    times: int = 1
    delay: float = 0.0
    code: int = 0
    message: str = ""
    garbage: bytes = b""
    drop_connection: bool = False
    lose_response: bool = False
    endless: bytes = b""
    pause: float = 0.0
    where: str = "body"


class ApiServer:
    """Start it with `async with`. `objects` is all it holds, `requests` all it was asked ("GET /api/v1/nodes"), `token`
    what a client has to have. `admit`: what it makes of an object that a client writes, if not to keep it as it is."""

    def __init__(self, tls: ssl.SSLContext | None = None, port: int = 0, *, admit: Admit | None = None) -> None:
        self.objects = Objects()
        self.registry = Registry(self.objects, self._put, admit)
        self.requests: list[str] = []
        self.failures: list[InjectedFailure] = []
        self.token = secrets.token_urlsafe(32)
        self.watchers: set[Watcher] = set()
        self.changed = asyncio.Condition()  # notified at every request, every answer and every change of `watchers`
        self._tls, self._port = tls, port
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self._port}"

    @property
    def authorization(self) -> Mapping[str, str]:
        """The header by which a client is let in."""
        return {"Authorization": f"Bearer {self.token}"}

    def kubeconfig(self) -> str:
        """A kubeconfig for it."""
        document = kubeconfig_document("sandbox", {"server": self.url}, {"token": self.token})
        return msgspec.json.encode(document).decode()

    async def start(self) -> None:
        """Listen, on the same port as before."""
        self._server = await asyncio.start_server(
            self._serve_connection, "127.0.0.1", self._port, ssl=self._tls, limit=MAX_REQUEST_BYTES
        )
        self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening and drop every connection."""
        assert self._server is not None
        self._server.close()
        await self.drop_connections()
        await self._server.wait_closed()

    async def drop_connections(self) -> None:
        """Lose every connection, without a word."""
        tasks = list(self._connections)
        for task, writer in self._connections.items():
            writer.transport.abort()
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def put(self, path: str, new: Json | None, manager: str = DEFAULT_USER) -> Json | None:
        """Make, change or (None) delete an object, with its status, as somebody else would; it is not checked."""
        where = parse_path(path)
        if new is not None:
            old = self.objects.get(where) if self.objects.has(where) else None
            new = record_update(old, new, Manager(manager, "Update", where.version))
        return self._put(where, new)

    def bookmark(self) -> None:
        """Tell every watcher that wants bookmarks the newest version."""
        for watcher in self.watchers:
            watcher.queue_bookmark(self.objects.version)

    def end_streams(self) -> None:
        """End every stream in good order, as a server does when its time is over."""
        for watcher in self.watchers:
            watcher.queue_end()

    def expire_history(self) -> None:
        """Forget the history, and tell the open streams so."""
        self.objects.compact()
        for watcher in self.watchers:
            watcher.queue_end(StatusError(410, "Expired", "too old resource version"))

    async def until(self, ready: Callable[[], bool], deadline: float = DEFAULT_TIMEOUT_SECONDS) -> None:
        """Wait until `ready()` holds, looked at again at every request and answer. Raises TimeoutError."""
        async with asyncio.timeout(deadline), self.changed:
            await self.changed.wait_for(ready)

    def _put(self, path: ResourcePath, new: Json | None) -> Json | None:
        kept = self.objects.put(path, new)
        for watcher in self.watchers:
            watcher.queue_changes(self.objects.history[-1:])
        return kept

    async def _notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = writer
        try:
            while (request := await read_request(reader)) is not None and await self._serve_request(
                request, reader, writer
            ):
                pass
        except (ValueError, ConnectionError, asyncio.CancelledError):
            pass  # what is no HTTP, and what has gone, gets no answer
        finally:
            del self._connections[task]
            writer.close()
            with suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _serve_request(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answer one request; whether the connection goes on."""
        watch = is_watch(request)
        name = f"{'WATCH' if watch else request.method} {request.path}"
        self.requests.append(name)
        await self._notify()
        try:
            self._check_client(request)
            trouble = next((each for each in self.failures if each.times and fnmatchcase(name, each.request)), None)
            if trouble is not None:
                trouble.times -= 1
                await asyncio.sleep(trouble.delay)
                if trouble.drop_connection:
                    return False
                if trouble.code:
                    raise StatusError(trouble.code, REASON_BY_CODE.get(trouble.code, "Unknown"), trouble.message)
                if trouble.garbage:
                    await send_response(writer, 200, trouble.garbage)
                    return True
                if trouble.endless:
                    await send_endlessly(writer, trouble.endless, trouble.pause, trouble.where)
                if trouble.lose_response:
                    self.registry.respond(request)
                    return False
            if watch and not (where := parse_path(request.path)).name:  # of one object there is no stream
                await self._watch(where, request, reader, writer)
            else:
                await send_response(writer, *self.registry.respond(request))
        except StatusError as refusal:
            await send_response(writer, refusal.code, refusal.status())
        await self._notify()
        return True

    def _check_client(self, request: Request) -> None:
        """Whether somebody may ask here, by the name that he uses (RFC 9110, 7.4) and the token. Raises StatusError."""
        if request.headers.get("host", "").lower() not in (f"127.0.0.1:{self._port}", f"localhost:{self._port}"):
            raise StatusError(421, "", "this server has another name")
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(token.strip().encode(), self.token.encode()):
            raise StatusError(401, "Unauthorized", "Unauthorized")

    async def _watch(
        self, where: ResourcePath, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        parse_selector(request.query.get("fieldSelector", ""))  # what is none is refused before the stream
        watcher = Watcher(where, request)
        watcher.start(self.objects)
        gone = asyncio.create_task(_until_gone(reader, watcher))
        self.watchers.add(watcher)
        await self._notify()
        try:
            await send_stream(
                writer, watcher.events(parse_integer_option(request.query, "timeoutSeconds") or DEFAULT_WATCH_SECONDS)
            )
        finally:
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
            self.watchers.discard(watcher)
            await self._notify()


async def _until_gone(reader: asyncio.StreamReader, watcher: Watcher) -> None:
    with suppress(ConnectionError):
        await reader.read(1)  # a client that watches is silent until it goes
    watcher.queue_end()
