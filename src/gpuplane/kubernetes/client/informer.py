"""One collection of the API server, followed for ever: listed, then watched, then listed again where that is needed.

- The end of a stream says nothing about the server: it was dropped, it was silent, or its time was over. The next one
  goes on from the version that was seen last, which bookmarks keep young.
- When that version is forgotten (410), when an answer cannot be read, and when the last list is old, there is a new
  list. It shows what no stream tells: a server that was restored from a backup.
- After a failure, and after a stream, there is a pause (`retry`). Credentials are read again for each stream: their
  files are renewed while we run.
- Memory is bounded: pages, lines and lists have largest sizes, and no object is kept here.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from gpuplane.base.tasks import run_until
from gpuplane.kubernetes.client import connect
from gpuplane.kubernetes.client.errors import ApiServerError, WatchExpired
from gpuplane.kubernetes.client.retry import RequestPauses
from gpuplane.kubernetes.objects import ObjectMetadata

if TYPE_CHECKING:
    from gpuplane.kubernetes.client.api import ApiClient, Event

log = logging.getLogger("gpuplane")


class HasMetadata(Protocol):
    """Any object of the API."""

    @property
    def metadata(self) -> ObjectMetadata: ...


T = TypeVar("T", bound=HasMetadata)
CHANGE_TYPES = ("ADDED", "MODIFIED", "DELETED")


class Follower(Protocol[T]):
    """Who is told of a collection. What raises ApiServerError is told again, after a pause."""

    async def on_list(self, client: "ApiClient", objects: list[T]) -> None:
        """All its objects, as they are now."""

    def on_watch_started(self, client: "ApiClient") -> None:
        """From now on each change is told as it happens."""

    async def on_change(self, client: "ApiClient", event: "Event[T]") -> None:
        """An object was ADDED, MODIFIED or DELETED."""

    def on_failure(self, error: ApiServerError) -> float:
        """The server does not answer, or refuses; what was told before may be old. Returns how many seconds to pause at
        least."""


class Informer(Generic[T]):
    """Follows the objects of a collection that a field selector chooses, each decoded into a struct `shape`.

    `metadata_only`: no other fields are transferred. `lifetime`: how long a stream may last. `list_every`: the age, in
    seconds, at which a list is too old to go on from; 0: there is one before each stream. `wait`: how a pause is made.
    """

    def __init__(
        self,
        kubeconfig: Path | None,
        path: str,
        shape: type[T],
        *,
        fields: str = "",
        metadata_only: bool = False,
        lifetime: tuple[float, float] | None = None,
        list_every: float = 0.0,
        wait: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._kubeconfig, self._path, self._shape = kubeconfig, path, shape
        self._fields, self._metadata_only, self._lifetime = fields, metadata_only, lifetime
        self._list_every, self._wait = list_every, wait
        self._version, self._listed_at = "", 0.0

    async def run(
        self, follower: Follower[T], meanwhile: Callable[["ApiClient"], Coroutine[Any, Any, object]] | None = None
    ) -> None:
        """Tell a follower, for ever. `meanwhile`: what else is done with the client, from the opening of a stream to
        its end."""
        pauses = RequestPauses()
        while True:
            began, least = time.monotonic(), 0.0
            try:
                async with connect(self._kubeconfig) as client:
                    await self._follow(client, follower, meanwhile)
            except WatchExpired as error:
                log.debug("a watch of %s ended: %s", self._path, error)
                self._version = ""
            except ApiServerError as error:
                least = follower.on_failure(error)
            await self._wait(max(pauses.after_stream(time.monotonic() - began), least))

    async def _follow(
        self,
        client: "ApiClient",
        follower: Follower[T],
        meanwhile: Callable[["ApiClient"], Coroutine[Any, Any, object]] | None,
    ) -> None:
        """One stream, after a list where that is needed. Raises ApiServerError, and WatchExpired."""
        path, shape, fields, metadata_only = self._path, self._shape, self._fields, self._metadata_only
        if not self._version or time.monotonic() - self._listed_at >= self._list_every:
            self._version = ""
            found = await client.list(path, shape, fields=fields, metadata_only=metadata_only)
            await follower.on_list(client, found.items)
            self._version, self._listed_at = found.version, time.monotonic()
        async with client.watch(
            path, shape, self._version, fields=fields, metadata_only=metadata_only, lifetime=self._lifetime
        ) as events:
            follower.on_watch_started(client)
            telling = self._tell(client, follower, events)
            await (run_until(meanwhile(client), telling) if meanwhile is not None else telling)

    async def _tell(self, client: "ApiClient", follower: Follower[T], events: AsyncIterator["Event[T]"]) -> None:
        async for event in events:
            if event.type in CHANGE_TYPES:
                await follower.on_change(client, event)
            self._version = event.object.metadata.resource_version
