"""One API server as one user sees it: objects read and written, collections listed and watched.

lightkube's own watch is not used. It opens a stream that ends at once again without a pause, waits for ever on a
connection that died silently, and decodes every heartbeat of a Node whole. Here:

- Nothing waits for ever. A request has a deadline. A stream has a longest life, chosen at random so that the agents of
  a cluster do not all reconnect at once. A stream that is silent for much longer than the time between the server's
  bookmarks (a minute, apiserver/pkg/storage/cacher/cacher.go) is closed.
- Where metadata is enough, no more is transferred (`as=PartialObjectMetadata`), and only the fields that a struct
  declares are decoded.
"""

import asyncio
import logging
import math
import random
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Generic, Literal, TypeVar, overload

import httpx2
import msgspec
from lightkube import ConfigError

from gpuplane.base.text import clip
from gpuplane.kubernetes.client import connection
from gpuplane.kubernetes.client.errors import ApiServerError, WatchExpired
from gpuplane.kubernetes.client.lists import GONE, ListReader, ListSizeLimit, ObjectList
from gpuplane.kubernetes.client.streams import read_body, read_lines
from gpuplane.kubernetes.objects import NOT_DECODED

STREAM_TIMEOUT = 150.0
"""Seconds of silence after which a stream is given up."""
STREAM_LIFETIME = (240.0, 480.0)
"""Seconds: the shortest and the longest life of a stream; then the server ends it."""
STREAM_OVERTIME = 15.0
"""Seconds after that, in which the server has to end it; then we do."""
ADVICE_BY_CODE = {
    401: "; it does not accept the token or certificate: check the service account or the kubeconfig",
    403: "; give the agent the permissions in deploy/base/rbac.yaml",
}
JSON = "application/json"
Method = Literal["POST", "PATCH", "DELETE"]
PatchType = Literal["strategic", "json", "apply"]
PATCH_CONTENT: Mapping[PatchType, str] = {
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",
}
FIELD_CONFLICT = "FieldManagerConflict"
FIELD_MANAGER = "gpuplane"
"""Who writes here, as `metadata.managedFields` says it."""
T = TypeVar("T")
log = logging.getLogger("gpuplane")


class Event(msgspec.Struct, Generic[T]):
    """One line of a watch: ADDED, MODIFIED, DELETED or BOOKMARK, which has a version and no more."""

    type: str
    object: T


class _Cause(msgspec.Struct):
    reason: str = ""
    message: str = ""
    field: str = ""


class _Details(msgspec.Struct):
    causes: list[_Cause] | None = None


class _Status(msgspec.Struct):
    message: str = ""
    details: _Details | None = None


class ApiClient:
    """Requests over an open connection. Each raises ApiServerError.

    `shape`: a struct with some fields of the object, which alone are decoded. `metadata_only`: no other fields are
    transferred.
    """

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self._http = http

    @property
    def url(self) -> str:
        """The server, as messages name it."""
        return str(self._http.base_url)

    async def get(self, path: str, shape: type[T], *, metadata_only: bool = False) -> T:
        """One object."""
        body = await self._ask(self._http.build_request("GET", path, headers=_accept(metadata_only, "")))
        with self._decoding():
            return msgspec.json.decode(body, type=shape)

    async def list(
        self,
        path: str,
        shape: type[T],
        *,
        fields: str = "",
        metadata_only: bool = False,
        size_limit: ListSizeLimit = "node",
        kind: str = "",
        max_objects: int = 0,
    ) -> ObjectList[T]:
        """The objects of a collection that a field selector chooses. The rest says `ListReader`."""
        chosen, headers = {"fieldSelector": fields} if fields else {}, _accept(metadata_only, "List")

        async def ask(page: Mapping[str, str]) -> bytes:
            return await self._ask(self._http.build_request("GET", path, params={**chosen, **page}, headers=headers))

        with self._decoding():
            return await ListReader(f"{self.url} at {path}", shape, size_limit, kind, max_objects).read(ask)

    @overload
    async def send(
        self,
        method: Method,
        path: str,
        body: Any = None,
        *,
        patch: PatchType = "strategic",
        parameters: Mapping[str, str] = {},
    ) -> None: ...

    @overload
    async def send(
        self,
        method: Method,
        path: str,
        body: Any = None,
        *,
        patch: PatchType = "strategic",
        parameters: Mapping[str, str] = {},
        shape: type[T],
    ) -> T: ...

    async def send(
        self,
        method: Method,
        path: str,
        body: Any = None,
        *,
        patch: PatchType = "strategic",
        parameters: Mapping[str, str] = {},
        shape: type[T] | None = None,
    ) -> T | None:
        """Create an object in a collection, change one by a patch, or delete one.

        After an ApiServerError without a code it is not known whether the server has done it. `shape` None: nobody
        wants to know how the server keeps it.
        """
        headers = {"Accept": JSON, "Content-Type": PATCH_CONTENT[patch] if method == "PATCH" else JSON}
        content = b"" if body is None else msgspec.json.encode(body)
        request = self._http.build_request(method, path, params=dict(parameters), content=content, headers=headers)
        if shape is None:
            async with self._within_deadline(), self._open(request):
                return None
        answer = await self._ask(request)
        with self._decoding():
            return msgspec.json.decode(answer, type=shape)

    async def apply(self, path: str, body: Any, manager: str = FIELD_MANAGER) -> tuple[tuple[str, str], ...]:
        """Server-side apply: all that a manager of ours means of an object. What it meant before and means no more
        goes.

        What somebody else manages is taken over, and returned: who managed it, as the server says it, and the field.
        """
        ours = {"fieldManager": manager}
        try:
            await self.send("PATCH", path, body, patch="apply", parameters=ours)
        except ApiServerError as error:
            if not error.conflicts:
                raise
            await self.send("PATCH", path, body, patch="apply", parameters={**ours, "force": "true"})
            return error.conflicts
        return ()

    @asynccontextmanager
    async def watch(
        self,
        path: str,
        shape: type[T],
        version: str,
        *,
        fields: str = "",
        metadata_only: bool = False,
        lifetime: tuple[float, float] | None = None,
    ) -> AsyncIterator[AsyncIterator[Event[T]]]:
        """The changes of a collection after a version, until the stream ends. Entered once it is open. `lifetime`: how
        long it may last. Raises WatchExpired where only a new list helps."""
        life = random.uniform(*(lifetime or STREAM_LIFETIME))  # noqa: S311 (spreads load; no secret)
        parameters = {"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": version}
        parameters |= {"timeoutSeconds": str(math.ceil(life))} | ({"fieldSelector": fields} if fields else {})
        timeout = httpx2.Timeout(connection.REQUEST_TIMEOUT, read=STREAM_TIMEOUT)
        request = self._http.build_request(
            "GET", path, params=parameters, headers=_accept(metadata_only, ""), timeout=timeout
        )
        try:
            async with asyncio.timeout(life + STREAM_OVERTIME), self._open(request) as answer:
                yield _decode_events(answer, shape)
        except TimeoutError:
            log.debug("a watch of %s exceeded its timeout", path)
        except ApiServerError as error:
            if error.code != GONE:
                raise
            raise WatchExpired(f"{error}") from None

    async def _ask(self, request: httpx2.Request) -> bytes:
        """The body of the answer."""
        async with self._within_deadline(), self._open(request) as answer:
            return await read_body(answer)

    @asynccontextmanager
    async def _within_deadline(self) -> AsyncIterator[None]:
        """Limit the time of a request, and turn each error into an ApiServerError."""
        try:
            async with asyncio.timeout(connection.REQUEST_TIMEOUT):
                yield
        except TimeoutError:
            raise self._late() from None
        except httpx2.HTTPError as error:
            raise ApiServerError(f"{self.url}: {_describe_root_cause(error)}") from None

    @contextmanager
    def _decoding(self) -> Iterator[None]:
        try:
            yield
        except NOT_DECODED as error:
            raise ApiServerError(f"{self.url} does not answer as an API server does: {error}") from None

    @asynccontextmanager
    async def _open(self, request: httpx2.Request) -> AsyncIterator[httpx2.Response]:
        """A successful response whose head is read."""
        try:
            async with asyncio.timeout(connection.REQUEST_TIMEOUT):
                answer = await self._http.send(request, stream=True)
        except (TimeoutError, httpx2.TimeoutException):
            raise self._late() from None
        except (httpx2.HTTPError, OSError, ConfigError) as error:
            raise ApiServerError(f"{self.url}: {_describe_root_cause(error)}") from None
        try:
            if answer.status_code not in (httpx2.codes.OK, httpx2.codes.CREATED):
                raise await self._refusal(answer)
            yield answer
        finally:
            await answer.aclose()

    async def _refusal(self, answer: httpx2.Response) -> ApiServerError:
        status = _Status()
        try:
            async with asyncio.timeout(connection.REQUEST_TIMEOUT):
                status = msgspec.json.decode(await read_body(answer), type=_Status)
        except (TimeoutError, httpx2.HTTPError, ApiServerError, *NOT_DECODED):
            pass  # the code is enough
        code = answer.status_code
        causes = (status.details.causes if status.details is not None else None) or ()
        return ApiServerError(
            f"{self.url} refuses the request: {code} {clip(status.message or answer.reason_phrase)}"
            f"{ADVICE_BY_CODE.get(code, '')}",
            code,
            tuple((each.message, each.field) for each in causes if each.reason == FIELD_CONFLICT),
            clip(status.message),
        )

    def _late(self) -> ApiServerError:
        return ApiServerError(f"{self.url} does not answer within {connection.REQUEST_TIMEOUT:g} s")


def _accept(metadata_only: bool, suffix: Literal["", "List"]) -> Mapping[str, str]:
    """The header that asks for JSON; for metadata alone where the server can send that."""
    partial = f"application/json;as=PartialObjectMetadata{suffix};g=meta.k8s.io;v=v1,"
    return {"Accept": f"{partial if metadata_only else ''}{JSON}"}


async def _decode_events(answer: httpx2.Response, shape: type[T]) -> AsyncIterator[Event[T]]:
    """Raises WatchExpired after an ERROR (410 or another), and for what cannot be read: it would come again."""
    decoder = msgspec.json.Decoder(Event[shape])  # type: ignore[valid-type]
    try:
        async for line in read_lines(answer):
            event = decoder.decode(line)
            if event.type == "ERROR":
                raise WatchExpired(f"{line[:1000]!r}")
            yield event
    except httpx2.HTTPError as error:
        log.debug("a watch ended: %r", error)
    except NOT_DECODED as error:
        raise WatchExpired(f"{error}") from None


def _describe_root_cause(error: BaseException) -> str:
    """The first cause of an error: a library says "all attempts failed", the socket's error says why."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return str(error) or type(error).__name__
