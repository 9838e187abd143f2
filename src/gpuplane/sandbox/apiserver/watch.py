"""One open watch: which changes a client is told, and when its stream ends."""

import asyncio
from collections.abc import AsyncIterator, Iterable

from gpuplane.sandbox.apiserver.objects import Change, Json, Objects, ResourcePath, StatusError
from gpuplane.sandbox.apiserver.queries import parse_boolean_option, parse_integer_option
from gpuplane.sandbox.apiserver.selectors import matches
from gpuplane.sandbox.http import Request


class Watcher:
    """One open stream: what it wants, and what it has still to be sent (None ends it)."""

    def __init__(self, path: ResourcePath, request: Request) -> None:
        self.path, self._request = path, request
        self.queue: asyncio.Queue[Json | None] = asyncio.Queue()

    def start(self, objects: Objects) -> None:
        """Queue what has to be heard first. An expired version is told in the stream, after a 200, as the real server
        tells it (apiserver/pkg/storage/cacher/cacher.go, newErrWatcher). Raises StatusError for what is no watch."""
        version = parse_integer_option(self._request.query, "resourceVersion")
        if not version:
            for each in objects.list(self.path):
                self.queue_change(None, each)
            return
        try:
            self.queue_changes(objects.changes_since(self.path, version))
        except StatusError as refusal:
            self.queue_end(refusal)

    def queue_changes(self, changes: Iterable[Change]) -> None:
        """Queue those of the changes that concern it."""
        for each in changes:
            if self.path.contains(each.path):
                self.queue_change(each.old, each.new)

    def queue_change(self, old: Json | None, new: Json | None) -> None:
        """Queue one change. An object that begins to match was added, one that ceases to was deleted."""
        was, now = (matches(each, self._request.query.get("fieldSelector", "")) for each in (old, new))
        kind = {(False, True): "ADDED", (True, True): "MODIFIED", (True, False): "DELETED"}.get((was, now))
        if kind is None:
            return
        told = new if now else old
        if told is old and new is not None and old is not None:  # as it was, at the version at which it ceased
            told = {**old, "metadata": {**old["metadata"], "resourceVersion": new["metadata"]["resourceVersion"]}}
        self.queue.put_nowait({"type": kind, "object": requested_form(self._request, told)})

    def queue_bookmark(self, version: int) -> None:
        """Queue a bookmark where it is wanted."""
        if parse_boolean_option(self._request.query, "allowWatchBookmarks"):
            head = {"kind": self.path.kind, "apiVersion": self.path.version}
            metadata = {"resourceVersion": str(version), "creationTimestamp": None}
            self.queue.put_nowait({"type": "BOOKMARK", "object": {**head, "metadata": metadata}})

    def queue_end(self, refusal: StatusError | None = None) -> None:
        """Queue the end, after an ERROR where one is given."""
        if refusal is not None:
            self.queue.put_nowait({"type": "ERROR", "object": refusal.status()})
        self.queue.put_nowait(None)

    async def events(self, seconds: float) -> AsyncIterator[Json]:
        """What to send, until the end or the time that the client gave."""
        end = asyncio.get_running_loop().time() + seconds
        while True:
            try:
                async with asyncio.timeout_at(end):
                    event = await self.queue.get()
            except TimeoutError:
                return
            if event is None:
                return
            yield event


def requested_form(request: Request, found: Json | None) -> Json:
    """An object, or its metadata alone where the client asks for no more."""
    assert found is not None
    if "as=PartialObjectMetadata" in request.headers.get("accept", ""):
        return {
            "kind": "PartialObjectMetadata",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": found["metadata"],
        }
    return found
