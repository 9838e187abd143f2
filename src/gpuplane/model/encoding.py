"""JSON of values that have the statuses of parts in them: what msgspec cannot encode or decode by itself.

Statuses are an object: name of the part → its status, with the fields that this kind of part has. Programs of the
version before have a text `detail` in place of these fields. It is still written for them, and read where they wrote
it, in `_fields_for_older_version` and `convert_former_fields` alone.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from gpuplane.model.status import (
    AnyPart,
    CdiConflictStatus,
    CdiFilesStatus,
    CdiHookStatus,
    ComputeModeStatus,
    DriverStatus,
    MpsDaemonStatus,
    Status,
    Statuses,
    TimeSliceStatus,
    TurnStatus,
    parse_part_name,
)

T = TypeVar("T")

FORMER_DRIVER_RELEASED_REASON = "let go of"
"""The `reason` of a released driver in the version before. Its `gpuplane driver release` waits for that."""


def encode(value: object) -> bytes:
    """A value as JSON."""
    return msgspec.json.encode(value, enc_hook=encode_hook)


def decode(content: bytes, kind: type[T]) -> T:
    """A value from JSON. Raises msgspec.DecodeError."""
    return msgspec.json.decode(content, type=kind, dec_hook=_decode_hook)


def encode_hook(value: object) -> object:
    """What msgspec calls with what it does not know: statuses as plain data."""
    if isinstance(value, Statuses):
        return {
            part.name: {**msgspec.to_builtins(status), **_fields_for_older_version(status)}
            for part, status in value.items()
        }
    raise NotImplementedError(f"{type(value).__name__} cannot be encoded")


def _decode_hook(kind: type, data: Any) -> Any:
    if kind is Statuses:
        return Statuses(
            {part: _decode_status(part, each) for part, each in _decode_parts(msgspec.convert(data, dict[str, Any]))}
        )
    raise NotImplementedError(f"{kind.__name__} cannot be decoded")


def _decode_parts(data: Mapping[str, Any]) -> list[tuple[AnyPart, Any]]:
    return [(parse_part_name(name), each) for name, each in data.items()]


def _decode_status(part: AnyPart, data: Any) -> Status:
    return msgspec.convert(convert_former_fields(part, data), part.status_type)


def convert_former_fields(part: AnyPart, data: Any) -> Any:
    """The plain data of a status, where the version before wrote it with the fields of this version instead of
    `detail`."""
    if not isinstance(data, Mapping) or "detail" not in data:
        return _add_released_field(part, data)
    detail, others = data["detail"], {name: each for name, each in data.items() if name != "detail"}
    if not isinstance(detail, str):
        return data
    kind, found = part.status_type, dict[str, object]()
    if kind is CdiFilesStatus:
        found = {"fingerprints": detail.split()}
    elif kind is CdiConflictStatus:
        found = {"devices": detail.split()}
    elif kind is CdiHookStatus:
        found = {"path": detail}
    elif kind is MpsDaemonStatus:
        found = {"devices": _split_former_detail(detail)}
    elif kind is ComputeModeStatus:
        found = {"exclusive": _split_former_detail(detail)}
    elif kind is TimeSliceStatus:
        found = {"pending": _split_former_detail(detail)}
    elif kind is TurnStatus:
        found = {"turn": detail}
    return {**found, **others}


def _split_former_detail(detail: str) -> list[str]:
    return detail.split(",") if detail else []


def _add_released_field(part: AnyPart, data: Any) -> Any:
    if (
        part.status_type is DriverStatus
        and isinstance(data, Mapping)
        and data.get("reason") == FORMER_DRIVER_RELEASED_REASON
    ):
        return {**data, "released": True, "reason": "released"}
    return data


def _fields_for_older_version(status: Status) -> Mapping[str, str]:
    """The fields of a status that are different in the version before."""
    match status:
        case DriverStatus(released=True):
            return {"reason": FORMER_DRIVER_RELEASED_REASON}
        case CdiFilesStatus(fingerprints=names) | CdiConflictStatus(devices=names):
            return {"detail": " ".join(names)}
        case (
            MpsDaemonStatus(devices=names)
            | ComputeModeStatus(exclusive_gpus=names)
            | TimeSliceStatus(pending_gpus=names)
        ):
            return {"detail": ",".join(names)}
        case CdiHookStatus(path=detail) | TurnStatus(turn=detail):
            return {"detail": detail}
    return {}
