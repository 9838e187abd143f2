"""Rules that several kinds of resource.k8s.io share (pkg/apis/resource/validation/validation.go).

A CEL expression is measured and not compiled: an API server without an evaluator accepts every expression.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from gpuplane.sandbox.apiserver.fielderrors import (
    Errors,
    GoText,
    check_c_identifier,
    check_items,
    check_label,
    check_label_key,
    check_label_value,
    check_subdomain,
    duplicate,
    forbidden,
    invalid,
    required,
    too_long,
    unsupported,
)
from gpuplane.sandbox.apiserver.objects import Json
from gpuplane.sandbox.apiserver.resourceapi.types import SHAPES

TAINT_EFFECTS = ("NoExecute", "NoSchedule", "None")
MAX_EXPRESSION_BYTES = MAX_PARAMETERS_BYTES = 10 << 10
ADMIN_ACCESS_LABEL = "resource.kubernetes.io/admin-access"
ADMIN_ACCESS_TEXT = (
    f"admin access to devices requires the `{ADMIN_ACCESS_LABEL}: true` label on the containing namespace"
)
SELECTOR_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")


def check_driver(driver: str, field: str) -> Errors:
    """The name of a driver."""
    if not driver:
        yield required(field)
    elif len(driver) > 63:
        yield too_long(field, 63)
    else:
        yield from check_subdomain(driver.lower(), field, driver)


def check_pool(pool: str, field: str) -> Errors:
    """The name of a pool."""
    if not pool:
        yield required(field)
        return
    if len(pool) > 253:
        yield too_long(field, 253)
    for part in pool.split("/"):
        yield from check_subdomain(part, field)


def check_qualified_name(name: str, field: str) -> Errors:
    """The name of an attribute or a capacity. (A name with two slashes is not looked at.)"""
    domain, slash, identifier = name.rpartition("/")
    if "/" in domain:
        return
    if slash and not domain:
        yield invalid(field, "", "the domain must not be empty")
    elif slash:
        yield from check_driver(domain, field)
    if slash and not identifier:
        yield invalid(field, "", "the name must not be empty")
    else:
        yield from check_c_identifier(identifier, field, 32)


def check_selectors(selectors: Sequence[Json] | None, field: str) -> Errors:
    """The selectors of a class or a request."""

    def check(selector: Json, at: str) -> Errors:
        if selector.get("cel") is None:
            yield required(f"{at}.cel")
        elif len(selector["cel"]["expression"].encode()) > MAX_EXPRESSION_BYTES:
            yield too_long(f"{at}.cel.expression", MAX_EXPRESSION_BYTES)

    yield from check_items(selectors, field, 32, check)


def check_configuration(config: Json, field: str) -> Errors:
    """The opaque part of a configuration."""
    opaque = config.get("opaque")
    if opaque is None:
        yield required(f"{field}.opaque")
        return
    yield from check_driver(opaque["driver"], f"{field}.opaque.driver")
    yield from check_raw(opaque.get("parameters"), f"{field}.opaque.parameters", MAX_PARAMETERS_BYTES)


def check_raw(value: Any, field: str, limit: int) -> Errors:
    """A JSON object that the API server does not know more of. Its length: without blanks."""
    if value is None:
        yield required(field)
    elif len(msgspec.json.encode(value)) > limit:
        yield too_long(field, limit)
    elif not isinstance(value, dict):
        yield invalid(field, "<value omitted>", "must be a valid JSON object")


def check_taint(taint: Json, field: str) -> Errors:
    """A taint of a device."""
    yield from check_label_key(taint["key"], f"{field}.key")
    if taint.get("value"):
        yield from check_label_value(taint["value"], f"{field}.value")
    if not taint["effect"]:
        yield required(f"{field}.effect")
    elif taint["effect"] not in TAINT_EFFECTS:
        yield unsupported(f"{field}.effect", taint["effect"], TAINT_EFFECTS)


def check_toleration(toleration: Json, field: str) -> Errors:
    """A toleration of a request."""
    operator, value, effect = (toleration.get(key, "") for key in ("operator", "value", "effect"))
    if toleration.get("key"):
        yield from check_label_key(toleration["key"], f"{field}.key")
    if operator == "Exists" and value:
        yield invalid(f"{field}.value", value, "must be empty for operator `Exists`")
    elif operator == "Equal":
        yield from check_label_value(value, f"{field}.value")
    elif operator != "Exists":
        yield unsupported(f"{field}.operator", operator, ("Equal", "Exists"))
    if effect and effect not in TAINT_EFFECTS:
        yield unsupported(f"{field}.effect", effect, TAINT_EFFECTS)


def check_node_selector(selector: Json, field: str) -> Errors:
    """A node selector (pkg/apis/core/validation)."""

    def check(requirement: Json, at: str) -> Errors:
        operator, values = requirement["operator"], requirement.get("values")
        if operator not in SELECTOR_OPERATORS:
            yield invalid(f"{at}.operator", operator, "not a valid selector operator")
        elif operator in ("In", "NotIn") and not values:
            yield required(f"{at}.values", "must be specified when `operator` is 'In' or 'NotIn'")
        elif operator in ("Exists", "DoesNotExist") and values:
            yield forbidden(f"{at}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'")
        elif operator in ("Gt", "Lt") and len(values or ()) != 1:
            yield required(f"{at}.values", "must be specified single value when `operator` is 'Lt' or 'Gt'")

    def check_expression(requirement: Json, at: str) -> Errors:
        yield from check(requirement, at)
        yield from check_label_key(requirement["key"], f"{at}.key")

    terms = selector.get("nodeSelectorTerms") or ()
    if not terms:
        yield required(f"{field}.nodeSelectorTerms", "must have at least one node selector term")
    for number, term in enumerate(terms):
        at = f"{field}.nodeSelectorTerms[{number}]"
        yield from check_items(term.get("matchExpressions"), f"{at}.matchExpressions", None, check_expression)
        yield from check_items(term.get("matchFields"), f"{at}.matchFields", None, check)


def check_binding_conditions(found: Json, field: str) -> Errors:
    """The conditions for which the scheduler waits, of a device or an allocated device."""
    names = ("bindingConditions", "bindingFailureConditions")
    success, failure = (found.get(name) or [] for name in names)
    for name, conditions in zip(names, (success, failure), strict=True):
        yield from check_items(conditions, f"{field}.{name}", 4, check_label_key)
    yield from _duplicates(success, f"{field}.{names[0]}")
    yield from _duplicates(failure, f"{field}.{names[1]}")
    for number, each in enumerate(failure):
        if each in success:
            text = "bindingFailureConditions must not overlap with bindingConditions"
            yield invalid(f"{field}.{names[1]}[{number}]", each, text)
    for name, other, missing in (
        (names[0], names[1], failure and not success),
        (*names[::-1], success and not failure),
    ):
        if missing:
            yield invalid(f"{field}.{name}", None, f"{name} are required to use {other}")


def check_immutable(new: Any, old: Any, field: str, struct: str = "") -> Errors:
    """A field that no write changes. `struct`: its type, where it is one."""
    if new != old:
        yield invalid(field, GoText(SHAPES.go_text(struct, new)) if struct else new, "field is immutable")


def check_admin_access(wanted: Mapping[str, Json], namespace: Mapping[str, str]) -> Errors:
    """Whether the namespace's labels allow admin access. `wanted`: by the place of what may want it."""
    for field, each in wanted.items():
        if each.get("adminAccess") and namespace.get(ADMIN_ACCESS_LABEL) != "true":
            yield forbidden(f"{field}.adminAccess", ADMIN_ACCESS_TEXT)


def check_label_name(name: str, field: str) -> Errors:
    """The name of a request, a device or a counter."""
    yield from check_label(name, field)


def _duplicates(names: Collection[str], field: str) -> Iterator[Any]:
    seen: set[str] = set()
    for number, each in enumerate(names):
        if each in seen:
            yield duplicate(f"{field}[{number}]", each)
        seen.add(each)
