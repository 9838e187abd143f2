"""JSON of values that have the statuses of parts in them: what msgspec cannot encode or decode by itself.

Statuses are an object: name of the part → its status, with the fields that this kind of part has.
"""

from typing import Any, TypeVar

import msgspec

from gpuplane.node.model.status import Statuses, parse_part_name

T = TypeVar("T")


def encode(value: object) -> bytes:
    """A value as JSON."""
    return msgspec.json.encode(value, enc_hook=encode_hook)


def decode(content: bytes, kind: type[T]) -> T:
    """A value from JSON. Raises msgspec.DecodeError."""
    return msgspec.json.decode(content, type=kind, dec_hook=_decode_hook)


def encode_hook(value: object) -> object:
    """What msgspec calls with what it does not know: statuses as plain data."""
    if isinstance(value, Statuses):
        return {part.name: msgspec.to_builtins(status) for part, status in value.items()}
    raise NotImplementedError(f"{type(value).__name__} cannot be encoded")


def _decode_hook(kind: type, data: Any) -> Any:
    if kind is Statuses:
        parts = [(parse_part_name(name), each) for name, each in msgspec.convert(data, dict[str, Any]).items()]
        return Statuses({part: msgspec.convert(each, part.status_type) for part, each in parts})
    raise NotImplementedError(f"{kind.__name__} cannot be decoded")


def format_json(value: object) -> bytes:
    """A value as indented JSON, with a newline at its end."""
    return msgspec.json.format(encode(value), indent=2) + b"\n"
