"""The shapes of objects as tables, and what an API server does with an object by its shape alone.

A table has a line for each struct of the API: `Device name! nodeName*@DRAPartitionableDevices taints:[DeviceTaint]`.
A field is its JSON name, then

- `!` it is written although it is empty (Go: no omitempty);
- `*` it may be absent, and an empty value is kept (Go: a pointer);
- `:TYPE` where it is no string: int64, bool, Quantity, Time, Raw (any JSON), a struct, `[TYPE]` or `{TYPE}` (a map);
- `@GATE` the feature gate without which it is dropped;
- `#KEYS` the fields that tell the items of a list apart (else server-side apply takes the list as one field).

What a real server makes of an object is what its Go types keep: unknown fields go, quantities and times have one
spelling, empty fields are left out (apimachinery/pkg/runtime/serializer/json).
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from gpuplane.sandbox.apiserver.objects import Json
from gpuplane.sandbox.apiserver.quantities import parse_quantity

FIELD_PATTERN = re.compile(
    r"(?P<name>\w+)(?P<kept>!?)(?P<pointer>\*?)(?::(?P<type>[^@#]+))?(?:@(?P<gate>\w+))?(?:#(?P<keys>.+))?"
)
PYTHON_TYPES: Mapping[str, tuple[type, ...]] = {"string": (str,), "int64": (int,), "bool": (bool,)}
EMPTY_VALUES: tuple[Any, ...] = (None, "", 0, False, [], {})
INT64 = range(-(1 << 63), 1 << 63)


class DecodeError(ValueError):
    """An object that does not have the shape of its kind, in the words of Go's decoder."""


class Field(NamedTuple):
    """One field of a struct. `inner`: the type of an item, where it is a list or a map."""

    name: str
    type: str
    inner: str
    kept: bool
    pointer: bool
    gate: str
    keys: tuple[str, ...]

    @property
    def go_type(self) -> str:
        """Its type as Go's decoder names it."""
        names = {"Quantity": "resource.Quantity", "Time": "v1.Time", "Raw": "runtime.RawExtension"}
        inner = self.inner or self.type
        name = inner if inner in PYTHON_TYPES else names.get(inner, f"v1.{inner}")
        return f"[]{name}" if self.is_list else f"map[string]{name}" if self.is_map else name

    @property
    def is_list(self) -> bool:
        """Whether it is a list."""
        return self.type.startswith("[")

    @property
    def is_map(self) -> bool:
        """Whether it is a map."""
        return self.type.startswith("{")


class Decoded(NamedTuple):
    """An object as its shape has it, and the fields that it does not have ("spec.devices[0].colour")."""

    object: Json
    unknown: tuple[str, ...]


Default = Callable[[Json, str], None]
"""Sets the defaults of one struct, in place. The text: the time now."""


class Shapes:
    """Structs. `defaults`: by struct. `go_names`: of fields whose Go name is not the obvious one."""

    def __init__(self, table: str, defaults: Mapping[str, Default], go_names: Mapping[str, str]) -> None:
        lines = (line.split() for line in table.strip().splitlines())
        self._structs = {name: tuple(_parse_field(each) for each in fields) for name, *fields in lines}
        self._fields = {name: {field.name: field for field in fields} for name, fields in self._structs.items()}
        self._defaults, self._go_names = defaults, go_names

    def decode(self, struct: str, sent: Json, now: str) -> Decoded:
        """What a server makes of an object. Raises DecodeError."""
        unknown: list[str] = []
        return Decoded(self._decode_struct(struct, sent, _Place(struct, "", ""), now, unknown), tuple(unknown))

    def without_gated_fields(self, struct: str, found: Json, gates: Collection[str]) -> Json:
        """An object without the fields of these gates."""

        def filter_value(field: Field, value: Any) -> Any:
            if field.inner in self._structs and field.is_list:
                return [self.without_gated_fields(field.inner, each, gates) for each in value]
            if field.inner in self._structs and field.is_map:
                return {key: self.without_gated_fields(field.inner, each, gates) for key, each in value.items()}
            return self.without_gated_fields(field.type, value, gates) if field.type in self._structs else value

        return {
            field.name: filter_value(field, found[field.name]) if found[field.name] is not None else None
            for field in self._structs[struct]
            if field.name in found and field.gate not in gates
        }

    def gates_of(self, struct: str, found: Json | None) -> frozenset[str]:
        """The feature gates whose fields an object has."""
        return frozenset(self._gates_of(struct, found)) if found else frozenset()

    def lists_to_maps(self, struct: str, found: Any) -> Any:
        """An object with its lists that have keys as maps, from what tells an item apart to the item."""
        if not isinstance(found, dict) or struct not in self._structs:
            return found
        fields = self._fields[struct]
        return {key: self._value_with_maps(fields.get(key), value) for key, value in found.items()}

    def maps_to_lists(self, struct: str, found: Any) -> Any:
        """The opposite of `lists_to_maps`."""
        if not isinstance(found, dict) or struct not in self._structs:
            return found
        fields = self._fields[struct]
        return {
            key: [self.maps_to_lists(fields[key].inner, each) for each in value.values()]
            if key in fields and fields[key].keys and isinstance(value, dict)
            else self.maps_to_lists(fields[key].type, value) if key in fields else value
            for key, value in found.items()
        }  # fmt: skip

    def go_text(self, struct: str, found: Json | None) -> str:
        """A struct as messages show it: JSON with Go's names, in Go's order, with what is absent as null."""
        text = msgspec.json.encode(self._go_value(struct, found)).decode()
        return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")

    def _decode_struct(self, struct: str, sent: Any, place: "_Place", now: str, unknown: list[str]) -> Json:
        if sent is not None and not isinstance(sent, dict):
            raise place.mismatch(sent, f"v1.{struct}")
        sent, fields = sent or {}, self._fields[struct]
        unknown += [f"{place.shown}.{key}".lstrip(".") for key in sent if key not in fields]
        made: Json = {}
        for name, field in fields.items():
            if sent.get(name) is None and not field.kept:
                continue
            value = self._decode_field(field, sent.get(name), place.field(struct, name), now, unknown)
            empty = value is None or (not field.pointer and value in EMPTY_VALUES and not isinstance(value, float))
            if not empty or field.kept:
                made[name] = None if empty and (field.is_list or field.is_map) else value
        if struct in self._defaults:
            self._defaults[struct](made, now)
        return made

    def _decode_field(self, field: Field, sent: Any, place: "_Place", now: str, unknown: list[str]) -> Any:
        if field.is_list or field.is_map:
            if sent is None:
                return None
            if not isinstance(sent, list if field.is_list else dict):
                raise place.mismatch(sent, field.go_type)
            item = field._replace(type=field.inner, inner="", pointer=False)
            if isinstance(sent, dict):
                return {
                    key: self._decode_field(item, each, place.item(key), now, unknown) for key, each in sent.items()
                }
            return [
                self._decode_field(item, each, place.item(number), now, unknown) for number, each in enumerate(sent)
            ]
        if sent is None and field.pointer:
            return None
        if field.type in self._structs:
            return self._decode_struct(field.type, sent, place, now, unknown)
        return _decode_plain(field, sent, place)

    def _gates_of(self, struct: str, found: Json) -> Iterator[str]:
        for field in self._structs[struct]:
            value = found.get(field.name)
            if value is None:
                continue
            if field.gate:
                yield field.gate
            inner = field.inner or field.type
            if inner in self._structs:
                below = value if field.is_list else value.values() if field.is_map else (value,)
                for each in below:
                    yield from self._gates_of(inner, each)

    def _value_with_maps(self, field: Field | None, value: Any) -> Any:
        if field is None:
            return value
        if field.keys and isinstance(value, list) and all(isinstance(each, dict) for each in value):
            items = {}
            for each in value:
                named = {key: each[key] for key in sorted(field.keys) if key in each}
                items[f"k:{msgspec.json.encode(named).decode()}"] = self.lists_to_maps(field.inner, each)
            return items
        return self.lists_to_maps(field.type, value)

    def _go_value(self, struct: str, found: Json | None) -> Any:
        if found is None:
            return None
        shown: Json = {}
        for field in self._structs[struct]:
            value = found.get(field.name)
            if field.name == "metadata":  # embedded: its fields stand here, under their own names
                shown |= value or {}
                continue
            name = self._go_names.get(field.name, field.name[0].upper() + field.name[1:])
            inner = field.inner or field.type
            if value is None:
                zero = {"string": "", "int64": 0, "bool": False}.get(field.type)
                shown[name] = None if field.pointer or field.inner else zero
                if inner in self._structs and not (field.inner or field.pointer):
                    shown[name] = self._go_value(inner, {})
            elif inner not in self._structs:
                shown[name] = value
            elif field.is_list:
                shown[name] = [self._go_value(inner, each) for each in value]
            elif field.is_map:
                shown[name] = {key: self._go_value(inner, each) for key, each in sorted(value.items())}
            else:
                shown[name] = self._go_value(inner, value)
        return shown


class _Place(NamedTuple):
    """Where a value stands: the struct that holds it, its path as Go's decoder names it, and with indices."""

    struct: str
    path: str
    shown: str

    def field(self, struct: str, name: str) -> "_Place":
        return _Place(struct, f"{self.path}.{name}".lstrip("."), f"{self.shown}.{name}".lstrip("."))

    def item(self, key: str | int) -> "_Place":
        return self._replace(shown=f"{self.shown}[{key}]")

    def mismatch(self, sent: Any, go_type: str) -> DecodeError:
        names = {bool: "bool", str: "string", list: "array", dict: "object"}
        what = names.get(type(sent), f"number {sent}")
        return DecodeError(
            f"json: cannot unmarshal {what} into Go struct field {self.struct}.{self.path} of type {go_type}"
        )


def _parse_field(text: str) -> Field:
    found = FIELD_PATTERN.fullmatch(text)
    assert found is not None, text
    kind = found["type"] or "string"
    inner = kind[1:-1] if kind[0] in "[{" else ""
    keys = tuple((found["keys"] or "").split(",")) if found["keys"] else ()
    return Field(found["name"], kind, inner, bool(found["kept"]), bool(found["pointer"]), found["gate"] or "", keys)


def _decode_plain(field: Field, sent: Any, place: _Place) -> Any:
    if field.type == "Raw":
        return sent
    if field.type == "Quantity":
        try:
            return parse_quantity(sent).text
        except ValueError as error:
            raise DecodeError(str(error)) from None
    if sent is None:
        return {"string": "", "int64": 0, "bool": False}.get(field.type)
    if field.type == "Time":
        return _decode_time(sent)
    if type(sent) not in PYTHON_TYPES[field.type] or (field.type == "int64" and sent not in INT64):
        raise place.mismatch(sent, field.go_type)
    return sent


def _decode_time(sent: Any) -> str:
    try:
        return format_time(datetime.fromisoformat(sent).astimezone(UTC))
    except (TypeError, ValueError):
        raise DecodeError(f'parsing time "{sent}" as "2006-01-02T15:04:05Z07:00": cannot parse it') from None


def format_time(moment: datetime) -> str:
    """A time as the API writes it, in seconds."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
