"""Lists: which version of a collection a client wants, and its pages.

All pages of a list are of one version: the one that the first page has. A continue token is what the real server's is
(apiserver/pkg/storage/continue.go): base64 of the version, and of the key at which the next page starts. When the
history before that version is forgotten, the token is too old: 410, with a token that goes on at the newest version.
"""

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from gpuplane.sandbox.apiserver.objects import Json, Objects, ResourcePath, StatusError
from gpuplane.sandbox.apiserver.queries import parse_integer_option

EXPIRED_TEXT = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)
NEWEST_VERSION = -1
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
    """The page that a client asks for. `chosen`: whether its selectors choose an object. Raises StatusError."""
    limit = max(parse_integer_option(query, "limit"), 0)
    token = query.get("continue", "")
    if token and query.get("resourceVersion", "") not in ("", "0"):
        raise StatusError(400, "BadRequest", "specifying resource version is not allowed when using continue")
    version, start = _parse_token(token) if token else (_requested_version(objects, query), "")
    check_version_reached(objects, version)
    if query.get("resourceVersion") == "0":
        limit = 0  # answered by the watch cache, which makes no pages
    try:
        found = objects.list_at(path, objects.version if version == NEWEST_VERSION else version)
    except StatusError as error:
        more = {"continue": _encode_token(NEWEST_VERSION, start)} if token else {}
        text = EXPIRED_TEXT if token else "The resourceVersion for the provided list is too old."
        raise StatusError(410, "Expired", text, metadata=more) from error
    rest = [each for each in found if chosen(each) and _storage_key(path, each) >= f"/{start.removeprefix('/')}"]
    metadata: Json = {"resourceVersion": str(objects.version if version == NEWEST_VERSION else version)}
    if limit and len(rest) > limit:
        metadata["continue"] = _encode_token(
            int(metadata["resourceVersion"]), f"{_storage_key(path, rest[limit - 1])}\0"
        )
        if not (query.get("fieldSelector") or query.get("labelSelector")):
            metadata["remainingItemCount"] = len(rest) - limit
        rest = rest[:limit]
    return Page(metadata, rest)


def check_version_reached(objects: Objects, version: int) -> None:
    """Whether there is such a version already; a real server waits 3 s for it. Raises StatusError."""
    if version > objects.version:
        text = f"Timeout: Too large resource version: {version}, current: {objects.version}"
        cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
        raise StatusError(504, "Timeout", text, details={"causes": [cause], "retryAfterSeconds": 1})


def _requested_version(objects: Objects, query: Mapping[str, str]) -> int:
    version = parse_integer_option(query, "resourceVersion")
    return version if query.get("resourceVersionMatch") == "Exact" else max(version, objects.version)


def _storage_key(path: ResourcePath, found: Json) -> str:
    """What a token names an object by: its place in the collection."""
    metadata: dict[str, Any] = found["metadata"]
    space = metadata.get("namespace", "")
    return f"/{space}/{metadata['name']}" if space and not path.namespace else f"/{metadata['name']}"


def _encode_token(version: int, start: str) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(_Token(CONTINUE_VERSION, version, start))).decode().rstrip("=")


def _parse_token(text: str) -> tuple[int, str]:
    """The version and the key of a token (apiserver/pkg/storage/continue.go, DecodeContinue). Raises StatusError."""
    try:
        token = msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=_Token)
    except ValueError as error:  # msgspec.DecodeError is one
        raise StatusError(400, "BadRequest", f"invalid continue token: continue key is not valid: {error}") from None
    return token.rv, token.start
