"""ResourceSlices: what the API server checks of them. References between slices and pools are not checked by it."""

import re

from gpuplane.sandbox.apiserver.fielderrors import (
    Errors,
    GoText,
    check_items,
    check_label,
    check_subdomain,
    forbidden,
    invalid,
    required,
    too_long,
    too_many,
)
from gpuplane.sandbox.apiserver.kinds import Kind, Write, check_metadata
from gpuplane.sandbox.apiserver.objects import Json
from gpuplane.sandbox.apiserver.resourceapi.policies import check_policy
from gpuplane.sandbox.apiserver.resourceapi.rules import (
    check_binding_conditions,
    check_driver,
    check_immutable,
    check_node_selector,
    check_pool,
    check_qualified_name,
    check_taint,
)
from gpuplane.sandbox.apiserver.resourceapi.types import RESOURCE_API_VERSION, SHAPES

MAX_DEVICES, MAX_DEVICES_WITH_TAINTS_OR_COUNTERS = 128, 64
"""Devices of a slice, and of one in which a device has taints or consumes counters."""
MAX_ATTRIBUTES = 32
"""Attributes and capacities of a device together."""
NUMBER_PATTERN, PRERELEASE_PATTERN = r"(0|[1-9]\d*)", r"(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)"
SEMVER_PATTERN = re.compile(
    rf"{NUMBER_PATTERN}\.{NUMBER_PATTERN}\.{NUMBER_PATTERN}"
    rf"(-{PRERELEASE_PATTERN}(\.{PRERELEASE_PATTERN})*)?(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?",
    re.ASCII,
)
NODE_FIELDS = ("nodeName", "nodeSelector", "allNodes")
"""The fields that say to which nodes a slice, or a device of it, belongs."""


def _prepare(_: Write) -> None:
    """A slice is kept as it is sent."""


def _validate(write: Write) -> Errors:
    spec, old = write.new["spec"], (write.old or {}).get("spec")
    if old is None:
        yield from check_metadata(write.new["metadata"])
    yield from check_driver(spec["driver"], "spec.driver")
    yield from _check_pool(spec["pool"])
    if old is not None:
        yield from check_immutable(spec["pool"]["name"], old["pool"]["name"], "spec.pool.name")
        yield from check_immutable(spec["driver"], old["driver"], "spec.driver")
        yield from check_immutable(spec.get("nodeName"), old.get("nodeName"), "spec.nodeName")
    yield from _check_node_fields(spec)
    devices, counters = spec.get("devices"), spec.get("sharedCounters")
    if devices and counters:
        yield invalid("spec", "", "only one of `sharedCounters` or `devices` is allowed")
    special = any(each.get("taints") or each.get("consumesCounters") for each in devices or ())
    most = MAX_DEVICES_WITH_TAINTS_OR_COUNTERS if special else MAX_DEVICES
    per_device = bool(spec.get("perDeviceNodeSelection"))
    yield from check_items(
        devices, "spec.devices", most, lambda each, at: _check_device(each, at, per_device), lambda each: each["name"]
    )
    yield from check_items(counters, "spec.sharedCounters", 8, _check_counter_set, lambda each: each["name"])


def _check_pool(pool: Json) -> Errors:
    yield from check_pool(pool["name"], "spec.pool.name")
    if pool["resourceSliceCount"] <= 0:
        yield invalid("spec.pool.resourceSliceCount", pool["resourceSliceCount"], "must be greater than zero")
    if pool["generation"] < 0:
        yield invalid("spec.pool.generation", pool["generation"], "must be greater than or equal to zero")


def _check_node_fields(spec: Json) -> Errors:
    """To which nodes a slice belongs."""
    if spec.get("nodeName") == "":
        yield invalid("spec.nodeName", "", "must be either unset or set to a non-empty string")
    yield from _check_node(spec, "spec")
    terms = (spec.get("nodeSelector") or {}).get("nodeSelectorTerms")
    if spec.get("nodeSelector") is not None and len(terms or ()) != 1:
        shown = GoText("[" + ",".join(SHAPES.go_text("NodeSelectorTerm", each) for each in terms or ()) + "]")
        yield invalid("spec.nodeSelector.nodeSelectorTerms", shown, "must have exactly one node selector term")
    names = (*NODE_FIELDS, "perDeviceNodeSelection")
    for name in names[2:]:
        if spec.get(name) is False:
            yield invalid(f"spec.{name}", False, "must be either unset or set to true")
    text = f"exactly one of {', '.join(f'`{each}`' for each in names)} is required"
    given = [f"`{each}`" for each in names if spec.get(each)]
    if not given:
        yield required("spec", text)
    elif len(given) > 1:
        yield invalid("spec", f"{{{', '.join(given)}}}", f"{text}, but multiple fields are set")


def _check_node(found: Json, field: str) -> Errors:
    if found.get("nodeName"):
        yield from check_subdomain(found["nodeName"], f"{field}.nodeName")
    if found.get("nodeSelector") is not None:
        yield from check_node_selector(found["nodeSelector"], f"{field}.nodeSelector")


def _check_device(device: Json, field: str, per_device: bool) -> Errors:
    yield from check_label(device["name"], f"{field}.name")
    attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
    if (count := len(attributes) + len(capacity)) > MAX_ATTRIBUTES:
        text = f"the total number of attributes and capacities must not exceed {MAX_ATTRIBUTES}"
        yield invalid(field, count, text)
    for name, attribute in sorted(attributes.items()):
        yield from check_qualified_name(name, f"{field}.attributes")
        yield from _check_attribute(attribute, f"{field}.attributes[{name}]")
    for name, each in sorted(capacity.items()):
        yield from check_qualified_name(name, f"{field}.capacity")
        if each.get("requestPolicy") is not None:
            at = f"{field}.capacity[{name}].requestPolicy"
            if device.get("allowMultipleAllocations"):
                yield from check_policy(each, at)
            else:
                yield forbidden(at, "allowMultipleAllocations must be true")
    yield from check_items(device.get("taints"), f"{field}.taints", 16, check_taint)
    yield from check_items(
        device.get("consumesCounters"),
        f"{field}.consumesCounters",
        2,
        _check_consumed_counters,
        lambda each: each["counterSet"],
    )
    yield from _check_device_node_fields(device, field, per_device)
    yield from check_binding_conditions(device, field)


def _check_device_node_fields(device: Json, field: str, per_device: bool) -> Errors:
    """To which nodes a device belongs, where the slice leaves that to its devices."""
    if not per_device:
        if any(device.get(each) is not None for each in NODE_FIELDS):
            text = "can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec"
            yield invalid(field, None, f"`nodeName`, `nodeSelector` and `allNodes` {text}")
        return
    yield from _check_node(device, field)
    if device.get("nodeName") == "":
        yield invalid(f"{field}.nodeName", "", "must not be empty")
    if device.get("allNodes") is False:
        yield invalid(f"{field}.allNodes", False, "must be either unset or set to true")
    given = [f"`{each}`" for each in NODE_FIELDS if device.get(each)]
    text = (
        "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to "
        "true in the ResourceSlice spec"
    )
    if not given:
        yield required(field, text)
    elif len(given) > 1:
        yield invalid(field, f"{{{', '.join(given)}}}", text)


def _check_attribute(attribute: Json, field: str) -> Errors:
    version = attribute.get("version")
    if len((attribute.get("string") or "").encode()) > 64:
        yield too_long(f"{field}.string", 64)
    if version is not None and not SEMVER_PATTERN.fullmatch(version):
        yield invalid(f"{field}.version", version, "must be a string compatible with semver.org spec 2.0.0")
    if len((version or "").encode()) > 64:
        yield too_long(f"{field}.version", 64)
    if len(attribute) != 1:
        shown = GoText(SHAPES.go_text("DeviceAttribute", attribute)) if attribute else ""
        yield invalid(field, shown, "exactly one value must be specified")


def _check_counter_set(counters: Json, field: str) -> Errors:
    yield from _check_counters(counters, field, "name")


def _check_consumed_counters(counters: Json, field: str) -> Errors:
    yield from _check_counters(counters, field, "counterSet")


def _check_counters(counters: Json, field: str, name: str) -> Errors:
    """A counter set, or what a device consumes of one. `name`: the field that names the set."""
    if not counters[name]:
        yield required(f"{field}.{name}")
    else:
        yield from check_label(counters[name], f"{field}.{name}")
    found = counters.get("counters") or {}
    if not found:
        yield required(f"{field}.counters")
    elif len(found) > 32:
        yield too_many(f"{field}.counters", len(found), 32)
    else:
        for each in sorted(found):
            yield from check_label(each, f"{field}.counters")


def _slice_warnings(found: Json) -> tuple[str, ...]:
    driver = found["spec"]["driver"]
    text = f'spec.driver: driver names should be lowercase; "{driver}" contains uppercase characters'
    return (text,) if driver != driver.lower() else ()


SLICE_KIND = Kind(
    "ResourceSlice",
    "resourceslices",
    RESOURCE_API_VERSION,
    namespaced=False,
    shapes=SHAPES,
    prepare=_prepare,
    validate=_validate,
    counts_generation=True,
    selectable=("spec.nodeName", "spec.driver"),
    warn=_slice_warnings,
)
