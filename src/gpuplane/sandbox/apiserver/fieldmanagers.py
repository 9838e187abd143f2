"""Who manages which field of an object: server-side apply, and what every other write means for it.

As in structured-merge-diff, with two simplifications: a list is one field, but for `status.devices` of claims, which
several drivers write; and of an object without `managedFields` nobody manages anything.

- An apply says all that its manager means. What it meant before and means no more goes, unless another manages it too.
- An apply that changes what another manages is a conflict; with `force` it takes these fields over. Two managers that
  apply the same value share the field.
- Every other write (operation "Update") takes over each field that it changes, and is never refused for it.

Sources: sigs.k8s.io/structured-merge-diff/v6/merge; k8s.io/apimachinery, managedfields/internal/conflict.go.
"""

import copy
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from gpuplane.sandbox.apiserver.objects import Json, StatusError

ITEM_KEY_PREFIX = "k:"
"""How the key of an item begins, in a list that comes as a map."""
DEVICE_KEYS = ("device", "driver", "pool", "shareID")
"""What tells the items of `status.devices` apart (listMapKey of AllocatedDeviceStatus, api/resource/v1/types.go)."""
Field = tuple[str, ...]
Fields = frozenset[Field]

UNMANAGED_FIELDS: Fields = frozenset(
    {("apiVersion",), ("kind",)}
    | {
        ("metadata", key)
        for key in (
            "name", "namespace", "uid", "resourceVersion", "creationTimestamp", "generation", "selfLink",
            "managedFields",
        )
    }
)  # fmt: skip


class Manager(NamedTuple):
    """One entry of `managedFields`, but for its fields."""

    name: str
    operation: str  # "Apply" or "Update"
    version: str
    subresource: str = ""

    def __str__(self) -> str:
        within = f' with subresource "{self.subresource}"' if self.subresource else ""
        return f'"{self.name}"{within}' + (f" using {self.version}" if self.operation == "Update" else "")


def apply_with_manager(live: Json | None, body: Json, manager: Manager, *, force: bool) -> Json:
    """What an apply makes of an object, of None a new one. Raises StatusError where others manage what it changes."""
    live, body = live and _devices_as_map(live), _devices_as_map(body)
    before = managers_of(live or {})
    applied = fields_of(body)
    changed = frozenset(each for each in applied if _value_at(live, each) != _value_at(body, each))
    taken = {other: changed & fields for other, fields in before.items() if other != manager}
    if not force and any(taken.values()):
        raise _conflict_error({other: fields for other, fields in taken.items() if fields})
    others = {other: fields - changed for other, fields in before.items() if other != manager}
    kept = frozenset[Field]().union(*others.values())
    new = _merge_objects(live or {}, body)
    for each in before.get(manager, frozenset()) - applied - kept:
        _remove_field(new, each)
    return _devices_as_list(_with_managers(new, {**others, manager: applied}))


def record_update(old: Json | None, new: Json, manager: Manager) -> Json:
    """An object after a write that is no apply, with its managers."""
    old, new = old and _devices_as_map(old), _devices_as_map(new)
    now, then = fields_of(new), fields_of(old or {})
    changed = frozenset(each for each in now if each not in then or _value_at(old, each) != _value_at(new, each))
    before = managers_of(old or {})
    after = {each: (fields & now) - changed for each, fields in before.items()}
    return _devices_as_list(_with_managers(new, {**after, manager: after.get(manager, frozenset()) | changed}))


def fields_of(value: Any, at: Field = ()) -> Fields:
    """The fields that somebody who wrote this manages: every leaf. A list is one, and so is an empty object."""
    if at in UNMANAGED_FIELDS or value is None:
        return frozenset()
    if not isinstance(value, dict) or not value:
        return frozenset({at} if at else ())
    return frozenset[Field]().union(*(fields_of(each, (*at, key)) for key, each in value.items()))


def managers_of(found: Mapping[str, Any]) -> dict[Manager, Fields]:
    """Who manages what of an object."""
    return {
        Manager(each["manager"], each["operation"], each["apiVersion"], each.get("subresource", "")): frozenset(
            _decode_fields(each["fieldsV1"])
        )
        for each in found.get("metadata", {}).get("managedFields") or ()
    }


def _devices_as_map(found: Json) -> Json:
    """An object with `status.devices` as a map, from what tells a device apart to its entry."""
    status = found.get("status")
    if not isinstance(status, dict) or not isinstance(devices := status.get("devices"), list):
        return found
    keys = ({key: each[key] for key in DEVICE_KEYS if key in each} for each in devices)
    entries = {
        f"{ITEM_KEY_PREFIX}{msgspec.json.encode(key).decode()}": each for key, each in zip(keys, devices, strict=True)
    }
    return {**found, "status": {**status, "devices": entries}}


def _devices_as_list(found: Json) -> Json:
    """The opposite."""
    status = found.get("status")
    if not isinstance(status, dict) or not isinstance(devices := status.get("devices"), dict):
        return found
    return {**found, "status": {**status, "devices": [*devices.values()]}}


def _with_managers(found: Json, managers: Mapping[Manager, Fields]) -> Json:
    entries = [
        {"manager": each.name, "operation": each.operation, "apiVersion": each.version}
        | {"fieldsType": "FieldsV1", "fieldsV1": _encode_fields(fields)}
        | ({"subresource": each.subresource} if each.subresource else {})
        for each, fields in sorted(managers.items(), key=lambda pair: (pair[0].operation, pair[0]))
        if fields
    ]
    metadata = {key: value for key, value in (found.get("metadata") or {}).items() if key != "managedFields"}
    return {**found, "metadata": metadata | ({"managedFields": entries} if entries else {})}


def _encode_fields(fields: Fields) -> Json:
    encoded: Json = {}
    for each in sorted(fields):
        at = encoded
        for key in each:
            at = at.setdefault(key if key.startswith(ITEM_KEY_PREFIX) else f"f:{key}", {})
    return encoded


def _decode_fields(encoded: Json, at: Field = ()) -> Iterator[Field]:
    for key, below in encoded.items():
        here = (*at, key.removeprefix("f:"))
        yield from _decode_fields(below, here) if below else (here,)


def _conflict_error(taken: Mapping[Manager, Fields]) -> StatusError:
    named = {other: [_format_field(each) for each in sorted(fields)] for other, fields in sorted(taken.items())}
    causes = [
        {"reason": "FieldManagerConflict", "message": f"conflict with {other}", "field": field}
        for other, fields in named.items()
        for field in fields
    ]
    if len(causes) == 1:
        text = f"1 conflict: {causes[0]['message']}: {causes[0]['field']}"
    else:
        parts = (
            f"conflicts with {other}:\n" + "\n".join(f"- {each}" for each in fields) for other, fields in named.items()
        )
        text = f"{len(causes)} conflicts: " + "\n".join(parts)
    return StatusError(409, "Conflict", f"Apply failed with {text}", details={"causes": causes})


def _format_field(field: Field) -> str:
    """A field as messages name it: .status.devices[device="d0",driver="a.b",pool="p"].data."""
    shown = ""
    for key in field:
        if key.startswith(ITEM_KEY_PREFIX):
            names = msgspec.json.decode(key.removeprefix(ITEM_KEY_PREFIX)).items()
            shown += "[" + ",".join(f"{name}={msgspec.json.encode(value).decode()}" for name, value in names) + "]"
        else:
            shown += f".{key}"
    return shown


def _merge_objects(old: Any, new: Any) -> Any:
    if not isinstance(old, dict) or not isinstance(new, dict):
        return copy.deepcopy(new)
    merged = dict(old)
    for key, value in new.items():
        if value is not None:
            merged[key] = _merge_objects(old.get(key), value)
    return merged


def _remove_field(found: Json, field: Field) -> None:
    """Take a field out, and what is empty without it. `found` shares objects below with others: they are copied."""
    key, *rest = field
    if not rest:
        found.pop(key, None)
    elif isinstance(found.get(key), dict):
        below = dict(found[key])
        _remove_field(below, tuple(rest))
        found[key] = below
        if not below:
            del found[key]


def _value_at(found: Any, field: Field) -> Any:
    for key in field:
        found = found.get(key) if isinstance(found, dict) else None
    return found
