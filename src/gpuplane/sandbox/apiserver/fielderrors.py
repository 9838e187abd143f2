"""What is wrong with a field of an object, and the rules for names, in the words of the real server.

Sources: k8s.io/apimachinery, pkg/util/validation/field/errors.go, pkg/api/validate/content, pkg/util/validation.
"""

import ipaddress
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

LABEL_PATTERN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
SUBDOMAIN_PATTERN = rf"{LABEL_PATTERN}(\.{LABEL_PATTERN})*"
QUALIFIED_NAME_PATTERN = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
LABEL_VALUE_PATTERN = rf"({QUALIFIED_NAME_PATTERN})?"
C_IDENTIFIER_PATTERN = r"[A-Za-z_][A-Za-z0-9_]*"
LABEL_TEXT = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    f"an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '{LABEL_PATTERN}')"
)
SUBDOMAIN_TEXT = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    f"end with an alphanumeric character (e.g. 'example.com', regex used for validation is '{SUBDOMAIN_PATTERN}')"
)
QUALIFIED_NAME_TEXT = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character "
    f"(e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '{QUALIFIED_NAME_PATTERN}')"
)
LABEL_VALUE_TEXT = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    f"'({QUALIFIED_NAME_PATTERN})?')"
)
C_IDENTIFIER_TEXT = (
    "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric characters "
    f"or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation is '{C_IDENTIFIER_PATTERN}')"
)


class FieldError(NamedTuple):
    """One cause of a Status 422: its code, what is wrong, and where."""

    reason: str
    message: str
    field: str


Errors = Iterator[FieldError]
T = TypeVar("T")


class GoText(str):
    """A value as Go shows it; other strings are quoted."""


def invalid(field: str, value: Any, detail: str) -> FieldError:
    """A value that is not allowed."""
    return FieldError("FieldValueInvalid", f"Invalid value: {_format_value(value)}: {detail}", field)


def required(field: str, detail: str = "") -> FieldError:
    """A value that is missing."""
    return FieldError("FieldValueRequired", "Required value" + (f": {detail}" if detail else ""), field)


def duplicate(field: str, value: Any) -> FieldError:
    """A value that is there twice."""
    return FieldError("FieldValueDuplicate", f"Duplicate value: {_format_value(value)}", field)


def forbidden(field: str, detail: str) -> FieldError:
    """A field that may not be set."""
    return FieldError("FieldValueForbidden", f"Forbidden: {detail}", field)


def unsupported(field: str, value: str, allowed: Collection[str]) -> FieldError:
    """A value that is none of a few."""
    names = ", ".join(_format_value(each) for each in sorted(allowed))
    return FieldError(
        "FieldValueNotSupported", f"Unsupported value: {_format_value(value)}: supported values: {names}", field
    )


def too_long(field: str, limit: int) -> FieldError:
    """A string with too many bytes."""
    return FieldError("FieldValueTooLong", f"Too long: may not be more than {limit} bytes", field)


def too_many(field: str, count: int, limit: int) -> FieldError:
    """A list with too many items."""
    return FieldError("FieldValueTooMany", f"Too many: {count}: must have at most {limit} items", field)


def check_label(name: str, field: str) -> Errors:
    """A DNS label."""
    if len(name) > 63:
        yield invalid(field, name, "must be no more than 63 characters")
    if not re.fullmatch(LABEL_PATTERN, name):
        dots = re.fullmatch(SUBDOMAIN_PATTERN, name) is not None
        yield invalid(field, name, "must not contain dots" if dots else LABEL_TEXT)


def check_subdomain(name: str, field: str, shown: str | None = None) -> Errors:
    """A DNS subdomain."""
    shown = name if shown is None else shown
    if len(name) > 253:
        yield invalid(field, shown, "must be no more than 253 characters")
    if not re.fullmatch(SUBDOMAIN_PATTERN, name):
        yield invalid(field, shown, SUBDOMAIN_TEXT)


def check_label_key(key: str, field: str) -> Errors:
    """The key of a label, and what is built like one."""
    prefix, slash, name = key.rpartition("/")
    if prefix.count("/"):
        yield invalid(
            field, key, f"a qualified name {QUALIFIED_NAME_TEXT} with an optional DNS subdomain prefix and '/'"
        )
        return
    if slash and not prefix:
        yield invalid(field, key, "prefix part must be non-empty")
    elif slash and (len(prefix) > 253 or not re.fullmatch(SUBDOMAIN_PATTERN, prefix)):
        yield invalid(field, key, f"prefix part {SUBDOMAIN_TEXT}")
    if not name:
        yield invalid(field, key, "name part must be non-empty")
    elif len(name) > 63:
        yield invalid(field, key, "name part must be no more than 63 bytes")
    if not re.fullmatch(QUALIFIED_NAME_PATTERN, name):
        yield invalid(field, key, f"name part {QUALIFIED_NAME_TEXT}")


def check_label_value(value: str, field: str) -> Errors:
    """The value of a label."""
    if len(value) > 63:
        yield invalid(field, value, "must be no more than 63 bytes")
    if not re.fullmatch(LABEL_VALUE_PATTERN, value):
        yield invalid(field, value, LABEL_VALUE_TEXT)


def check_c_identifier(name: str, field: str, limit: int) -> Errors:
    """An identifier of C with at most so many bytes."""
    if len(name.encode()) > limit:
        yield too_long(field, limit)
    if not re.fullmatch(C_IDENTIFIER_PATTERN, name):
        yield invalid(field, name, C_IDENTIFIER_TEXT)


def check_interface_address(address: str, field: str) -> Errors:
    """An address with its network: 10.9.8.7/24."""
    try:
        ipaddress.ip_interface(address if "/" in address else "no network")
    except ValueError:
        yield invalid(field, address, "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)")


def check_items(
    items: Sequence[T] | None,
    field: str,
    limit: int | None,
    check: Callable[[T, str], Errors],
    key: Callable[[T], Any] | None = None,
) -> Errors:
    """Each item of a list. Too many are not looked at. `key`: what no two items may have in common."""
    items = items or ()
    if limit is not None and len(items) > limit:
        yield too_many(field, len(items), limit)
        return
    for number, each in enumerate(items):
        yield from check(each, f"{field}[{number}]")
    if key is None:
        return
    seen = set()
    for number, each in enumerate(items):
        if key(each) in seen:
            yield duplicate(f"{field}[{number}]", key(each))
        seen.add(key(each))


def _format_value(value: Any) -> str:
    if isinstance(value, GoText):
        return str.__str__(value)
    return msgspec.json.encode(value).decode()
