"""Reads a specification as leniently as the container runtimes' library does (sigs.k8s.io/yaml, UnmarshalStrict).

A key without a value counts as missing. An integer or a boolean counts as text where text is expected: a device with
the name 0 may be written without quotes. Everything else is strict, and unknown keys are errors.
"""

from collections.abc import Mapping
from typing import Any, get_args, get_origin

import msgspec

from gpuplane.base.document import DocumentNode


def normalize_like_go_yaml(node: DocumentNode, expected_type: Any) -> DocumentNode:
    """The same tree, with these two differences to our types removed."""
    origin, args = get_origin(expected_type), get_args(expected_type)
    if isinstance(node.value, dict):
        given = {key: each for key, each in node.value.items() if each.value is not None}
        if origin is Mapping:
            return node.but(value={key: normalize_like_go_yaml(each, args[1]) for key, each in given.items()})
        fields = _field_types(expected_type)
        return node.but(value={key: normalize_like_go_yaml(each, fields.get(key)) for key, each in given.items()})
    if isinstance(node.value, list) and origin is tuple:
        return node.but(value=[normalize_like_go_yaml(each, args[0]) for each in node.value])
    if expected_type is str and isinstance(node.value, int):
        return node.but(value=str(node.value).lower() if isinstance(node.value, bool) else str(node.value))
    return node


def _field_types(expected_type: Any) -> dict[str, Any]:
    """Encoded name of each field → its type; {} if the type is not a struct."""
    structs = [
        each
        for each in (expected_type, *get_args(expected_type))
        if isinstance(each, type) and issubclass(each, msgspec.Struct)
    ]
    return {field.encode_name: field.type for each in structs for field in msgspec.structs.fields(each)}
