"""What an API server knows of the shape of objects: their fields, as lightkube's models have them, and legal labels.

Of a kind that lightkube does not know (a custom resource) only `metadata` is checked.
"""

import importlib
import re
from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import msgspec

LABEL_VALUE_PATTERN = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
LABEL_KEY_PATTERN = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
MAX_ANNOTATION_BYTES = 256 << 10
"""Bytes of all annotations (TotalAnnotationSizeLimitB, apimachinery/pkg/api/validation/objectmeta.go)."""


def undeclared_field(version: str, kind: str, found: Mapping[str, Any]) -> str:
    """The first field of an object that its kind does not have, as ".spec.colour"; "" where there is none."""
    shape = _find_model(version, kind)
    if shape is None:
        return next(_undeclared(_find_model("v1", "ObjectMeta"), found.get("metadata"), ".metadata"), "")
    return next(_undeclared(shape, found, ""), "")


def _find_model(version: str, kind: str) -> Any:
    group, _, name = version.rpartition("/")
    module = "meta_v1" if kind == "ObjectMeta" else f"{group.partition('.')[0] or 'core'}_{name}"
    try:
        return getattr(importlib.import_module(f"lightkube.models.{module}"), kind, None)
    except ImportError:
        return None


def _undeclared(shape: Any, value: Any, at: str) -> Iterator[str]:
    if get_origin(shape) in (Union, UnionType):
        [shape] = [each for each in get_args(shape) if each is not NoneType][:1]
    inner = get_args(shape)
    if isinstance(value, list) and inner:
        for number, each in enumerate(value):
            yield from _undeclared(inner[0], each, f"{at}[{number}]")
    elif isinstance(value, dict) and len(inner) == 2:
        for key, each in value.items():
            yield from _undeclared(inner[1], each, f"{at}.{key}")
    elif isinstance(value, dict) and isinstance(shape, type) and issubclass(shape, msgspec.Struct):
        fields = {each.encode_name: each.type for each in msgspec.structs.fields(shape)}
        for key, each in value.items():
            if key not in fields:
                yield f"{at}.{key}"
            else:
                yield from _undeclared(fields[key], each, f"{at}.{key}")


def invalid_metadata(found: Mapping[str, Any]) -> str:
    """What is not legal in the labels and annotations of an object, as the real server says it; "" for nothing."""
    metadata = found.get("metadata") or {}
    for key, value in (metadata.get("labels") or {}).items():
        if not LABEL_KEY_PATTERN.fullmatch(key):
            return f'metadata.labels: Invalid value: "{key}": name part must consist of alphanumeric characters'
        if len(value) > 63:
            return f'metadata.labels: Invalid value: "{value}": must be no more than 63 bytes'
        if not LABEL_VALUE_PATTERN.fullmatch(value):
            return f'metadata.labels: Invalid value: "{value}": a valid label must be an empty string or consist of …'
    annotations = metadata.get("annotations") or {}
    if sum(len(f"{key}{value}".encode()) for key, value in annotations.items()) > MAX_ANNOTATION_BYTES:
        return f"metadata.annotations: Too long: may not be more than {MAX_ANNOTATION_BYTES} bytes"
    return ""
