"""Reading a value of another version of us, field by field: what is not understood is left out and told.

Documents of people are read strictly (`strict`). A file of ours that a newer version wrote is not wrong, and what it
says beside what is new must not be lost. (Protocol Buffers and the Kubernetes API treat unknown fields so, too.)
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.inspect import (
    BoolType,
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

Place = tuple[str, ...]
"""Where something is in a document: the names of fields, the keys of mappings and the numbers of entries."""


class NotUnderstood(Exception):
    """A value from which nothing can be taken."""


class Understood(msgspec.Struct, frozen=True):
    """What could be read. `unknown`: fields that are not known here; `lost`: what is known and was not understood."""

    value: Any
    unknown: tuple[Place, ...] = ()
    lost: tuple[Place, ...] = ()


def understand(data: Any, kind: Any) -> Understood:
    """Read plain data (as of JSON) as a type. Raises NotUnderstood where not even a part of it can be read."""
    reading = _Reading()
    value = reading.take(data, type_info(kind), ())
    return Understood(value, tuple(reading.unknown), tuple(reading.lost))


class _Reading:
    def __init__(self) -> None:
        self.unknown: list[Place] = []
        self.lost: list[Place] = []

    def take(self, data: Any, kind: Type, place: Place) -> Any:
        match kind:
            case StructType() if isinstance(data, Mapping):
                return self._struct(data, kind, place)
            case DictType(value_type=inner) if isinstance(data, Mapping):
                return self._entries(data, inner, place)
            case VarTupleType(item_type=inner) if isinstance(data, list):
                return tuple(self._entries({str(n): each for n, each in enumerate(data)}, inner, place).values())
            case UnionType(types=kinds):
                return self._union(data, kinds, place)
            case StructType() | DictType() | VarTupleType():
                raise NotUnderstood
        return _plain(data, kind)

    def _struct(self, data: Mapping[str, Any], kind: StructType, place: Place) -> Any:
        fields = {field.encode_name: field for field in kind.fields}
        self.unknown += [(*place, name) for name in data if name not in fields]
        values = {}
        for name, field in fields.items():
            if name in data:
                try:
                    values[field.name] = self.take(data[name], field.type, (*place, name))
                except NotUnderstood:
                    if field.required:
                        raise
                    self.lost.append((*place, name))
            elif field.required:
                raise NotUnderstood
        return kind.cls(**values)

    def _entries(self, data: Mapping[str, Any], kind: Type, place: Place) -> dict[str, Any]:
        values = {}
        for key, each in data.items():
            try:
                values[key] = self.take(each, kind, (*place, key))
            except NotUnderstood:
                self.lost.append((*place, key))
        return values

    def _union(self, data: Any, kinds: tuple[Type, ...], place: Place) -> Any:
        if data is None and any(isinstance(kind, NoneType) for kind in kinds):
            return None
        for kind in kinds:
            try:
                return self.take(data, kind, place)
            except NotUnderstood:
                continue
        raise NotUnderstood


PLAIN: Mapping[type[Type], type] = {BoolType: bool, IntType: int, FloatType: float, StrType: str}


def _plain(data: Any, kind: Type) -> Any:
    """A value without parts."""
    if isinstance(kind, LiteralType) and data in kind.values:
        return data
    try:
        return msgspec.convert(data, PLAIN[type(kind)])
    except (KeyError, msgspec.ValidationError):
        raise NotUnderstood from None
