"""gpuplane as its next version might be: `python tests/next_version.py agent …`.

Its state files have the next version, and they and its answers have fields at every level that this version does not
know. It reads both versions whole.
The product has no switch for this.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from gpuplane.cli import main
from gpuplane.node.agent import control
from gpuplane.node.core import ledger
from gpuplane.node.host import state
from gpuplane.node.model.control import ControlResponse
from gpuplane.node.model.encoding import encode_hook
from gpuplane.node.model.status import Statuses

PROGRAM = ("-P", str(Path(__file__)))
"""What Python is given instead of `-m gpuplane`."""

NEXT = ledger.FORMAT_VERSION + 1
ADDED = "added_by_the_next_version"
"""The field that each record has beside those of this version."""

read_known = ledger.decode_part


def extended(value: Any) -> Any:
    """A value as plain data, with the new field in each of its records."""
    match value:
        case msgspec.Struct():
            written = msgspec.to_builtins(value, enc_hook=encode_hook)  # without defaults
            fields = {field.encode_name: field.name for field in msgspec.structs.fields(value)}
            known = {name: extended(getattr(value, fields[name])) for name in written}
            return known | {ADDED: {"by": ["alice"]}}
        case Statuses():
            return extended(encode_hook(value))
        case Mapping():
            return {key: extended(each) for key, each in value.items()}
        case tuple() | list():
            return [extended(each) for each in value]
    return value


def reduced(data: Any) -> Any:
    """The same data without the new fields."""
    match data:
        case dict():
            return {key: reduced(each) for key, each in data.items() if key != ADDED}
        case list():
            return [reduced(each) for each in data]
    return data


def encode(value: Any, boot_id: str) -> bytes:
    """As `core.ledger.encode`, by the next version."""
    return msgspec.json.encode({"version": NEXT, "boot_id": boot_id, "value": extended(value), ADDED: 1})


def answered(answer: ControlResponse) -> bytes:
    """As `agent.control.encode`, by the next version."""
    return msgspec.json.encode(extended(answer))


def decode(file_name: str, content: bytes) -> ledger.LedgerFileContent:
    """As `core.ledger.decode_part`, by the next version: it knows its own fields."""
    return read_known(file_name, msgspec.json.encode(reduced(msgspec.json.decode(content))))


if __name__ == "__main__":
    ledger.FORMAT_VERSION = NEXT
    ledger.encode_part = state.encode_part = encode  # type: ignore[attr-defined]
    ledger.decode_part = state.decode_part = decode  # type: ignore[attr-defined]
    control.encode = answered
    sys.argv[0] = "gpuplane"
    main()
