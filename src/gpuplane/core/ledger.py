"""What a restart remembers: what a reboot makes untrue of it, and how the files of another version of us are read.

Each part of the ledger is a file with a version, the id of the boot that it was written in, and a value. It is read
field by field: what is not known here, because a newer version wrote it, is left out and costs nothing else. Where a
known field cannot be understood, the devices that it is about are drained, with that reason: a GPU that waits for its
replacement must not be given out again because of a rollback.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from gpuplane.core.health.records import NODE, rebooted
from gpuplane.core.text import clip, few
from gpuplane.model.config import NodeRequests
from gpuplane.model.health import DeviceRecord, Drain, HealthRecords
from gpuplane.model.snapshot import Ledger, Snapshot

VERSION = 1
"""Of the files that are written here. To be raised only where an older version of us would misread a file."""

_FIELDS = tuple(field for field in msgspec.structs.fields(Ledger) if field.name != "boot_id")
PARTS = {field.encode_name: field.name for field in _FIELDS}
"""Name of a file without its ending → the field of the ledger that it holds."""

_TYPES = {field.encode_name: field.type for field in _FIELDS}

LONGEST = 80
"""Characters of a field's name that are shown."""

Place = tuple[str, ...]


class _File(msgspec.Struct):
    """A file of the ledger. Other fields than these are a newer version's."""

    version: int
    boot_id: str
    value: msgspec.Raw


class Part(msgspec.Struct, frozen=True):
    """A part of the ledger as it was read. `problem`: what of it was not understood; "" where all was."""

    boot_id: str
    value: Any
    problem: str = ""


def encode(value: Any, boot_id: str) -> bytes:
    """The content of a part's file."""
    return msgspec.json.encode({"version": VERSION, "boot_id": boot_id, "value": value})


def decode(part: str, content: bytes) -> Part:
    """A part by the content of its file. Raises msgspec.DecodeError, UnicodeDecodeError or RecursionError where that is
    no such file at all."""
    file = msgspec.json.decode(content, type=_File)
    try:
        return Part(file.boot_id, msgspec.json.decode(file.value, type=_TYPES[part]))
    except msgspec.DecodeError:
        return _decode_leniently(part, file)


def _decode_leniently(part: str, file: _File) -> Part:
    from gpuplane.core.lenient import NotUnderstood, understand  # needed once in the life of a node, if ever

    written = f"it was written by version {file.version} of this format, and {VERSION} is known here"
    try:
        read = understand(msgspec.json.decode(file.value), _TYPES[part])
    except (NotUnderstood, msgspec.DecodeError) as error:
        if file.version == VERSION and not isinstance(error, NotUnderstood):
            raise  # we never wrote that
        value = _drained(HealthRecords(), [()], file.version) if part == "health" else None
        return Part(file.boot_id, value, f"{written}: nothing of it is understood")
    value = _drained(read.value, read.lost, file.version) if part == "health" and read.lost else read.value
    left_out = [clip(".".join(place), LONGEST) for place in (*read.lost, *read.unknown)]
    return Part(file.boot_id, value, f"{written}: {few(left_out, 5)} left out")


def _drained(health: HealthRecords, lost: Iterable[Place], version: int) -> HealthRecords:
    """The records, with each device drained of which something was lost: all devices where it is not known of which."""
    devices = dict(health.devices)
    why = f"what is remembered of it was written by version {version} of the state files and is not understood here"
    for place in lost:
        key = place[1] if place[:1] == ("devices",) and len(place) > 1 else NODE
        record = devices.get(key, DeviceRecord())
        devices[key] = record.but(drain=record.drain or Drain(reason=why))
    return health.but(devices=devices)


def carry(ledger: Ledger, boot_id: str, wall: float, now: float) -> Ledger:
    """The ledger as it holds in this boot, at `wall` seconds since 1970 and `now` of CLOCK_BOOTTIME.

    Times count from the boot, and a reboot has made every client of the driver let go: a release ends with its boot,
    and so do verdicts (`records.rebooted`) and the lengths of time slices. The name of the configuration last in force
    outlives it, and so does where held MIG devices were and how held shares were cut: UUIDs stay. What a person wants
    drained stays drained, whoever was told. The container runtime and kubelet are rather the same than unknown ones.
    """
    if ledger.boot_id == boot_id:
        return ledger
    health = None if ledger.health is None else rebooted(ledger.health, wall, now)
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


def stored(snapshot: Snapshot) -> bool:
    """Whether the disk holds all that the ledger says: only then may a promise be answered."""
    return snapshot.stored.ledger == snapshot.ledger
