"""What a restart remembers: what a reboot makes untrue of it, and how the files of another version of us are read.

Each part of the ledger is a file with a version, the id of the boot that it was written in, and a value. It is read
field by field: what is not known here, because a newer version wrote it, is left out and costs nothing else. Where a
known field cannot be understood, the devices that it is about are drained, with that reason: a GPU that waits for its
replacement must not be given out again because of a rollback.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from gpuplane.core.health.records import apply_reboot
from gpuplane.core.text import clip, list_first
from gpuplane.model.config import NodeRequests
from gpuplane.model.health import NODE, DeviceRecord, Drain, HealthRecords
from gpuplane.model.snapshot import Ledger, Snapshot

FORMAT_VERSION = 1
"""Of the files that are written here. To be raised only where an older version of us would misread a file."""

_FIELDS = tuple(field for field in msgspec.structs.fields(Ledger) if field.name != "boot_id")
FIELD_BY_FILE = {field.encode_name: field.name for field in _FIELDS}
"""Name of a file without its ending → the field of the ledger that it holds."""

_TYPE_BY_FILE = {field.encode_name: field.type for field in _FIELDS}

MAX_FIELD_CHARACTERS = 80
"""Characters of a field's name that are shown."""

FieldPath = tuple[str, ...]


class _LedgerFile(msgspec.Struct):
    """A file of the ledger. Other fields than these are a newer version's."""

    version: int
    boot_id: str
    value: msgspec.Raw


class LedgerPart(msgspec.Struct, frozen=True):
    """A part of the ledger as it was read. `problem`: what of it was not understood; "" where all was."""

    boot_id: str
    value: Any
    problem: str = ""


def encode_part(value: Any, boot_id: str) -> bytes:
    """The content of a part's file."""
    return msgspec.json.encode({"version": FORMAT_VERSION, "boot_id": boot_id, "value": value})


def decode_part(file_name: str, content: bytes) -> LedgerPart:
    """A part by the content of its file. Raises msgspec.DecodeError, UnicodeDecodeError or RecursionError where that is
    no such file at all."""
    file = msgspec.json.decode(content, type=_LedgerFile)
    try:
        return LedgerPart(file.boot_id, msgspec.json.decode(file.value, type=_TYPE_BY_FILE[file_name]))
    except msgspec.DecodeError:
        return _decode_leniently(file_name, file)


def _decode_leniently(file_name: str, file: _LedgerFile) -> LedgerPart:
    from gpuplane.core.lenient import NotReadable, read_leniently  # needed once in the life of a node, if ever

    written = f"it was written by version {file.version} of this format, and {FORMAT_VERSION} is known here"
    try:
        read = read_leniently(msgspec.json.decode(file.value), _TYPE_BY_FILE[file_name])
    except (NotReadable, msgspec.DecodeError) as error:
        if file.version == FORMAT_VERSION and not isinstance(error, NotReadable):
            raise  # we never wrote that
        value = _drain_unreadable_devices(HealthRecords(), [()], file.version) if file_name == "health" else None
        return LedgerPart(file.boot_id, value, f"{written}: nothing of it is understood")
    value = (
        _drain_unreadable_devices(read.value, read.unreadable_fields, file.version)
        if file_name == "health" and read.unreadable_fields
        else read.value
    )
    left_out = [
        clip(".".join(place), MAX_FIELD_CHARACTERS) for place in (*read.unreadable_fields, *read.unknown_fields)
    ]
    return LedgerPart(file.boot_id, value, f"{written}: {list_first(left_out, 5)} left out")


def _drain_unreadable_devices(
    health: HealthRecords, unreadable_fields: Iterable[FieldPath], version: int
) -> HealthRecords:
    """The records, with each device drained of which something was lost: all devices where it is not known of which."""
    devices = dict(health.devices)
    why = f"what is remembered of it was written by version {version} of the state files and is not understood here"
    for place in unreadable_fields:
        key = place[1] if place[:1] == ("devices",) and len(place) > 1 else NODE
        record = devices.get(key, DeviceRecord())
        devices[key] = record.but(drain=record.drain or Drain(reason=why))
    return health.but(devices=devices)


def carry_over_boot(ledger: Ledger, boot_id: str, wall: float, now: float) -> Ledger:
    """The ledger as it holds in this boot, at `wall` seconds since 1970 and `now` of CLOCK_BOOTTIME.

    Times count from the boot, and a reboot has made every client of the driver let go: a release ends with its boot,
    and so do verdicts (`records.rebooted`) and the lengths of time slices. The name of the configuration last in force
    outlives it, and so does where held MIG devices were and how held shares were cut: UUIDs stay. What a person wants
    drained stays drained, whoever was told. The container runtime and kubelet are rather the same than unknown ones.
    """
    if ledger.boot_id == boot_id:
        return ledger
    health = None if ledger.health is None else apply_reboot(ledger.health, wall, now)
    before = ledger.node_requests or NodeRequests()
    asked = NodeRequests(runtime=before.runtime, kubelet=before.kubelet, drains=before.drains)
    return Ledger(
        boot_id=boot_id,
        node_requests=None if asked == NodeRequests() else asked,
        config_name=ledger.config_name,
        mig_parents=ledger.mig_parents,
        share_layouts=ledger.share_layouts,
        health=health,
    )


def is_stored(snapshot: Snapshot) -> bool:
    """Whether the disk holds all that the ledger says: only then may a promise be answered."""
    return snapshot.stored.ledger == snapshot.ledger
