"""A small API server on a real socket, and everything that can go wrong with one.

What it knows of the protocol: get, list, watch (bookmarks, expired versions, timeoutSeconds, selectors), create, update
with the version that was read, patches (merge, strategic merge and JSON patches, of an object or its status),
server-side apply with field managers (`fieldmanagers.py`), lists in pages and of old versions (`paging.py`), delete,
metadata only (`as=PartialObjectMetadata`), bearer tokens, TLS.
What it does not know: admission, defaults, immutable fields; of schemas, more than the names of fields (`schema.py`).

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
import yaml

from gpuplane.sandbox.apiserver.fieldmanagers import Manager, apply, update
from gpuplane.sandbox.apiserver.http import (
    LARGEST_REQUEST,
    Request,
    read_request,
    send_endlessly,
    send_response,
    send_stream,
)
from gpuplane.sandbox.apiserver.objects import (
    Json,
    Objects,
    ResourcePath,
    StatusError,
    matches,
    parse_path,
)
from gpuplane.sandbox.apiserver.paging import page
from gpuplane.sandbox.apiserver.patches import MERGE_KEYS, json_patch, merge_patch
from gpuplane.sandbox.apiserver.schema import invalid_metadata, undeclared_field
from gpuplane.sandbox.apiserver.watch import Watcher, requested_form
from gpuplane.sandbox.changes import PATIENCE

REASONS = {401: "Unauthorized", 403: "Forbidden", 429: "TooManyRequests", 500: "InternalError"}
PATCH_MERGE_KEYS: dict[str, Mapping[str, str]] = {
    "application/merge-patch+json": {},
    "application/strategic-merge-patch+json": MERGE_KEYS,
}
"""Content type → by which fields lists are merged."""
JSON_PATCH, APPLY = "application/json-patch+json", "application/apply-patch+yaml"
SOMEBODY = "somebody"
"""The field manager of what a test puts here."""
LONGEST_MANAGER = 128
STATUS_APART = ("nodes", "pods")
"""Whose status a write of the object does not change."""


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

    def put(self, path: str, new: Json | None, manager: str = SOMEBODY) -> Json | None:
        """Make, change or (None) delete an object, as somebody else would."""
        where = parse_path(path)
        if new is not None:
            old = self.objects.get(where) if self.objects.has(where) else None
            new = update(old, new, Manager(manager, "Update", where.version))
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
                await send_response(writer, *self._respond(request))
        except StatusError as refusal:
            await send_response(writer, refusal.code, refusal.status())
        await self._notify()
        return True

    def _respond(self, request: Request) -> tuple[int, Json]:
        """(code, body) of the answer. Raises StatusError."""
        where = parse_path(request.path)
        match request.method:
            case "GET" if not where.name:
                return 200, self._list(request, where)
            case "GET":
                return 200, requested_form(request, self.objects.get(where))
            case "POST" if where.subresource == "eviction":
                return 201, self._evict(where)
            case "POST":
                return 201, self._create(where, request)
            case "PATCH" if _content_type(request) == APPLY:
                return self._apply(where, request)
            case "PUT" | "PATCH":
                return 200, self._change(where, request)
            case "DELETE":
                self.objects.get(where)
                self._put(where, None)
                return 200, self.objects.history[-1].old or {}
        raise StatusError(405, "MethodNotAllowed", f"{request.method} is not supported")

    def _list(self, request: Request, path: ResourcePath) -> Json:
        fields, labels = request.query.get("fieldSelector", ""), request.query.get("labelSelector", "")
        found = page(self.objects, path, request.query, lambda each: matches(each, fields, labels))
        head = {"kind": f"{path.kind}List", "apiVersion": path.version}
        return {**head, "metadata": found.metadata, "items": [requested_form(request, each) for each in found.items]}

    def _create(self, path: ResourcePath, request: Request) -> Json:
        new = msgspec.json.decode(request.body)
        path = msgspec.structs.replace(path, name=new["metadata"]["name"])
        if self.objects.has(path):
            raise _conflict("AlreadyExists", f'{path.plural} "{path.name}" already exists')
        return self._keep(path, None, update(None, new, _manager(path, request, "Update")))

    def _evict(self, path: ResourcePath) -> Json:
        """The Eviction API without disruption budgets: the pod is deleted. Raises StatusError."""
        pod = msgspec.structs.replace(path, subresource="")
        self.objects.get(pod)
        self._put(pod, None)
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}

    def _change(self, path: ResourcePath, request: Request) -> Json:
        old, body = self.objects.get(path), msgspec.json.decode(request.body)
        if request.method == "PATCH":
            kind = _content_type(request)
            if kind == JSON_PATCH:
                body = json_patch(old, body)
            elif kind in PATCH_MERGE_KEYS:
                body = merge_patch(old, body, PATCH_MERGE_KEYS[kind])
            else:
                raise StatusError(415, "UnsupportedMediaType", f"supported: {', '.join(PATCH_MERGE_KEYS)}")
        if body["metadata"].get("resourceVersion") not in (None, old["metadata"]["resourceVersion"]):
            raise _conflict("Conflict", f'{path.plural} "{path.name}": the object has been modified')
        new = {**old, "status": body.get("status")} if path.subresource == "status" else _keep_status(path, old, body)
        return self._keep(path, old, update(old, new, _manager(path, request, "Update")))

    def _apply(self, path: ResourcePath, request: Request) -> tuple[int, Json]:
        """Server-side apply: it makes what is not there."""
        live = self.objects.get(path) if self.objects.has(msgspec.structs.replace(path, subresource="")) else None
        if live is None and path.subresource:
            raise StatusError(404, "NotFound", f'{path.plural} "{path.name}" not found')
        body: Json = yaml.safe_load(request.body)
        if not request.query.get("fieldManager"):
            required = "Required value: is required for apply patch"
            cause = {"reason": "FieldValueRequired", "message": required, "field": "fieldManager"}
            details = {"group": "meta.k8s.io", "kind": "PatchOptions", "causes": [cause]}
            text = f'PatchOptions.meta.k8s.io "" is invalid: fieldManager: {required}'
            raise StatusError(422, "Invalid", text, details=details)
        metadata = body.get("metadata") or {}
        if "managedFields" in metadata:
            raise StatusError(400, "BadRequest", "metadata.managedFields must be nil")
        if (body.get("apiVersion"), body.get("kind")) != (path.version, path.kind):
            raise StatusError(400, "BadRequest", "the apiVersion and kind of the body are not those of the path")
        if metadata.get("name") != path.name:
            raise StatusError(400, "BadRequest", "the name of the object does not match the name on the URL")
        if unknown := undeclared_field(path.version, path.kind, body):
            where = f"({path.namespace}/{path.name}; {path.version}, Kind={path.kind})"
            text = f"failed to create typed patch object {where}: {unknown}: field not declared in schema"
            raise StatusError(500, "", text)
        for key in ("uid", "resourceVersion"):
            if metadata.get(key) not in (None, (live or {}).get("metadata", {}).get(key)):
                text = "no existing object was found" if live is None else "the object has been modified"
                raise _conflict("Conflict", f'{path.plural} "{path.name}": {key} {metadata[key]}: {text}')
        if path.plural in STATUS_APART:
            body = {key: value for key, value in body.items() if (key == "status") <= (path.subresource == "status")}
        force = request.query.get("force") in ("true", "1")
        new = apply(live, body, _manager(path, request, "Apply"), force=force)
        return 201 if live is None else 200, self._keep(path, live, new)

    def _keep(self, path: ResourcePath, old: Json | None, new: Json) -> Json:
        """Keep what a request makes of an object. What changes nothing makes no version. Raises StatusError."""
        if wrong := invalid_metadata(new):
            raise StatusError(422, "Invalid", f'{path.kind} "{path.name}" is invalid: {wrong}')
        return old if old is not None and new == old else self._put(path, new) or {}

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


def _content_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip()


def _keep_status(path: ResourcePath, old: Json, new: Json) -> Json:
    """What a write of an object makes of it whose status only `…/status` changes (nodeStrategy.PrepareForUpdate)."""
    return {**new, "status": old.get("status")} if path.plural in STATUS_APART and "status" in old else new


def _manager(path: ResourcePath, request: Request, operation: str) -> Manager:
    """Who writes: whom the request names, else the program of its User-Agent (managedfields/fieldmanager.go)."""
    name = request.query.get("fieldManager") or request.headers.get("user-agent", "").partition("/")[0]
    return Manager(name[:LONGEST_MANAGER] or "unknown", operation, path.version, path.subresource)


def _conflict(reason: str, message: str) -> StatusError:
    return StatusError(409, reason, message)
