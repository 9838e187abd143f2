"""A document as container runtimes' library reads it: it is kinder than our types (sigs.k8s.io/yaml, UnmarshalStrict).

A key without a value counts as left out. A whole number or a truth value counts as text where text is wanted: a device
called 0 may be written without quotes. Nothing else is bent, and no unknown key is passed over.
"""

from collections.abc import Mapping
from typing import Any, get_args, get_origin

import msgspec

from gpuplane.core.document import DocumentNode


def read_leniently(node: DocumentNode, kind: Any) -> DocumentNode:
    """The same tree with these two differences taken away."""
    origin, args = get_origin(kind), get_args(kind)
    if isinstance(node.value, dict):
        given = {key: each for key, each in node.value.items() if each.value is not None}
        if origin is Mapping:
            return node.but(value={key: read_leniently(each, args[1]) for key, each in given.items()})
        fields = _field_types(kind)
        return node.but(value={key: read_leniently(each, fields.get(key)) for key, each in given.items()})
    if isinstance(node.value, list) and origin is tuple:
        return node.but(value=[read_leniently(each, args[0]) for each in node.value])
    if kind is str and isinstance(node.value, int):
        return node.but(value=str(node.value).lower() if isinstance(node.value, bool) else str(node.value))
    return node


def _field_types(kind: Any) -> dict[str, Any]:
    """The types of a value's fields by their names on the wire; none for what is no value."""
    arms = [each for each in (kind, *get_args(kind)) if isinstance(each, type) and issubclass(each, msgspec.Struct)]
    return {field.encode_name: field.type for each in arms for field in msgspec.structs.fields(each)}
