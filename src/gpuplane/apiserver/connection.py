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

DEADLINE = 15.0  # seconds for one answer, or for the beginning of a stream
SILENCE = 150.0  # seconds
MOST = 4 << 20
"""Bytes of one answer, or of a stream at once. An object has at most 1.5 MiB in etcd, and some more as JSON."""
PACE = 256 << 10
"""Bytes that a stream may have beside that in each second: an object of that size each few seconds."""
LEAST = 1 << 10
"""Bytes that a piece counts for at least, however small: each takes its time."""
MOST_CONFIGURED = 1 << 20
"""Bytes of a kubeconfig, a token or a certificate."""
LIFE = (240.0, 480.0)  # seconds: the shortest and the longest life of a stream, which the server is to end
OVERTIME = 15.0  # seconds after which we end it
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
ADVICE = {
    401: "; its token or certificate is not taken: see the service account or the kubeconfig",
    403: "; grant it what deploy/base/rbac.yaml grants",
}
CONTENT = {"POST": "application/json", "PATCH": "application/strategic-merge-patch+json"}
T = TypeVar("T")
log = logging.getLogger("gpuplane")
logging.getLogger("httpx2").setLevel(logging.WARNING)  # it would say every request; the condition says what matters


class Away(Exception):
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


class Listing(msgspec.Struct):
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
        raise Away("no kubeconfig is given, and this is no pod of a cluster (KUBERNETES_SERVICE_HOST is not set)")
    try:
        config = _configuration(kubeconfig)
        client = client_adapter.AsyncClient(config, client_adapter.ConnectionParams(httpx2.Timeout(DEADLINE)))
        if config.user is not None and config.user.token_file:
            client.auth = _TokenFile(config.abs_file(config.user.token_file))
        elif config.user is not None and config.user.exec and not config.user.token:
            client.auth = ExecPlugin(config, config.user.exec)
        client.headers["Accept-Encoding"] = "identity"  # what is packed has no bound
    except Exception as error:  # lightkube lets through whatever a malformed file makes it raise
        raise Away(f"{kubeconfig or ACCOUNT} cannot be used: {type(error).__name__}: {error}") from error
    async with client:
        yield client


def _configuration(kubeconfig: Path | None) -> SingleConfig:
    """Where the API server is, and who we are. Raises what it likes.

    lightkube and OpenSSL read without a bound, and wait for a FIFO: what they are to read is read here before.
    """
    if kubeconfig is None:
        for name in ("token", "namespace", "ca.crt"):
            files.read(ACCOUNT / name, MOST_CONFIGURED)
        found = KubeConfig.from_service_account(ACCOUNT)
    else:
        path = kubeconfig.expanduser()
        found = KubeConfig.from_dict(yaml.safe_load(files.read(path, MOST_CONFIGURED)), fname=path)
    config = found.get()
    assert config is not None  # no default is given to `get`
    user = config.user
    named = (config.cluster.certificate_auth, *((user.client_cert, user.client_key, user.token_file) if user else ()))
    for name in filter(None, named):
        files.read(config.abs_file(name), MOST_CONFIGURED)
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
        self._bearer = f"Bearer {files.read(self._path, MOST_CONFIGURED).decode().strip()}"
        request.headers["Authorization"] = self._bearer
        yield request


async def listed(client: httpx2.AsyncClient, path: str, fields: str) -> Listing:
    """The objects of a collection that a field selector chooses. Raises Away."""
    async with _in_time(client), _answer(client, _get(client, path, "PartialObjectMetadataList", fields)) as answer:
        return msgspec.json.decode(await _content(answer), type=Listing)


async def found(client: httpx2.AsyncClient, path: str, shape: type[T]) -> T:
    """One whole object, of which the fields of a struct are decoded. Raises Away."""
    request = client.build_request("GET", path, headers={"Accept": "application/json"})
    async with _in_time(client), _answer(client, request) as answer:
        return msgspec.json.decode(await _content(answer), type=shape)


async def sent(client: httpx2.AsyncClient, method: Literal["POST", "PATCH"], path: str, body: Any) -> None:
    """Make an object of a collection, or change one by a strategic merge patch. Raises Away.

    After an Away without a code nobody knows whether the server has done it.
    """
    headers = {"Accept": "application/json", "Content-Type": CONTENT[method]}
    request = client.build_request(method, path, content=msgspec.json.encode(body), headers=headers)
    async with _in_time(client), _answer(client, request):
        pass  # what became of the object is not wanted


@asynccontextmanager
async def _in_time(client: httpx2.AsyncClient) -> AsyncIterator[None]:
    """One whole answer, by the deadline, and one that can be understood."""
    try:
        async with asyncio.timeout(DEADLINE):
            yield
    except TimeoutError:
        raise Away(_silent(client)) from None
    except httpx2.HTTPError as error:
        raise Away(f"{client.base_url}: {_root(error)}") from None
    except msgspec.DecodeError as error:
        raise Away(f"{client.base_url} does not answer as an API server does: {error}") from None


def _get(
    client: httpx2.AsyncClient,
    path: str,
    shape: str,
    fields: str,
    parameters: Mapping[str, str] = {},
    silence: float = DEADLINE,
) -> httpx2.Request:
    """A request for metadata."""
    return client.build_request(
        "GET",
        path,
        params={"fieldSelector": fields, **parameters},
        headers={"Accept": f"application/json;as={shape};g=meta.k8s.io;v=v1,application/json"},
        timeout=httpx2.Timeout(DEADLINE, read=silence),
    )


@asynccontextmanager
async def watched(
    client: httpx2.AsyncClient, path: str, fields: str, version: str
) -> AsyncIterator[AsyncIterator[Event]]:
    """What changes in a collection after a version, until the stream ends. Entered once it is open. Raises Away."""
    life = random.uniform(*LIFE)  # noqa: S311 (spreads load; no secret)
    watch = {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": version,
        "timeoutSeconds": str(math.ceil(life)),
    }
    try:
        async with (
            asyncio.timeout(life + OVERTIME),
            _answer(client, _get(client, path, "PartialObjectMetadata", fields, watch, SILENCE)) as answer,
        ):
            yield _events(answer)
    except TimeoutError:
        log.debug("a stream of %s outlived its time", path)


async def _content(answer: httpx2.Response) -> bytes:
    """The whole of an answer. Raises Away for one that is larger than any object."""
    content, total = bytearray(), 0
    async for piece in answer.aiter_raw():
        content += piece
        total += max(len(piece), LEAST)
        if total > MOST:
            raise Away(f"{_place(answer)} answers with more than {MOST >> 20} MiB: is it an API server?")
    return bytes(content)


async def _lines(answer: httpx2.Response) -> AsyncIterator[bytes]:
    """The whole lines of a stream. Raises Away for a line that is larger than any object, and for a flood of them."""
    rest, total, began = bytearray(), 0, time.monotonic()
    async for piece in answer.aiter_raw():
        total += max(len(piece), LEAST)
        if total > MOST + PACE * (time.monotonic() - began):
            raise Away(f"{_place(answer)} sends more than a Node can change: is it an API server?")
        rest += piece
        if b"\n" in piece:
            *whole, last = bytes(rest).split(b"\n")
            rest = bytearray(last)
            for line in whole:
                yield line
        if len(rest) > MOST:
            raise Away(f"{_place(answer)} sends a line of more than {MOST >> 20} MiB: is it an API server?")


def _place(answer: httpx2.Response) -> str:
    return str(answer.url.copy_with(query=None))


async def _events(answer: httpx2.Response) -> AsyncIterator[Event]:
    try:
        async for line in _lines(answer):
            if msgspec.json.decode(line, type=_Kind).type == "ERROR":
                log.debug("a stream ended: %r", line)
                return
            yield msgspec.json.decode(line, type=Event)
    except (httpx2.HTTPError, msgspec.DecodeError) as error:
        log.debug("a stream ended: %r", error)


@asynccontextmanager
async def _answer(client: httpx2.AsyncClient, request: httpx2.Request) -> AsyncIterator[httpx2.Response]:
    """An answer whose head is read, and that is no refusal. Raises Away."""
    try:
        async with asyncio.timeout(DEADLINE):
            answer = await client.send(request, stream=True)
    except (TimeoutError, httpx2.TimeoutException):
        raise Away(_silent(client)) from None
    except (httpx2.HTTPError, OSError, ConfigError) as error:
        raise Away(f"{client.base_url}: {_root(error)}") from None
    try:
        if answer.status_code not in (httpx2.codes.OK, httpx2.codes.CREATED):
            raise Away(await _refusal(client, answer), answer.status_code)
        yield answer
    finally:
        await answer.aclose()


async def _refusal(client: httpx2.AsyncClient, answer: httpx2.Response) -> str:
    message = ""
    try:
        async with asyncio.timeout(DEADLINE):
            message = msgspec.json.decode(await _content(answer), type=_Status).message
    except (TimeoutError, httpx2.HTTPError, msgspec.DecodeError, Away):
        pass  # the code alone says enough
    code = answer.status_code
    return f"{client.base_url} refuses: {code} {clip(message or answer.reason_phrase)}{ADVICE.get(code, '')}"


def _silent(client: httpx2.AsyncClient) -> str:
    return f"{client.base_url} does not answer within {DEADLINE:g} s"


def _root(error: BaseException) -> str:
    """What an error goes back to: a library says "all attempts failed" where the socket said why."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return str(error) or type(error).__name__
