"""Pages of a list, all of the version that the first page has.

A continue token is what the real server's is (apiserver/pkg/storage/continue.go): base64 of the version, and of the key
at which the next page starts. When the history before that version is forgotten, the token is too old: 410.
"""

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from gpuplane.sandbox.apiserver.objects import Json, Objects, ResourcePath, StatusError
from gpuplane.sandbox.apiserver.queries import parse_integer_option

CONTINUE_VERSION = "meta.k8s.io/v1"


class Page(NamedTuple):
    """One page of a list. `metadata`: of the list."""

    metadata: Json
    items: Sequence[Json]


class _Token(msgspec.Struct):
    v: str
    rv: int
    start: str


def select_page(objects: Objects, path: ResourcePath, query: Mapping[str, str], chosen: Callable[[Json], bool]) -> Page:
    """The page that a client asks for. `chosen`: whether its selector chooses an object. Raises StatusError."""
    limit, token = parse_integer_option(query, "limit"), query.get("continue", "")
    version, start = _parse_token(token) if token else (objects.version, "")
    found = objects.list_at(path, version)
    rest = [each for each in found if chosen(each) and _storage_key(path, each) >= start]
    metadata: Json = {"resourceVersion": str(version)}
    if 0 < limit < len(rest):
        metadata["continue"] = _encode_token(version, f"{_storage_key(path, rest[limit - 1])}\0")
        metadata["remainingItemCount"] = len(rest) - limit
        rest = rest[:limit]
    return Page(metadata, rest)


def _storage_key(path: ResourcePath, found: Json) -> str:
    """What a token names an object by: its place in the collection."""
    metadata = found["metadata"]
    space = metadata.get("namespace", "")
    return f"/{space}/{metadata['name']}" if space and not path.namespace else f"/{metadata['name']}"


def _encode_token(version: int, start: str) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(_Token(CONTINUE_VERSION, version, start))).decode().rstrip("=")


def _parse_token(text: str) -> tuple[int, str]:
    """The version and the key of a token. Raises StatusError."""
    try:
        token = msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=_Token)
    except ValueError as error:  # msgspec.DecodeError is one
        raise StatusError(400, "BadRequest", f"invalid continue token: continue key is not valid: {error}") from None
    return token.rv, token.start
