"""The values of a query, read and checked as the real server does.

Sources: apimachinery, pkg/runtime/converter.go and pkg/conversion (numbers, switches), and the checks of options:
pkg/apis/meta/internalversion/validation/validation.go (lists, watches), pkg/apis/meta/v1/validation/validation.go
(writes). A recording of Kubernetes 1.36.2 is in the tests.
"""

import re
from collections.abc import Mapping

from gpuplane.sandbox.apiserver.fielderrors import Errors, forbidden, invalid, required, too_long, unsupported
from gpuplane.sandbox.apiserver.http import Request
from gpuplane.sandbox.apiserver.objects import ResourcePath, StatusError

Query = Mapping[str, str]
INTEGER_LIST_OPTIONS, VERSION_MATCH_OPTION = ("timeoutSeconds", "limit"), "resourceVersionMatch"
OPTIONS_KIND_BY_METHOD = {
    "POST": "CreateOptions",
    "PUT": "UpdateOptions",
    "PATCH": "PatchOptions",
    "DELETE": "DeleteOptions",
}
ALLOWED_OPTION_VALUES = {
    "dryRun": ("All",),
    "fieldValidation": ("", "Ignore", "Warn", "Strict"),
    "propagationPolicy": ("Foreground", "Background", "Orphan"),
}
MAX_FIELD_MANAGER_LENGTH = 128
APPLY_PATCH = "application/apply-patch+yaml"
INT64, UINT64 = range(-(1 << 63), 1 << 63), range(1 << 64)


def content_type(request: Request) -> str:
    """What a client says that it sends."""
    return request.headers.get("content-type", "").partition(";")[0].strip()


def parse_integer_option(query: Query, key: str) -> int:
    """A whole number; 0 where it is not named. Raises StatusError."""
    if key not in query:
        return 0
    try:
        return _parse_go_integer(query[key], r"[+-]?[0-9]+", INT64, "ParseInt")
    except ValueError as error:
        raise StatusError(400, "BadRequest", f"{error}") from None


def parse_boolean_option(query: Query, key: str) -> bool:
    """A truth: all that is not "false" or "0", nothing at all too (convert.go, Convert_Slice_string_To_bool)."""
    return key in query and query[key].lower() not in ("false", "0")


def is_watch(request: Request) -> bool:
    """Whether a client wants a stream."""
    return request.method == "GET" and parse_boolean_option(request.query, "watch")


def parse_version(text: str) -> int:
    """A resourceVersion that a client names. Raises StatusError, as of a watch or of one object."""
    try:
        return _parse_go_integer(text or "0", "[0-9]+", UINT64, "ParseUint")
    except ValueError as error:
        raise StatusError(500, "", f'resourceVersion: Invalid value: "{text}": {error}') from None


def _parse_go_integer(text: str, pattern: str, bounds: range, function: str) -> int:
    """A number as Go reads it. Raises ValueError, in Go's words."""
    if not re.fullmatch(pattern, text):
        raise ValueError(f'strconv.{function}: parsing "{text}": invalid syntax')
    digits = text.lstrip("+-").lstrip("0")
    if (
        len(digits) > len(str(UINT64.stop))
        or (value := int(f"{'-' * text.startswith('-')}{digits or 0}")) not in bounds
    ):
        raise ValueError(f'strconv.{function}: parsing "{text}": value out of range')
    return value


def check_query(request: Request, path: ResourcePath) -> None:
    """Whether the values of a query are ones. Raises StatusError."""
    collection, options = (
        not path.name and request.method in ("GET", "DELETE"),
        OPTIONS_KIND_BY_METHOD.get(request.method, ""),
    )
    for key in (*INTEGER_LIST_OPTIONS * collection, *("gracePeriodSeconds",) * (options == "DeleteOptions")):
        parse_integer_option(request.query, key)
    if collection:
        _raise_if_invalid("ListOptions", (_check_watch if is_watch(request) else _check_list)(request.query))
    if options:
        _raise_if_invalid(options, _check_write(request, options))


def _check_list(query: Query) -> Errors:
    version, match = query.get("resourceVersion", ""), query.get("resourceVersionMatch", "")
    if match and not version:
        yield forbidden(VERSION_MATCH_OPTION, f"{VERSION_MATCH_OPTION} is forbidden unless resourceVersion is provided")
    if match and query.get("continue"):
        yield forbidden(VERSION_MATCH_OPTION, f"{VERSION_MATCH_OPTION} is forbidden when continue is provided")
    if match not in ("Exact", "NotOlderThan", ""):
        yield unsupported(VERSION_MATCH_OPTION, match, ("Exact", "NotOlderThan", ""))
    if match == "Exact" and version == "0":
        yield forbidden(VERSION_MATCH_OPTION, f'{VERSION_MATCH_OPTION} "exact" is forbidden for resourceVersion "0"')
    if "sendInitialEvents" in query:
        yield forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list")


def _check_watch(query: Query) -> Errors:
    match, initial = query.get("resourceVersionMatch", ""), "sendInitialEvents" in query
    if initial and match != "NotOlderThan":
        yield forbidden(
            VERSION_MATCH_OPTION, f"sendInitialEvents requires setting {VERSION_MATCH_OPTION} to NotOlderThan"
        )
    if match and not initial:
        yield forbidden(
            VERSION_MATCH_OPTION, f"{VERSION_MATCH_OPTION} is forbidden for watch unless sendInitialEvents is provided"
        )
    if match not in ("NotOlderThan", ""):
        yield unsupported(VERSION_MATCH_OPTION, match, ("NotOlderThan",))
    if query.get("continue"):
        yield forbidden(VERSION_MATCH_OPTION, f"{VERSION_MATCH_OPTION} is forbidden when continue is provided")


def _check_write(request: Request, options: str) -> Errors:
    query, manager = request.query, request.query.get("fieldManager", "")
    apply = content_type(request) == APPLY_PATCH
    if options == "PatchOptions" and apply and not manager:
        yield required("fieldManager", "is required for apply patch")
    if options == "PatchOptions" and not apply and "force" in query:
        yield forbidden("force", "may not be specified for non-apply patch")
    if options != "DeleteOptions" and len(manager.encode()) > MAX_FIELD_MANAGER_LENGTH:
        yield too_long("fieldManager", MAX_FIELD_MANAGER_LENGTH)
    if options != "DeleteOptions" and not manager.isprintable():
        yield invalid("fieldManager", manager, "invalid character")
    for key in ("dryRun", "propagationPolicy" if options == "DeleteOptions" else "fieldValidation"):
        if key in query and query[key] not in ALLOWED_OPTION_VALUES[key]:
            yield unsupported(key, query[key], ALLOWED_OPTION_VALUES[key])


def _raise_if_invalid(options: str, errors: Errors) -> None:
    """Raises StatusError where there are errors."""
    if not (causes := [each._asdict() for each in errors]):
        return
    texts = [f"{each['field']}: {each['message']}" for each in causes]
    text = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    details = {"group": "meta.k8s.io", "kind": options, "causes": causes}
    raise StatusError(422, "Invalid", f'{options}.meta.k8s.io "" is invalid: {text}', details=details)
