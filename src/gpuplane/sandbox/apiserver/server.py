"""A small API server on a real socket, and everything that can go wrong with one.

What it knows of the protocol: get, list, watch (bookmarks, expired versions, timeoutSeconds, selectors), create, update
with the version that was read, patches (merge and strategic merge, of an object or its status), delete, metadata only
(`as=PartialObjectMetadata`), bearer tokens, TLS.
What it does not know: schemas, admission, defaults, paging, server-side apply.

`troubles` says what happens to requests; `drop`, `finish` and `expire` to the streams that are open; `down` and `up` to
the whole server, on the same port.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Self

import msgspec

from gpuplane.sandbox.apiserver.http import (
    LARGEST_REQUEST,
    Request,
    read_request,
    send_endlessly,
    send_response,
    send_stream,
)
from gpuplane.sandbox.apiserver.objects import (
    MERGE_KEYS,
    Json,
    Objects,
    ResourcePath,
    StatusError,
    matches,
    merge_patch,
    parse_path,
)
from gpuplane.sandbox.apiserver.watch import Watcher, requested_form
from gpuplane.sandbox.changes import PATIENCE

REASONS = {401: "Unauthorized", 403: "Forbidden", 429: "TooManyRequests", 500: "InternalError"}
PATCH_MERGE_KEYS: dict[str, Mapping[str, str]] = {
    "application/merge-patch+json": {},
    "application/strategic-merge-patch+json": MERGE_KEYS,
}
"""Content type → by which fields lists are merged."""


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
    """Start it with `async with`. `objects` is all it holds, `requests` all it was asked ("GET /api/v1/nodes")."""

    def __init__(self, tls: ssl.SSLContext | None = None, tokens: set[str] | None = None, port: int = 0) -> None:
        self.objects = Objects()
        self.requests: list[str] = []
        self.failures: list[InjectedFailure] = []
        self.tokens = tokens  # None: everybody is let in
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

    def kubeconfig(self, token: str = "anyone") -> str:  # noqa: S107 (taken by whoever asks for none)
        """A kubeconfig for it."""
        cluster = {"name": "sandbox", "cluster": {"server": self.url}}
        user = {"name": "sandbox", "user": {"token": token}}
        context = {"name": "sandbox", "context": {"cluster": "sandbox", "user": "sandbox"}}
        config = {"apiVersion": "v1", "kind": "Config", "current-context": "sandbox"}
        return msgspec.json.encode({**config, "clusters": [cluster], "users": [user], "contexts": [context]}).decode()

    async def start(self) -> None:
        """Listen, on the same port as before."""
        self._server = await asyncio.start_server(
            self._serve_connection, "127.0.0.1", self._port, ssl=self._tls, limit=LARGEST_REQUEST
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

    def put(self, path: str, new: Json | None) -> Json | None:
        """Make, change or (None) delete an object, as somebody else would."""
        return self._put(parse_path(path), new)

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

    async def until(self, ready: Callable[[], bool], deadline: float = PATIENCE) -> None:
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
        watch = request.query.get("watch") in ("true", "1")
        name = f"{'WATCH' if watch else request.method} {request.path}"
        self.requests.append(name)
        await self._notify()
        try:
            trouble = next((each for each in self.failures if each.times and fnmatchcase(name, each.request)), None)
            if trouble is not None:
                trouble.times -= 1
                await asyncio.sleep(trouble.delay)
                if trouble.drop_connection:
                    return False
                if trouble.code:
                    raise StatusError(trouble.code, REASONS.get(trouble.code, "Unknown"), trouble.message)
                if trouble.garbage:
                    await send_response(writer, 200, trouble.garbage)
                    return True
                if trouble.endless:
                    await send_endlessly(writer, trouble.endless, trouble.pause, trouble.where)
                if trouble.lose_response:
                    self._respond(request)
                    return False
            if self.tokens is not None and request.headers.get("authorization", "")[7:] not in self.tokens:
                raise StatusError(401, "Unauthorized", "Unauthorized")
            if watch:
                await self._watch(request, reader, writer)
            else:
                await send_response(writer, 201 if request.method == "POST" else 200, self._respond(request))
        except StatusError as refusal:
            await send_response(writer, refusal.code, refusal.status())
        await self._notify()
        return True

    def _respond(self, request: Request) -> Json:
        where = parse_path(request.path)
        match request.method:
            case "GET" if not where.name:
                return self._list(request, where)
            case "GET":
                return requested_form(request, self.objects.get(where))
            case "POST":
                return self._create(where, request)
            case "PUT" | "PATCH":
                return self._change(where, request)
            case "DELETE":
                gone = self.objects.get(where)
                self._put(where, None)
                return gone
        raise StatusError(405, "MethodNotAllowed", f"{request.method} is not supported")

    def _list(self, request: Request, path: ResourcePath) -> Json:
        fields, labels = request.query.get("fieldSelector", ""), request.query.get("labelSelector", "")
        found = [requested_form(request, each) for each in self.objects.list(path) if matches(each, fields, labels)]
        head = {"kind": f"{path.kind}List", "apiVersion": path.version}
        return {**head, "metadata": {"resourceVersion": str(self.objects.version)}, "items": found}

    def _create(self, path: ResourcePath, request: Request) -> Json:
        new = msgspec.json.decode(request.body)
        path = msgspec.structs.replace(path, name=new["metadata"]["name"])
        if self.objects.has(path):
            raise _conflict("AlreadyExists", f'{path.plural} "{path.name}" already exists')
        return self._put(path, new) or {}

    def _change(self, path: ResourcePath, request: Request) -> Json:
        old, body = self.objects.get(path), msgspec.json.decode(request.body)
        if request.method == "PATCH":
            keys = PATCH_MERGE_KEYS.get(request.headers.get("content-type", ""))
            if keys is None:
                raise StatusError(415, "UnsupportedMediaType", f"supported: {', '.join(PATCH_MERGE_KEYS)}")
            body = merge_patch(old, body, keys)
        if body["metadata"].get("resourceVersion") not in (None, old["metadata"]["resourceVersion"]):
            raise _conflict("Conflict", f'{path.plural} "{path.name}": the object has been modified')
        return self._put(path, {**old, "status": body.get("status")} if path.subresource == "status" else body) or {}

    async def _watch(self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        watcher = Watcher(parse_path(request.path), request)
        watcher.start(self.objects)
        gone = asyncio.create_task(_until_gone(reader, watcher))
        self.watchers.add(watcher)
        await self._notify()
        try:
            await send_stream(writer, watcher.events(float(request.query.get("timeoutSeconds", 1800))))
        finally:
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
            self.watchers.discard(watcher)
            await self._notify()


async def _until_gone(reader: asyncio.StreamReader, watcher: Watcher) -> None:
    with suppress(ConnectionError):
        await reader.read(1)  # a client that watches is silent until it goes
    watcher.queue_end()


def _conflict(reason: str, message: str) -> StatusError:
    return StatusError(409, reason, message)
