"""A connection to the API server: one collection listed, then watched; one object read or written.

lightkube reads the configuration, in a cluster or from a kubeconfig, and signs the requests: a token that kubelet has
renewed is read again when the old one is refused. Its own watch is not used, for what it does when things go wrong: a
stream that ends at once is opened again without a pause, a connection that died silently is waited for without end, and
every heartbeat of a Node is sent and decoded whole. Here:

- Nothing waits for ever. A request has a deadline; a stream has a longest life, chosen at random so that the agents of
  a cluster do not all come back together; and one that is silent for longer than the server's bookmarks are apart
  (a minute, apiserver/pkg/storage/cacher/cacher.go) is given up.
- The end of a stream says nothing about the server, however it came: dropped, expired (410), or by the server's own
  clock. Whoever watches lists again, and the list tells how the server stands.
- Of what is watched only metadata crosses the wire (`as=PartialObjectMetadata`), and only the fields named are decoded.

Importing this module costs 17 MB and 100 ms: it is for agents that have an API server, and off the start path.
"""

import asyncio
import logging
import math
import os
import random
import time
from collections.abc import AsyncIterator, Generator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar

import httpx2
import msgspec
import yaml
from lightkube import ConfigError, KubeConfig, SingleConfig
from lightkube.config import client_adapter

from gpuplane import files
from gpuplane.apiserver.credentials import ExecPlugin
from gpuplane.core.text import clip

REQUEST_TIMEOUT = 15.0  # seconds for one answer, or for the beginning of a stream
STREAM_TIMEOUT = 150.0  # seconds
LARGEST_ANSWER = 4 << 20
"""Bytes of one answer, or of a stream at once. An object has at most 1.5 MiB in etcd, and some more as JSON."""
STREAM_RATE = 256 << 10
"""Bytes that a stream may have beside that in each second: an object of that size each few seconds."""
SMALLEST_PIECE = 1 << 10
"""Bytes that a piece counts for at least, however small: each takes its time."""
LARGEST_FILE = 1 << 20
"""Bytes of a kubeconfig, a token or a certificate."""
STREAM_LIFETIME = (240.0, 480.0)  # seconds: the shortest and the longest life of a stream, which the server is to end
STREAM_OVERTIME = 15.0  # seconds after which we end it
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
ADVICE = {
    401: "; its token or certificate is not taken: see the service account or the kubeconfig",
    403: "; grant it what deploy/base/rbac.yaml grants",
}
CONTENT_TYPES = {"POST": "application/json", "PATCH": "application/strategic-merge-patch+json"}
T = TypeVar("T")
log = logging.getLogger("gpuplane")
logging.getLogger("httpx2").setLevel(logging.WARNING)  # it would say every request; the condition says what matters


class ApiServerError(Exception):
    """The API server gave no word: who, what went wrong, and what to do. `code`: the status of a refusal, else 0."""

    def __init__(self, reason: str, code: int = 0) -> None:
        super().__init__(reason)
        self.code = code


class Metadata(msgspec.Struct):
    """What is read of an object's or a list's metadata."""

    name: str = ""
    resourceVersion: str = ""  # noqa: N815 (the wire's name)
    labels: Mapping[str, str] | None = None
    annotations: Mapping[str, str] | None = None


class Object(msgspec.Struct):
    """Any object."""

    metadata: Metadata


class ObjectList(msgspec.Struct):
    """A list as of one version of the collection."""

    metadata: Metadata
    items: list[Object]


class Event(msgspec.Struct):
    """One line of a watch: ADDED, MODIFIED, DELETED or BOOKMARK; an ERROR ends the stream and is not shown."""

    type: str
    object: Object


class _Kind(msgspec.Struct):
    type: str


class _Status(msgspec.Struct):
    message: str = ""


@asynccontextmanager
async def connect(kubeconfig: Path | None) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of the API server that a kubeconfig names, or else of the cluster that we run in. Raises Away."""
    if kubeconfig is None and "KUBERNETES_SERVICE_HOST" not in os.environ:
        raise ApiServerError(
            "no kubeconfig is given, and this is no pod of a cluster (KUBERNETES_SERVICE_HOST is not set)"
        )
    try:
        config = _load_config(kubeconfig)
        client = client_adapter.AsyncClient(config, client_adapter.ConnectionParams(httpx2.Timeout(REQUEST_TIMEOUT)))
        if config.user is not None and config.user.token_file:
            client.auth = _TokenFile(config.abs_file(config.user.token_file))
        elif config.user is not None and config.user.exec and not config.user.token:
            client.auth = ExecPlugin(config, config.user.exec)
        client.headers["Accept-Encoding"] = "identity"  # what is packed has no bound
    except Exception as error:  # lightkube lets through whatever a malformed file makes it raise
        raise ApiServerError(
            f"{kubeconfig or SERVICE_ACCOUNT} cannot be used: {type(error).__name__}: {error}"
        ) from error
    async with client:
        yield client


def _load_config(kubeconfig: Path | None) -> SingleConfig:
    """Where the API server is, and who we are. Raises what it likes.

    lightkube and OpenSSL read without a bound, and wait for a FIFO: what they are to read is read here before.
    """
    if kubeconfig is None:
        for name in ("token", "namespace", "ca.crt"):
            files.read(SERVICE_ACCOUNT / name, LARGEST_FILE)
        get_object = KubeConfig.from_service_account(SERVICE_ACCOUNT)
    else:
        path = kubeconfig.expanduser()
        get_object = KubeConfig.from_dict(yaml.safe_load(files.read(path, LARGEST_FILE)), fname=path)
    config = get_object.get()
    assert config is not None  # no default is given to `get`
    user = config.user
    named = (config.cluster.certificate_auth, *((user.client_cert, user.client_key, user.token_file) if user else ()))
    for name in filter(None, named):
        files.read(config.abs_file(name), LARGEST_FILE)
    return config


class _TokenFile(httpx2.Auth):
    """Signs by a token that kubelet renews: one that is refused is read again."""

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


async def list_objects(client: httpx2.AsyncClient, path: str, fields: str) -> ObjectList:
    """The objects of a collection that a field selector chooses. Raises Away."""
    async with (
        _within_deadline(client),
        _open_response(client, _metadata_request(client, path, "PartialObjectMetadataList", fields)) as answer,
    ):
        return msgspec.json.decode(await _read_body(answer), type=ObjectList)


async def get_object(client: httpx2.AsyncClient, path: str, shape: type[T]) -> T:
    """One whole object, of which the fields of a struct are decoded. Raises Away."""
    request = client.build_request("GET", path, headers={"Accept": "application/json"})
    async with _within_deadline(client), _open_response(client, request) as answer:
        return msgspec.json.decode(await _read_body(answer), type=shape)


async def send_object(client: httpx2.AsyncClient, method: Literal["POST", "PATCH"], path: str, body: Any) -> None:
    """Make an object of a collection, or change one by a strategic merge patch. Raises Away.

    After an Away without a code nobody knows whether the server has done it.
    """
    headers = {"Accept": "application/json", "Content-Type": CONTENT_TYPES[method]}
    request = client.build_request(method, path, content=msgspec.json.encode(body), headers=headers)
    async with _within_deadline(client), _open_response(client, request):
        pass  # what became of the object is not wanted


@asynccontextmanager
async def _within_deadline(client: httpx2.AsyncClient) -> AsyncIterator[None]:
    """One whole answer, by the deadline, and one that can be understood."""
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT):
            yield
    except TimeoutError:
        raise ApiServerError(_describe_timeout(client)) from None
    except httpx2.HTTPError as error:
        raise ApiServerError(f"{client.base_url}: {_describe_root_cause(error)}") from None
    except msgspec.DecodeError as error:
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


@asynccontextmanager
async def watch_objects(
    client: httpx2.AsyncClient, path: str, fields: str, version: str
) -> AsyncIterator[AsyncIterator[Event]]:
    """What changes in a collection after a version, until the stream ends. Entered once it is open. Raises Away."""
    life = random.uniform(*STREAM_LIFETIME)  # noqa: S311 (spreads load; no secret)
    watch = {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": version,
        "timeoutSeconds": str(math.ceil(life)),
    }
    try:
        async with (
            asyncio.timeout(life + STREAM_OVERTIME),
            _open_response(
                client, _metadata_request(client, path, "PartialObjectMetadata", fields, watch, STREAM_TIMEOUT)
            ) as answer,
        ):
            yield _decode_events(answer)
    except TimeoutError:
        log.debug("a stream of %s outlived its time", path)


async def _read_body(answer: httpx2.Response) -> bytes:
    """The whole of an answer. Raises Away for one that is larger than any object."""
    content, total = bytearray(), 0
    async for piece in answer.aiter_raw():
        content += piece
        total += max(len(piece), SMALLEST_PIECE)
        if total > LARGEST_ANSWER:
            raise ApiServerError(
                f"{_url(answer)} answers with more than {LARGEST_ANSWER >> 20} MiB: is it an API server?"
            )
    return bytes(content)


async def _read_lines(answer: httpx2.Response) -> AsyncIterator[bytes]:
    """The whole lines of a stream. Raises Away for a line that is larger than any object, and for a flood of them."""
    rest, total, began = bytearray(), 0, time.monotonic()
    async for piece in answer.aiter_raw():
        total += max(len(piece), SMALLEST_PIECE)
        if total > LARGEST_ANSWER + STREAM_RATE * (time.monotonic() - began):
            raise ApiServerError(f"{_url(answer)} sends more than a Node can change: is it an API server?")
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


async def _decode_events(answer: httpx2.Response) -> AsyncIterator[Event]:
    try:
        async for line in _read_lines(answer):
            if msgspec.json.decode(line, type=_Kind).type == "ERROR":
                log.debug("a stream ended: %r", line)
                return
            yield msgspec.json.decode(line, type=Event)
    except (httpx2.HTTPError, msgspec.DecodeError) as error:
        log.debug("a stream ended: %r", error)


@asynccontextmanager
async def _open_response(client: httpx2.AsyncClient, request: httpx2.Request) -> AsyncIterator[httpx2.Response]:
    """An answer whose head is read, and that is no refusal. Raises Away."""
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT):
            answer = await client.send(request, stream=True)
    except (TimeoutError, httpx2.TimeoutException):
        raise ApiServerError(_describe_timeout(client)) from None
    except (httpx2.HTTPError, OSError, ConfigError) as error:
        raise ApiServerError(f"{client.base_url}: {_describe_root_cause(error)}") from None
    try:
        if answer.status_code not in (httpx2.codes.OK, httpx2.codes.CREATED):
            raise ApiServerError(await _describe_refusal(client, answer), answer.status_code)
        yield answer
    finally:
        await answer.aclose()


async def _describe_refusal(client: httpx2.AsyncClient, answer: httpx2.Response) -> str:
    message = ""
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT):
            message = msgspec.json.decode(await _read_body(answer), type=_Status).message
    except (TimeoutError, httpx2.HTTPError, msgspec.DecodeError, ApiServerError):
        pass  # the code alone says enough
    code = answer.status_code
    return f"{client.base_url} refuses: {code} {clip(message or answer.reason_phrase)}{ADVICE.get(code, '')}"


def _describe_timeout(client: httpx2.AsyncClient) -> str:
    return f"{client.base_url} does not answer within {REQUEST_TIMEOUT:g} s"


def _describe_root_cause(error: BaseException) -> str:
    """What an error goes back to: a library says "all attempts failed" where the socket said why."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return str(error) or type(error).__name__
