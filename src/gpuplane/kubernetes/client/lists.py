"""Lists in pages: each is decoded before the next is asked for; only the fields that a struct declares are kept."""

import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Generic, Literal, NamedTuple, TypeVar

import msgspec

from gpuplane.kubernetes.client.errors import AnswerTooLarge, ApiServerError, ListExpired
from gpuplane.kubernetes.client.streams import MIN_PIECE_BYTES
from gpuplane.kubernetes.objects import NOT_DECODED, ListMetadata, decode_objects

PAGE_SIZE = 200
"""Objects of a list that one answer has."""
MAX_LIST_BYTES, MAX_LIST_SECONDS = 64 << 20, 60.0
"""Bytes and seconds of a list of what concerns one node, with all its pages."""
MAX_CLUSTER_LIST_BYTES, MAX_CLUSTER_LIST_SECONDS = 1 << 30, 600.0
"""The same of a list of what a whole cluster has."""
EMPTY_PAGE_BYTES = 256 << 10
"""The bytes that a page without objects counts for. An API server fills its pages (apiserver, storage/etcd3/store.go,
GetList); a proxy that leaves out what a user may not see does not."""
GONE = 410
T = TypeVar("T")
ListSizeLimit = Literal["node", "cluster"]
"""How much a list may have: what concerns one node, or a whole cluster."""
ReadPage = Callable[[Mapping[str, str]], Awaitable[bytes]]
"""Asks for a page by its parameters. Raises ApiServerError."""


class ObjectList(NamedTuple, Generic[T]):
    """The objects of a collection at one of its versions. `unreadable`: of the others their name, or kind and place, →
    what is wrong."""

    version: str
    items: list[T]
    unreadable: dict[str, str]


class _Page(msgspec.Struct, Generic[T]):
    metadata: ListMetadata
    items: list[T] | None  # null in a PartialObjectMetadataList that is empty


class ListReader(Generic[T]):
    """Reads the pages of one list.

    `where`: the collection, for messages. `kind`: what an object of it is called: one that cannot be read is passed
    over; "": it makes the whole list unreadable. `max_objects`: how many objects it may have; 0: any number.
    """

    def __init__(
        self, where: str, shape: type[T], size_limit: ListSizeLimit = "node", kind: str = "", max_objects: int = 0
    ) -> None:
        self._where, self._kind, self._max_objects = where, kind, max_objects
        self._shape = shape
        self._bounds = (
            (MAX_LIST_BYTES, MAX_LIST_SECONDS)
            if size_limit == "node"
            else (MAX_CLUSTER_LIST_BYTES, MAX_CLUSTER_LIST_SECONDS)
        )

    async def read(self, ask: ReadPage) -> ObjectList[T]:
        """All pages. A list that has expired (410) begins anew, twice. Raises ApiServerError."""
        for _ in range(2):
            with suppress(ListExpired):
                return await self._read_once(ask)
        return await self._read_once(ask)

    async def _read_once(self, ask: ReadPage) -> ObjectList[T]:
        """A page that is too large is asked for again in smaller ones. Raises ApiServerError."""
        found, limit, following = ObjectList[T]("", [], {}), PAGE_SIZE, ""
        taken = _Taken(self._where, *self._bounds)
        while True:
            try:
                body = await ask({"limit": f"{limit}"} | ({"continue": following} if following else {}))
            except AnswerTooLarge:
                if limit == 1:
                    raise
                limit = max(limit // 4, 1)
                continue
            except ApiServerError as error:
                if error.code == GONE and following:
                    raise ListExpired(f"{error}", error.code) from None
                raise
            metadata, count = self._decode(body, found)
            if self._max_objects and len(found.items) + len(found.unreadable) > self._max_objects:
                raise ApiServerError(f"{self._where} has more than {self._max_objects} objects")
            if not (following := metadata.continue_token):
                return found._replace(version=metadata.resource_version)
            taken.add(max(len(body), MIN_PIECE_BYTES if count else EMPTY_PAGE_BYTES), following)

    def _decode(self, body: bytes, found: ObjectList[T]) -> tuple[ListMetadata, int]:
        """Add the objects of a page to those that were found; (its metadata, how many objects it has)."""
        try:
            page: _Page[T] = msgspec.json.decode(body, type=_Page[self._shape])  # type: ignore[name-defined]
        except NOT_DECODED:
            if not self._kind:
                raise
        else:
            found.items.extend(page.items or ())
            return page.metadata, len(page.items or ())
        raw = msgspec.json.decode(body, type=_Page[msgspec.Raw])
        before = len(found.items) + len(found.unreadable)
        items, unreadable = decode_objects(raw.items or (), self._shape, self._kind, before)
        found.items.extend(items)
        found.unreadable.update(unreadable)
        return raw.metadata, len(raw.items or ())


class _Taken:
    """What the pages of one list have taken so far: a server may go on with them for ever."""

    def __init__(self, where: str, most_bytes: int, most_seconds: float) -> None:
        self._where, self._left, self._until = where, most_bytes, time.monotonic() + most_seconds
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
