"""Reads a value that another version of gpuplane wrote, field by field. What cannot be read is left out and listed.

Files that people write are read strictly (`strict`). A file that a newer version wrote is not wrong, and the fields
that we know must not be lost. (Protocol Buffers and the Kubernetes API treat unknown fields in the same way.)
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.inspect import (
    BoolType,
    CustomType,
    DictType,
    FloatType,
    IntType,
    LiteralType,
    NoneType,
    StrType,
    StructType,
    Type,
    UnionType,
    VarTupleType,
    type_info,
)

from gpuplane.node.model.status import AnyPart, Status, Statuses, parse_part_name

FieldPath = tuple[str, ...]
"""Where a value is in a document: names of fields, keys of mappings and numbers of list items."""


class UnreadableValue(Exception):
    """No part of a value can be read."""


class LenientResult(msgspec.Struct, frozen=True):
    """What could be read. `unknown_fields`: this version does not have them. `unreadable_fields`: their values are not
    understood."""

    value: Any
    unknown_fields: tuple[FieldPath, ...] = ()
    unreadable_fields: tuple[FieldPath, ...] = ()


def decode_leniently(data: Any, kind: Any) -> LenientResult:
    """Read plain data (decoded JSON) as a type. Raises UnreadableValue where no part of it can be read."""
    reading = _LenientReader()
    value = reading.read_value(data, type_info(kind), ())
    return LenientResult(value, tuple(reading.unknown_fields), tuple(reading.unreadable_fields))


class _LenientReader:
    def __init__(self) -> None:
        self.unknown_fields: list[FieldPath] = []
        self.unreadable_fields: list[FieldPath] = []

    def read_value(self, data: Any, kind: Type, place: FieldPath) -> Any:
        match kind:
            case StructType() if isinstance(data, Mapping):
                return self._read_struct(data, kind, place)
            case DictType(value_type=inner) if isinstance(data, Mapping):
                return self._read_mapping(data, inner, place)
            case CustomType(cls=cls) if cls is Statuses and isinstance(data, Mapping):
                return self._read_statuses(data, place)
            case VarTupleType(item_type=inner) if isinstance(data, list):
                return tuple(self._read_mapping({str(n): each for n, each in enumerate(data)}, inner, place).values())
            case UnionType(types=kinds):
                return self._read_union(data, kinds, place)
            case StructType() | DictType() | CustomType() | VarTupleType():
                raise UnreadableValue
        return _read_scalar(data, kind)

    def _read_struct(self, data: Mapping[str, Any], kind: StructType, place: FieldPath) -> Any:
        fields = {field.encode_name: field for field in kind.fields}
        self.unknown_fields += [(*place, name) for name in data if name not in fields]
        values = {}
        for name, field in fields.items():
            if name in data:
                try:
                    values[field.name] = self.read_value(data[name], field.type, (*place, name))
                except UnreadableValue:
                    if field.required:
                        raise
                    self.unreadable_fields.append((*place, name))
            elif field.required:
                raise UnreadableValue
        return kind.cls(**values)

    def _read_mapping(self, data: Mapping[str, Any], kind: Type, place: FieldPath) -> dict[str, Any]:
        values = {}
        for key, each in data.items():
            try:
                values[key] = self.read_value(each, kind, (*place, key))
            except UnreadableValue:
                self.unreadable_fields.append((*place, key))
        return values

    def _read_statuses(self, data: Mapping[str, Any], place: FieldPath) -> Statuses:
        found: dict[AnyPart, Status] = {}
        for name, each in data.items():
            part = parse_part_name(name)
            try:
                found[part] = self.read_value(each, type_info(part.status_type), (*place, name))
            except UnreadableValue:
                self.unreadable_fields.append((*place, name))
        return Statuses(found)

    def _read_union(self, data: Any, kinds: tuple[Type, ...], place: FieldPath) -> Any:
        if data is None and any(isinstance(kind, NoneType) for kind in kinds):
            return None
        for kind in kinds:
            try:
                return self.read_value(data, kind, place)
            except UnreadableValue:
                continue
        raise UnreadableValue


SCALAR_TYPES: Mapping[type[Type], type] = {BoolType: bool, IntType: int, FloatType: float, StrType: str}


def _read_scalar(data: Any, kind: Type) -> Any:
    """Read a value without parts."""
    if isinstance(kind, LiteralType) and data in kind.values:
        return data
    try:
        return msgspec.convert(data, SCALAR_TYPES[type(kind)])
    except (KeyError, msgspec.ValidationError):
        raise UnreadableValue from None
