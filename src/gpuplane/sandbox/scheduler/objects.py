"""What the scheduler reads of the API's objects, and how it writes them.

Nodes, Pods and metadata are those of `kubernetes/objects.py`. Claims, slices and classes are structs of its own: it
alone reads what is asked for, and it copies parts of them into the allocation that it writes, which have to come out as
they went in (k8s.io/api/resource/v1/types.go; other fields are not looked at).
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

Json = Mapping[str, Any]


class Object(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A part of the API's objects."""


Kind = TypeVar("Kind", bound=msgspec.Struct)


def from_object(found: Json, kind: type[Kind]) -> Kind:
    """An object of the API as a value. Raises ValueError where a field has another type than the API's."""
    return msgspec.convert(_without_nulls(found), kind)


def to_object(value: Object) -> dict[str, Any]:
    """A value as the API has it."""
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(value))
    return found


def _without_nulls(found: Any) -> Any:
    """The API has null for what is not there, as kubectl's users do."""
    if isinstance(found, Mapping):
        return {key: _without_nulls(each) for key, each in found.items() if each is not None}
    return [_without_nulls(each) for each in found] if isinstance(found, list | tuple) else found
