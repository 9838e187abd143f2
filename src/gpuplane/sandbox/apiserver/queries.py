"""What the query and the headers of a request say."""

from collections.abc import Mapping

from gpuplane.sandbox.apiserver.objects import StatusError
from gpuplane.sandbox.http import Request

Query = Mapping[str, str]


def content_type(request: Request) -> str:
    """What a client says that it sends."""
    return request.headers.get("content-type", "").partition(";")[0].strip()


def parse_integer_option(query: Query, key: str) -> int:
    """A whole number; 0 where it is not named. Raises StatusError."""
    try:
        return int(query.get(key) or 0)
    except ValueError:
        raise StatusError(400, "BadRequest", f"{key}: {query[key]!r} is no whole number") from None


def parse_boolean_option(query: Query, key: str) -> bool:
    """A truth: all that is not "false" or "0" (apimachinery/pkg/conversion, Convert_Slice_string_To_bool)."""
    return key in query and query[key].lower() not in ("false", "0")


def is_watch(request: Request) -> bool:
    """Whether a client wants a stream."""
    return request.method == "GET" and parse_boolean_option(request.query, "watch")
