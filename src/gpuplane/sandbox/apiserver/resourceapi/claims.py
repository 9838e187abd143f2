"""ResourceClaims and their templates: what the API server checks of them, and what it does with a claim's status."""

import re
from collections.abc import Mapping

from gpuplane.sandbox.apiserver.fielderrors import (
    Errors,
    GoText,
    check_interface_address,
    check_items,
    check_label,
    check_subdomain,
    duplicate,
    forbidden,
    invalid,
    required,
    too_long,
    too_many,
    unsupported,
)
from gpuplane.sandbox.apiserver.kinds import Kind, Write, check_metadata
from gpuplane.sandbox.apiserver.objects import Json
from gpuplane.sandbox.apiserver.resourceapi.rules import (
    check_admin_access,
    check_binding_conditions,
    check_configuration,
    check_driver,
    check_immutable,
    check_node_selector,
    check_pool,
    check_qualified_name,
    check_raw,
    check_selectors,
    check_toleration,
)
from gpuplane.sandbox.apiserver.resourceapi.types import RESOURCE_API_VERSION, SHAPES

MAX_LIST_LENGTH = 32
"""Requests, constraints, configurations and results of a claim."""
MAX_CONSUMERS, MAX_CONDITIONS, MAX_ADDRESSES = 256, 8, 16
MAX_DATA_BYTES = 10 << 10
MAX_INTERFACE_NAME_LENGTH, MAX_ADDRESS_LENGTH = 256, 128
REQUEST_TEXT = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
UUID_PATTERN = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
CONDITION_REASON_PATTERN = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
Device = tuple[str, str, str, str]
"""What tells the allocated devices of a claim apart: driver, pool, device, share."""
Requests = Mapping[str, frozenset[str]]
"""The subrequests of each request."""


def _prepare_claim(write: Write) -> None:
    """A new claim has no status. The status of a device that is no longer allocated goes with its allocation."""
    if write.old is None:
        write.new["status"] = {}
    elif write.subresource == "status":
        status = write.new["status"]
        gone = {each[:3] for each in _allocated_devices(write.old["status"]) - _allocated_devices(status)}
        gone -= {each[:3] for each in _allocated_devices(status)}
        kept = [each for each in status.get("devices") or () if _device_id(each)[:3] not in gone]
        write.new["status"] = {key: value for key, value in status.items() if key != "devices"}
        if kept:
            write.new["status"]["devices"] = kept


def _validate_claim(write: Write) -> Errors:
    new, old = write.new, write.old
    devices = new["spec"]["devices"]
    if write.subresource == "status" and old is not None:
        yield from _check_status(write)
        return
    if old is None:
        yield from check_admin_access(_admin_access_requests(devices), write.namespace)
    yield from check_metadata(new["metadata"])
    if old is None:
        yield from _check_devices(devices, "spec.devices")
    else:
        yield from check_immutable(new["spec"], old["spec"], "spec", "ResourceClaimSpec")


def _validate_template(write: Write) -> Errors:
    spec = write.new["spec"]
    if write.old is not None:
        yield from check_immutable(spec, write.old["spec"], "spec", "ResourceClaimTemplateSpec")
        return
    yield from check_admin_access(_admin_access_requests(spec["spec"]["devices"]), write.namespace)
    yield from check_metadata(write.new["metadata"])
    yield from check_metadata(spec["metadata"], "spec.metadata", named=False)
    for key in spec["metadata"]:
        if key not in ("labels", "annotations"):
            yield forbidden(f"spec.metadata.{key}", "cannot be set")
    yield from _check_devices(spec["spec"]["devices"], "spec.spec.devices")


def _admin_access_requests(devices: Json) -> Mapping[str, Json]:
    requests = enumerate(devices.get("requests") or ())
    return {f"spec.devices.requests[{number}]": each.get("exactly") or {} for number, each in requests}


def _check_devices(devices: Json, field: str) -> Errors:
    """What a claim asks for."""
    requests = _request_names(devices)
    yield from check_items(
        devices.get("requests"), f"{field}.requests", MAX_LIST_LENGTH, _check_request, lambda each: each["name"]
    )

    def check_constraint(constraint: Json, at: str) -> Errors:
        yield from _check_references(constraint, at, requests)
        name = next((key for key in ("matchAttribute", "distinctAttribute") if constraint.get(key) is not None), None)
        if name is None:
            text = 'exactly one of "matchAttribute" or "distinctAttribute" is required, but multiple fields are set'
            yield required(at, text)
            return
        yield from check_qualified_name(constraint[name], f"{at}.{name}")
        if "/" not in constraint[name]:
            text = "a fully qualified name must be a domain and a name separated by a slash"
            yield invalid(f"{at}.{name}", constraint[name], text)

    def check_config(config: Json, at: str) -> Errors:
        yield from _check_references(config, at, requests)
        yield from check_configuration(config, at)

    yield from check_items(devices.get("constraints"), f"{field}.constraints", MAX_LIST_LENGTH, check_constraint)
    yield from check_items(devices.get("config"), f"{field}.config", MAX_LIST_LENGTH, check_config)


def _request_names(devices: Json) -> Requests:
    return {
        each["name"]: frozenset(sub["name"] for sub in each.get("firstAvailable") or ())
        for each in devices.get("requests") or ()
    }


def _check_request(request: Json, field: str) -> Errors:
    yield from check_label(request["name"], f"{field}.name")
    exactly, several = request.get("exactly"), request.get("firstAvailable")
    text = "exactly one of `exactly` or `firstAvailable` is required"
    if exactly is not None and several:
        yield invalid(field, None, f"{text}, but multiple fields are set")
    elif exactly is not None:
        yield from _check_exact_request(exactly, f"{field}.exactly")
    elif several:
        yield from check_items(several, f"{field}.firstAvailable", 8, _check_subrequest, lambda each: each["name"])
    else:
        yield required(field, text)


def _check_subrequest(request: Json, field: str) -> Errors:
    yield from check_label(request["name"], f"{field}.name")
    yield from _check_exact_request(request, field)


def _check_exact_request(request: Json, field: str) -> Errors:
    if not request["deviceClassName"]:
        yield required(f"{field}.deviceClassName")
    else:
        yield from check_subdomain(request["deviceClassName"], f"{field}.deviceClassName")
    yield from check_selectors(request.get("selectors"), f"{field}.selectors")
    mode, count = request["allocationMode"], request.get("count", 0)
    if mode == "All" and count:
        yield invalid(f"{field}.count", count, "must not be specified when allocationMode is 'All'")
    elif mode == "ExactCount" and count <= 0:
        yield invalid(f"{field}.count", count, "must be greater than zero")
    elif mode not in ("All", "ExactCount"):
        yield unsupported(f"{field}.allocationMode", mode, ("All", "ExactCount"))
    yield from check_items(request.get("tolerations"), f"{field}.tolerations", None, check_toleration)


def _check_references(found: Json, field: str, requests: Requests) -> Errors:
    yield from check_items(
        found.get("requests"),
        f"{field}.requests",
        MAX_LIST_LENGTH,
        lambda each, at: _check_reference(each, at, requests),
        str,
    )


def _check_reference(name: str, field: str, requests: Requests) -> Errors:
    main, *sub = name.split("/")
    if len(sub) < 2:
        for part in (main, *sub):
            yield from check_label(part, field)
    if len(sub) > 1 or main not in requests or not requests[main].issuperset(sub):
        yield invalid(field, name, REQUEST_TEXT)


def _check_status(write: Write) -> Errors:
    """What a scheduler and the drivers say of a claim."""
    new, old = write.new["status"], (write.old or {})["status"]
    allocation, before = new.get("allocation"), old.get("allocation")
    results, known = ((each or {}).get("devices", {}).get("results") or () for each in (allocation, before))
    wanted = {f"status.allocation.devices.results[{n}]": each for n, each in enumerate(results) if each not in known}
    yield from check_admin_access(wanted, write.namespace)
    yield from check_items(
        new.get("reservedFor"), "status.reservedFor", MAX_CONSUMERS, _check_consumer, lambda each: each["uid"]
    )
    allocated = _allocated_devices(new)
    yield from check_items(
        new.get("devices"),
        "status.devices",
        None,
        lambda each, at: _check_device(each, at, allocated),
        lambda each: _format_device(_device_id(each)),
    )
    if new.get("reservedFor") and allocation is None:
        yield forbidden("status.reservedFor", "may not be specified when `allocated` is not set")
    elif write.new["metadata"].get("deletionTimestamp") and any(
        each not in (old.get("reservedFor") or ()) for each in new.get("reservedFor") or ()
    ):
        text = "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set"
        yield forbidden("status.reservedFor", text)
    if allocation is not None and before is not None:
        yield from check_immutable(allocation, before, "status.allocation", "AllocationResult")
    elif allocation is not None:
        yield from _check_allocation(allocation, "status.allocation", _request_names(write.new["spec"]["devices"]))


def _check_consumer(consumer: Json, field: str) -> Errors:
    for key in ("resource", "name", "uid"):
        if not consumer[key]:
            yield required(f"{field}.{key}")


def _check_allocation(allocation: Json, field: str, requests: Requests) -> Errors:
    def check_result(result: Json, at: str) -> Errors:
        yield from _check_reference(result["request"], f"{at}.request", requests)
        yield from _check_device_names(result, at)
        yield from check_binding_conditions(result, at)

    def check_config(config: Json, at: str) -> Errors:
        sources = ("FromClaim", "FromClass")
        if not config["source"]:
            yield required(f"{at}.source")
        elif config["source"] not in sources:
            yield unsupported(f"{at}.source", config["source"], sources)
        yield from _check_references(config, at, requests)
        yield from check_configuration(config, at)

    devices = allocation["devices"]
    yield from check_items(devices.get("results"), f"{field}.devices.results", MAX_LIST_LENGTH, check_result)
    yield from check_items(devices.get("config"), f"{field}.devices.config", 2 * MAX_LIST_LENGTH, check_config)
    if allocation.get("nodeSelector") is not None:
        yield from check_node_selector(allocation["nodeSelector"], f"{field}.nodeSelector")


def _check_device_names(found: Json, field: str) -> Errors:
    yield from check_driver(found["driver"], f"{field}.driver")
    yield from check_pool(found["pool"], f"{field}.pool")
    yield from check_label(found["device"], f"{field}.device")
    share = found.get("shareID")
    if share is not None and not UUID_PATTERN.fullmatch(share):
        text = f"error validating uid: invalid UUID length: {len(share)}"
        if len(share) == 36:
            text = "uid must be in RFC 4122 normalized form, `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` with lowercase "
            text += "hexadecimal characters"
        yield invalid(f"{field}.shareID", share, text)


def _check_device(device: Json, field: str, allocated: frozenset[Device]) -> Errors:
    """What a driver says of an allocated device."""
    yield from _check_device_names(device, field)
    if _device_id(device) not in allocated:
        yield invalid(field, _format_device(_device_id(device)), "must be an allocated device in the claim")
    conditions = device.get("conditions") or ()
    if len(conditions) > MAX_CONDITIONS:
        yield too_many(f"{field}.conditions", len(conditions), MAX_CONDITIONS)
    seen: set[str] = set()
    for number, each in enumerate(conditions):
        yield from _check_condition(each, f"{field}.conditions[{number}]")
        if each["type"] in seen:
            yield duplicate(f"{field}.conditions[{number}].type", each["type"])
        seen.add(each["type"])
    if device.get("data") is not None:
        yield from check_raw(device["data"], f"{field}.data", MAX_DATA_BYTES)
    network = device.get("networkData") or {}
    limits = {"interfaceName": MAX_INTERFACE_NAME_LENGTH, "hardwareAddress": MAX_ADDRESS_LENGTH}
    for key, limit in limits.items():
        if len(network.get(key, "").encode()) > limit:
            yield too_long(f"{field}.networkData.{key}", limit)
    yield from check_items(network.get("ips"), f"{field}.networkData.ips", MAX_ADDRESSES, check_interface_address, str)


def _check_condition(condition: Json, field: str) -> Errors:
    """A condition (apimachinery, pkg/apis/meta/v1/validation)."""
    statuses = ("False", "True", "Unknown")
    if not condition["type"]:
        yield required(f"{field}.type")
    if condition["status"] not in statuses:
        yield unsupported(f"{field}.status", condition["status"], statuses)
    if not condition.get("lastTransitionTime"):
        yield required(f"{field}.lastTransitionTime")
    if not condition["reason"]:
        yield required(f"{field}.reason")
    elif not CONDITION_REASON_PATTERN.fullmatch(condition["reason"]):
        text = f"a condition reason must start with alphabetic character, … '{CONDITION_REASON_PATTERN.pattern}'"
        yield invalid(f"{field}.reason", condition["reason"], text)


def _allocated_devices(status: Json) -> frozenset[Device]:
    results = ((status.get("allocation") or {}).get("devices") or {}).get("results")
    return frozenset(_device_id(each) for each in results or ())


def _device_id(found: Json) -> Device:
    return (found["driver"], found["pool"], found["device"], found.get("shareID") or "")


def _format_device(device: Device) -> GoText:
    names = ("Driver", "Pool", "Device", "ShareID")
    return GoText("{" + ",".join(f'"{name}":"{each}"' for name, each in zip(names, device, strict=True)) + "}")


CLAIM_KIND = Kind(
    "ResourceClaim",
    "resourceclaims",
    RESOURCE_API_VERSION,
    namespaced=True,
    shapes=SHAPES,
    prepare=_prepare_claim,
    validate=_validate_claim,
    status_apart=True,
)
CLAIM_TEMPLATE_KIND = Kind(
    "ResourceClaimTemplate",
    "resourceclaimtemplates",
    RESOURCE_API_VERSION,
    namespaced=True,
    shapes=SHAPES,
    prepare=lambda _: None,
    validate=_validate_template,
)
