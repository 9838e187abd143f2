"""A connection to the API server: one collection listed, then watched; one object read or written.

lightkube reads the configuration, in a cluster or from a kubeconfig, and signs the requests: a token that kubelet has
renewed is read again when the old one is refused. Its own watch is not used. It opens a stream that ends at once again
without a pause, waits for ever on a connection that died silently, and decodes every heartbeat of a Node whole. Here:

- Nothing waits for ever. A request has a deadline. A stream has a longest life, chosen at random so that the agents of
  a cluster do not all reconnect at once. A stream that is silent for much longer than the time between the server's
  bookmarks (a minute, apiserver/pkg/storage/cacher/cacher.go) is closed.
- The end of a stream says nothing about the server: it was dropped, has expired (410), or the server's timeout ended
  it. The watcher lists again, and the list shows whether the server answers.
- Only metadata of watched objects is transferred (`as=PartialObjectMetadata`), and only the named fields are decoded.

Importing this module costs 17 MB and 100 ms: only agents that have an API server import it, and not before they serve.
"""

import asyncio
import logging
import math
import os
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import httpx2
import msgspec
from lightkube import ConfigError, KubeConfig, SingleConfig
from lightkube.config import client_adapter

from gpuplane.base import files
from gpuplane.base.text import clip
from gpuplane.kubernetes.client.credentials import ExecPlugin
from gpuplane.kubernetes.client.kubeconfig import parse_kubeconfig

PAGE = 200  # objects of a list that one answer has
REQUEST_TIMEOUT = 15.0  # seconds for one answer, or for the beginning of a stream
STREAM_TIMEOUT = 150.0  # seconds
LARGEST_LIST, LONGEST_LIST = 64 << 20, 60.0
"""Bytes and seconds of a list of what concerns one node, with all its pages."""
LARGEST_CLUSTER, LONGEST_CLUSTER = 1 << 30, 600.0
"""The same of a list of what a whole cluster has. It takes as much memory: 300 MB for 40,000 pods of 6.8 KB."""
EMPTY_PAGE = 256 << 10
"""The bytes that a page without objects counts for. An API server fills its pages (apiserver, storage/etcd3/store.go,
GetList); a proxy that leaves out what a user may not see does not."""
LARGEST_ANSWER = 4 << 20
"""Bytes of one answer, or of a stream at once. An object has at most 1.5 MiB in etcd, and some more as JSON."""
STREAM_RATE = 256 << 10
"""Bytes that a stream may send in addition in each second: an object of that size every few seconds."""
SMALLEST_PIECE = 1 << 10
"""The fewest bytes that a piece counts for, however small it is: each takes time."""
LARGEST_FILE = 1 << 20
"""Bytes of a kubeconfig, a token or a certificate."""
STREAM_LIFETIME = (240.0, 480.0)  # seconds: the shortest and the longest life of a stream; then the server ends it
STREAM_OVERTIME = 15.0  # seconds after that, in which the server has to end it; then we do
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
ADVICE = {
    401: "; it does not accept the token or certificate: check the service account or the kubeconfig",
    403: "; give the agent the permissions in deploy/base/rbac.yaml",
}
JSON, STRATEGIC_PATCH = "application/json", "application/strategic-merge-patch+json"
JSON_PATCH, APPLY = "application/json-patch+json", "application/apply-patch+yaml"
FIELD_CONFLICT = "FieldManagerConflict"
FIELD_MANAGER = "gpuplane"
"""Who writes here, as `metadata.managedFields` says it."""
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What is raised for an answer that is no JSON of the wanted shape, or is nested too deep."""
T = TypeVar("T")
log = logging.getLogger("gpuplane")
logging.getLogger("httpx2").setLevel(logging.WARNING)  # it would log every request; the status says what matters


class ApiServerError(Exception):
    """The API server did not answer, or refused. The message says which server, what went wrong, and what to do.

    `code`: the HTTP status of a refusal, else 0. `conflicts`: of an apply, who else manages a field: what the server
    says of him, and the field.
    """

    def __init__(self, reason: str, code: int = 0, conflicts: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(reason)
        self.code, self.conflicts = code, conflicts


class _AnswerTooLarge(ApiServerError):
    """An answer has more bytes than are read."""


class _ListExpired(ApiServerError):
    """The version that the pages of a list are of is forgotten."""


class Metadata(msgspec.Struct):
    """The metadata of an object or a list, as far as it is read."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resourceVersion: str = ""  # noqa: N815 (the wire's name)
    labels: Mapping[str, str] | None = None
    annotations: Mapping[str, str] | None = None


class Object(msgspec.Struct):
    """Any object."""

    metadata: Metadata


class ListMetadata(msgspec.Struct):
    """The version that a list is of. `continue_token`: where it goes on; "" at its end."""

    resourceVersion: str = ""  # noqa: N815 (the wire's name)
    continue_token: str = msgspec.field(name="continue", default="")


class Event(msgspec.Struct):
    """One line of a watch: ADDED, MODIFIED, DELETED or BOOKMARK; an ERROR ends the stream and is not shown."""

    type: str
    object: Object


class _Kind(msgspec.Struct):
    type: str


class ListOf(msgspec.Struct, Generic[T]):
    """The objects of a collection at one of its versions, decoded into structs of one's own."""

    metadata: ListMetadata
    items: list[T]


class EventOf(msgspec.Struct, Generic[T]):
    """One line of a watch of such objects."""

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


@asynccontextmanager
async def connect(kubeconfig: Path | None) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of the API server: of a kubeconfig, or of the cluster that this pod runs in. Raises ApiServerError."""
    if kubeconfig is None and "KUBERNETES_SERVICE_HOST" not in os.environ:
        raise ApiServerError(
            "no kubeconfig is set, and this process does not run in a pod (KUBERNETES_SERVICE_HOST is not set): "
            "set --kubeconfig"
        )
    try:
        client = await asyncio.to_thread(_make_client, kubeconfig)
    except Exception as error:  # lightkube raises anything for a malformed file
        raise _unusable(kubeconfig, error) from error
    async with client:
        yield client


_ONE_AT_A_TIME = threading.Lock()


def _make_client(kubeconfig: Path | None) -> httpx2.AsyncClient:
    """In a thread: where no authority is named, all of the system's are read, which takes 45 ms.

    One at a time: msgspec, by which lightkube reads its values, ends the process with a signal when two threads use a
    type for the first time at once (seen with 0.22.0).
    """
    with _ONE_AT_A_TIME:
        config = _load_config(kubeconfig)
    client = client_adapter.AsyncClient(config, client_adapter.ConnectionParams(httpx2.Timeout(REQUEST_TIMEOUT)))
    if config.user is not None and config.user.token_file:
        client.auth = _TokenFile(config.abs_file(config.user.token_file))
    elif config.user is not None and config.user.exec and not config.user.token:
        client.auth = ExecPlugin(config, config.user.exec)
    client.headers["Accept-Encoding"] = "identity"  # a compressed body could expand without limit
    return client


def _load_config(kubeconfig: Path | None) -> SingleConfig:
    """The address of the API server and our credentials. May raise any Exception.

    lightkube and OpenSSL read without a limit, and block on a FIFO. So each file is read here first, safely.
    """
    if kubeconfig is None:
        for name in ("token", "namespace", "ca.crt"):
            files.read(SERVICE_ACCOUNT / name, LARGEST_FILE)
        config = KubeConfig.from_service_account(SERVICE_ACCOUNT).get()
        assert config is not None  # no default is given to `get`
    else:
        path = kubeconfig.expanduser()
        config = parse_kubeconfig(files.read(path, LARGEST_FILE), path)
    user = config.user
    named = (config.cluster.certificate_auth, *((user.client_cert, user.client_key, user.token_file) if user else ()))
    for name in filter(None, named):
        files.read(config.abs_file(name), LARGEST_FILE)
    return config


def _unusable(kubeconfig: Path | None, error: Exception) -> ApiServerError:
    """What keeps a kubeconfig, or what a pod has instead, from being used."""
    path = kubeconfig or SERVICE_ACCOUNT
    if isinstance(error, ConfigError):
        reason = str(error)
    elif isinstance(error, OSError) and error.strerror:
        name = "" if error.filename is None else os.fspath(error.filename)
        reason = f"{name}: {error.strerror}" if name not in ("", os.fspath(path.expanduser())) else error.strerror
    else:
        reason = f"{type(error).__name__}: {error}"
    return ApiServerError(f"{path} cannot be used: {reason}")


def own_namespace(kubeconfig: Path | None) -> str:
    """The namespace that the agent is in: that of its pod, or of the context of the kubeconfig. Raises
    ApiServerError."""
    try:
        return _load_config(kubeconfig).namespace
    except Exception as error:  # lightkube raises anything for a malformed file
        raise _unusable(kubeconfig, error) from error


class _TokenFile(httpx2.Auth):
    """Adds the token that kubelet renews. If it is refused the file is read again."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path, self._bearer = path, ""

    def auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        if self._bearer:
            request.headers["Authorization"] = self._bearer
            if (yield request).status_code != httpx2.codes.UNAUTHORIZED:
                return
        self._bearer = f"Bearer {files.read(self._path, LARGEST_FILE).decode().strip()}"
        request.headers["Authorization"] = self._bearer
        yield request


async def list_objects(client: httpx2.AsyncClient, path: str, fields: str) -> ListOf[Object]:
    """The metadata of the objects of a collection that a field selector chooses. Raises ApiServerError."""

    def request(page: Mapping[str, str]) -> httpx2.Request:
        return _metadata_request(client, path, "PartialObjectMetadataList", fields, page)

    return await _list(client, path, request, Object, _Bounds(LARGEST_LIST, LONGEST_LIST))


async def list_whole(client: httpx2.AsyncClient, path: str, fields: str, shape: type[T]) -> ListOf[T]:
    """The same objects, each decoded into a struct that has some of its fields. Raises ApiServerError."""
    bounds = _Bounds(LARGEST_LIST, LONGEST_LIST)
    return await _list(client, path, lambda page: _whole_request(client, path, fields, page), shape, bounds)


async def list_pages(client: httpx2.AsyncClient, path: str, shape: type[T], fields: str = "", most: int = 0) -> list[T]:
    """The objects of a whole cluster, decoded in the same way. Raises ApiServerError, also for more than `most` objects
    (0: any number)."""
    bounds = _Bounds(LARGEST_CLUSTER, LONGEST_CLUSTER, most)
    return (await _list(client, path, lambda page: _whole_request(client, path, fields, page), shape, bounds)).items


class _Bounds(NamedTuple):
    """Of a list, with all its pages. `most`: objects; 0: any number."""

    most_bytes: int
    most_seconds: float
    most: int = 0


class _Pages:
    """What the pages of one list have taken so far: a server may go on with them for ever."""

    def __init__(self, where: str, bounds: _Bounds) -> None:
        self._where, self._left, self._until = where, bounds.most_bytes, time.monotonic() + bounds.most_seconds
        self._tokens: set[str] = set()

    def add(self, size: int, continue_token: str) -> None:
        """Count a page that is not the last one. Raises ApiServerError for a list that is too large, too slow, or in a
        circle."""
        self._left -= size
        if continue_token in self._tokens:
            raise ApiServerError(f"{self._where} goes on with a page that it gave before: the list has no end")
        if self._left < 0 or time.monotonic() > self._until:
            raise ApiServerError(f"{self._where} gives a list without an end: it is too large, or takes too long")
        self._tokens.add(continue_token)


RequestOf = Callable[[Mapping[str, str]], httpx2.Request]
"""The request of a page, by its parameters."""


async def _list(
    client: httpx2.AsyncClient, path: str, request: RequestOf, shape: type[T], bounds: _Bounds
) -> ListOf[T]:
    """A list in pages. One that has expired (410) begins anew, twice. Raises ApiServerError."""
    for _ in range(2):
        with suppress(_ListExpired):
            return await _list_once(client, path, request, shape, bounds)
    return await _list_once(client, path, request, shape, bounds)


async def _list_once(
    client: httpx2.AsyncClient, path: str, request: RequestOf, shape: type[T], bounds: _Bounds
) -> ListOf[T]:
    """A page that is too large is asked for again in smaller ones. Raises ApiServerError."""
    items, limit, following = list[T](), PAGE, ""
    pages = _Pages(f"{client.base_url} at {path}", bounds)
    while True:
        page = {"limit": f"{limit}"} | ({"continue": following} if following else {})
        try:
            async with _within_deadline(client), _open_response(client, request(page)) as answer:
                body = await _read_body(answer)
                found: ListOf[T] = msgspec.json.decode(body, type=ListOf[shape])  # type: ignore[valid-type]
        except _AnswerTooLarge:
            if limit == 1:
                raise
            limit = max(limit // 4, 1)
            continue
        except ApiServerError as error:
            if error.code == httpx2.codes.GONE and following:
                raise _ListExpired(f"{error}", error.code) from None
            raise
        items += found.items
        if bounds.most and len(items) > bounds.most:
            raise ApiServerError(f"{client.base_url} has more than {bounds.most} objects at {path}")
        if not (following := found.metadata.continue_token):
            return ListOf(found.metadata, items)
        pages.add(max(len(body), SMALLEST_PIECE if found.items else EMPTY_PAGE), following)


async def get_object(client: httpx2.AsyncClient, path: str, shape: type[T]) -> T:
    """One object, decoded into a struct that has some of its fields. Raises ApiServerError."""
    request = client.build_request("GET", path, headers={"Accept": "application/json"})
    async with _within_deadline(client), _open_response(client, request) as answer:
        return msgspec.json.decode(await _read_body(answer), type=shape)


async def send_object(
    client: httpx2.AsyncClient,
    method: Literal["POST", "PATCH", "DELETE"],
    path: str,
    body: Any = None,
    content_type: str = "",
    parameters: Mapping[str, str] = {},
    shape: type[T] | None = None,
) -> T | None:
    """Create an object in a collection, change one by a patch (a strategic merge patch by default), or delete one.
    Raises ApiServerError.

    After an ApiServerError without a code it is not known whether the server has done it. `shape`: a struct with some
    fields of the object, into which it is decoded as the server keeps it; None: nobody wants to know.
    """
    kind = content_type or (STRATEGIC_PATCH if method == "PATCH" else JSON)
    headers = {"Accept": JSON, "Content-Type": kind}
    content = b"" if body is None else msgspec.json.encode(body)
    request = client.build_request(method, path, params=dict(parameters), content=content, headers=headers)
    async with _within_deadline(client), _open_response(client, request) as answer:
        return None if shape is None else msgspec.json.decode(await _read_body(answer), type=shape)


async def apply_object(
    client: httpx2.AsyncClient, path: str, body: Any, manager: str = FIELD_MANAGER
) -> tuple[tuple[str, str], ...]:
    """Server-side apply: all that a manager of ours means of an object. What it meant before and means no more goes.

    What somebody else manages is taken over, and returned: who managed it, as the server says it, and the field. Raises
    Away.
    """
    ours = {"fieldManager": manager}
    try:
        await send_object(client, "PATCH", path, body, APPLY, ours)
    except ApiServerError as error:
        if not error.conflicts:
            raise
        await send_object(client, "PATCH", path, body, APPLY, {**ours, "force": "true"})
        return error.conflicts
    return ()


async def get_metadata(client: httpx2.AsyncClient, path: str, shape: type[T]) -> T:
    """The metadata of one object, decoded into a struct that has some of its fields. Raises ApiServerError."""
    accept = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
    request = client.build_request("GET", path, headers={"Accept": accept})
    async with _within_deadline(client), _open_response(client, request) as answer:
        return msgspec.json.decode(await _read_body(answer), type=shape)


@asynccontextmanager
async def _within_deadline(client: httpx2.AsyncClient) -> AsyncIterator[None]:
    """Limit the time of a request, and turn each error into an ApiServerError."""
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT):
            yield
    except TimeoutError:
        raise ApiServerError(_describe_timeout(client)) from None
    except httpx2.HTTPError as error:
        raise ApiServerError(f"{client.base_url}: {_describe_root_cause(error)}") from None
    except UNREADABLE as error:
        raise ApiServerError(f"{client.base_url} does not answer as an API server does: {error}") from None


def _metadata_request(
    client: httpx2.AsyncClient,
    path: str,
    shape: str,
    fields: str,
    parameters: Mapping[str, str] = {},
    read_timeout: float = REQUEST_TIMEOUT,
) -> httpx2.Request:
    """A request for metadata."""
    return client.build_request(
        "GET",
        path,
        params={"fieldSelector": fields, **parameters},
        headers={"Accept": f"application/json;as={shape};g=meta.k8s.io;v=v1,application/json"},
        timeout=httpx2.Timeout(REQUEST_TIMEOUT, read=read_timeout),
    )


def _whole_request(
    client: httpx2.AsyncClient,
    path: str,
    fields: str,
    parameters: Mapping[str, str],
    read_timeout: float = REQUEST_TIMEOUT,
) -> httpx2.Request:
    """A request for whole objects."""
    return client.build_request(
        "GET",
        path,
        params={**({"fieldSelector": fields} if fields else {}), **parameters},
        headers={"Accept": JSON},
        timeout=httpx2.Timeout(REQUEST_TIMEOUT, read=read_timeout),
    )


@asynccontextmanager
async def watch_objects(
    client: httpx2.AsyncClient, path: str, fields: str, version: str
) -> AsyncIterator[AsyncIterator[Event]]:
    """The changes of a collection after a version, until the stream ends. Entered once it is open. Raises
    ApiServerError."""
    life = random.uniform(*STREAM_LIFETIME)  # noqa: S311 (spreads load; no secret)
    request = _metadata_request(client, path, "PartialObjectMetadata", fields, _watch(version, life), STREAM_TIMEOUT)
    async with _open_stream(client, request, life) as answer:
        yield _decode_events(answer, Event)


@asynccontextmanager
async def watch_whole(
    client: httpx2.AsyncClient, path: str, fields: str, version: str, shape: type[T], lifetime: tuple[float, float]
) -> AsyncIterator[AsyncIterator[EventOf[T]]]:
    """The same of whole objects, each decoded into a struct that has some of its fields; for as long as that."""
    life = random.uniform(*lifetime)  # noqa: S311 (spreads load; no secret)
    request = _whole_request(client, path, fields, _watch(version, life), STREAM_TIMEOUT)
    async with _open_stream(client, request, life) as answer:
        yield _decode_events(answer, EventOf[shape])  # type: ignore[valid-type]


def _watch(version: str, life: float) -> Mapping[str, str]:
    """The parameters of a watch."""
    bounds = {"resourceVersion": version, "timeoutSeconds": str(math.ceil(life))}
    return {"watch": "true", "allowWatchBookmarks": "true", **bounds}


@asynccontextmanager
async def _open_stream(
    client: httpx2.AsyncClient, request: httpx2.Request, life: float
) -> AsyncIterator[httpx2.Response]:
    try:
        async with asyncio.timeout(life + STREAM_OVERTIME), _open_response(client, request) as answer:
            yield answer
    except TimeoutError:
        log.debug("a watch of %s exceeded its timeout", request.url.path)


async def _read_body(answer: httpx2.Response) -> bytes:
    """The whole body of a response. Raises ApiServerError for one that is larger than any object."""
    content, total = bytearray(), 0
    async for piece in answer.aiter_raw():
        content += piece
        total += max(len(piece), SMALLEST_PIECE)
        if total > LARGEST_ANSWER:
            raise _AnswerTooLarge(
                f"{_url(answer)} answers with more than {LARGEST_ANSWER >> 20} MiB: is it an API server?"
            )
    return bytes(content)


async def _read_lines(answer: httpx2.Response) -> AsyncIterator[bytes]:
    """The whole lines of a stream. Raises ApiServerError for a line that is larger than any object, and for a flood of
    them."""
    rest, total, began = bytearray(), 0, time.monotonic()
    async for piece in answer.aiter_raw():
        total += max(len(piece), SMALLEST_PIECE)
        if total > LARGEST_ANSWER + STREAM_RATE * (time.monotonic() - began):
            raise ApiServerError(
                f"{_url(answer)} sends more data than the changes of a Node need: is it an API server?"
            )
        rest += piece
        if b"\n" in piece:
            *whole, last = bytes(rest).split(b"\n")
            rest = bytearray(last)
            for line in whole:
                yield line
        if len(rest) > LARGEST_ANSWER:
            raise ApiServerError(
                f"{_url(answer)} sends a line of more than {LARGEST_ANSWER >> 20} MiB: is it an API server?"
            )


def _url(answer: httpx2.Response) -> str:
    return str(answer.url.copy_with(query=None))


async def _decode_events(answer: httpx2.Response, shape: type[T]) -> AsyncIterator[T]:
    try:
        async for line in _read_lines(answer):
            if msgspec.json.decode(line, type=_Kind).type == "ERROR":
                log.debug("a watch ended: %r", line)
                return
            yield msgspec.json.decode(line, type=shape)
    except (httpx2.HTTPError, *UNREADABLE) as error:
        log.debug("a watch ended: %r", error)


@asynccontextmanager
async def _open_response(client: httpx2.AsyncClient, request: httpx2.Request) -> AsyncIterator[httpx2.Response]:
    """A successful response whose head is read. Raises ApiServerError."""
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT):
            answer = await client.send(request, stream=True)
    except (TimeoutError, httpx2.TimeoutException):
        raise ApiServerError(_describe_timeout(client)) from None
    except (httpx2.HTTPError, OSError, ConfigError) as error:
        raise ApiServerError(f"{client.base_url}: {_describe_root_cause(error)}") from None
    try:
        if answer.status_code not in (httpx2.codes.OK, httpx2.codes.CREATED):
            raise await _read_refusal(client, answer)
        yield answer
    finally:
        await answer.aclose()


async def _read_refusal(client: httpx2.AsyncClient, answer: httpx2.Response) -> ApiServerError:
    status = _Status()
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT):
            status = msgspec.json.decode(await _read_body(answer), type=_Status)
    except (TimeoutError, httpx2.HTTPError, ApiServerError, *UNREADABLE):
        pass  # the code is enough
    code = answer.status_code
    causes = (status.details.causes if status.details is not None else None) or ()
    return ApiServerError(
        f"{client.base_url} refuses the request: {code} {clip(status.message or answer.reason_phrase)}"
        f"{ADVICE.get(code, '')}",
        code,
        tuple((each.message, each.field) for each in causes if each.reason == FIELD_CONFLICT),
    )


def _describe_timeout(client: httpx2.AsyncClient) -> str:
    return f"{client.base_url} does not answer within {REQUEST_TIMEOUT:g} s"


def _describe_root_cause(error: BaseException) -> str:
    """The first cause of an error: a library says "all attempts failed", the socket's error says why."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return str(error) or type(error).__name__
