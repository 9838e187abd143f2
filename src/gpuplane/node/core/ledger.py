"""The files of the ledger: how they are encoded, how files of another version are read, what a reboot changes.

Each part of the ledger is a file with a version, the id of the boot in which it was written, and a value; of the
claims each one is. A file of another version is read field by field: an unknown field is left out and affects nothing
else. If a known field of a device cannot be read, or an older file has unknown fields in its findings, the device
is drained, with that reason: a GPU that waits for its replacement must not be given out again because of an upgrade
or a rollback.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from gpuplane.base.text import clip, join_first_names
from gpuplane.node.core.health.records import apply_reboot
from gpuplane.node.model.claims import PreparedClaim
from gpuplane.node.model.config import NodeObjectRequests
from gpuplane.node.model.health import NODE_RECORD_KEY, DeviceRecord, Drain, HealthRecords
from gpuplane.node.model.snapshot import Ledger, Snapshot
from gpuplane.node.model.status import STATE_DIRECTORY_PART

FORMAT_VERSION = 2
"""Of the files that we write. Raise it only if an older version of gpuplane would misread a file."""

_TYPE_BY_FIELD = {
    field.name: field.type for field in msgspec.structs.fields(Ledger) if field.name not in ("boot_id", "claims")
}
FIELDS_WITH_FILE = tuple(_TYPE_BY_FIELD)
"""The fields of the ledger that have a file each."""

CLAIMS_DIRECTORY = "claims"
"""The directory with a file for each claim, which has the claim's UID as its name."""

MAX_FIELD_CHARACTERS = 80
"""Characters of a field's name that are shown."""

PathInLedgerFile = tuple[str, ...]

FINDING_DEPTH = 4
"""The length of a finding's path in the file of the health records: devices, UUID, findings, number."""


class _LedgerFile(msgspec.Struct):
    """A file of the ledger. Any other field is of a newer version."""

    version: int
    boot_id: str
    value: msgspec.Raw


class LedgerFileContent(msgspec.Struct, frozen=True):
    """A part of the ledger as it was read. `problem`: what could not be read; "" if everything could."""

    boot_id: str
    value: Any
    problem: str = ""


def ledger_parts(ledger: Ledger) -> Mapping[str, Any]:
    """Name of each file without its suffix → the part of the ledger in it; None for no file."""
    claims = {f"{CLAIMS_DIRECTORY}/{uid}": claim for uid, claim in (ledger.claims or {}).items()}
    return {**{field: getattr(ledger, field) for field in FIELDS_WITH_FILE}, **claims}


def ledger_of_part(part: str, content: "LedgerFileContent") -> Ledger:
    """A ledger that has this part alone. Raises ValueError where a claim's file has another name than its claim."""
    value = content.value
    if part in FIELDS_WITH_FILE:
        return Ledger(boot_id=content.boot_id, **{part: value})
    if value is None:
        return Ledger(boot_id=content.boot_id)
    if part != f"{CLAIMS_DIRECTORY}/{value.claim.uid}":
        raise ValueError(f"the file is of claim {value.claim} with the UID {value.claim.uid}")
    return Ledger(boot_id=content.boot_id, claims={value.claim.uid: value})


def _type_of_part(part: str) -> Any:
    return _TYPE_BY_FIELD.get(part, PreparedClaim)


def encode_part(value: Any, boot_id: str) -> bytes:
    """The content of a part's file."""
    return msgspec.json.encode({"version": FORMAT_VERSION, "boot_id": boot_id, "value": value})


def decode_part(file_name: str, content: bytes) -> LedgerFileContent:
    """A part from the content of its file. Raises msgspec.DecodeError, UnicodeDecodeError or RecursionError if this is
    no file of the ledger."""
    file = msgspec.json.decode(content, type=_LedgerFile)
    try:
        return LedgerFileContent(file.boot_id, msgspec.json.decode(file.value, type=_type_of_part(file_name)))
    except msgspec.DecodeError:
        return _decode_leniently(file_name, file)


def _decode_leniently(file_name: str, file: _LedgerFile) -> LedgerFileContent:
    from gpuplane.node.core.lenient import UnreadableValue, decode_leniently  # rarely needed

    written = f"the file has format version {file.version}, but this agent writes version {FORMAT_VERSION}"
    try:
        read = decode_leniently(msgspec.json.decode(file.value), _type_of_part(file_name))
    except (UnreadableValue, msgspec.DecodeError) as error:
        if file.version == FORMAT_VERSION and not isinstance(error, UnreadableValue):
            raise  # this is no file of ours
        value = _drain_unreadable_devices(HealthRecords(), [()], file.version) if file_name == "health" else None
        return LedgerFileContent(file.boot_id, value, f"{written}: the agent cannot read any part of the file")
    unknown = read.unknown_fields if file.version < FORMAT_VERSION else ()
    doubtful = [*read.unreadable_fields, *(place for place in unknown if _is_in_finding(place))]
    value = _drain_unreadable_devices(read.value, doubtful, file.version) if file_name == "health" else read.value
    left_out = [
        clip(".".join(place), MAX_FIELD_CHARACTERS) for place in (*read.unreadable_fields, *read.unknown_fields)
    ]
    return LedgerFileContent(
        file.boot_id, value, f"{written}: the agent ignored the fields {join_first_names(left_out, 5)}"
    )


def _is_in_finding(place: PathInLedgerFile) -> bool:
    """Whether a field of the health records is of a finding. What an older agent said there has got lost."""
    return len(place) > FINDING_DEPTH and place[2] == "findings"


def _drain_unreadable_devices(
    health: HealthRecords, unreadable_fields: Iterable[PathInLedgerFile], version: int
) -> HealthRecords:
    """The records, with a drain for each device that has an unreadable field; if it is unknown which, for the node."""
    devices = dict(health.devices)
    why = f"the health record of the device has format version {version}, and this agent cannot read all of it"
    for place in unreadable_fields:
        key = place[1] if place[:1] == ("devices",) and len(place) > 1 else NODE_RECORD_KEY
        record = devices.get(key, DeviceRecord())
        devices[key] = record.but(drain=record.drain or Drain(reason=why))
    return health.but(devices=devices)


def adapt_to_new_boot(ledger: Ledger, boot_id: str, wall: float, now: float) -> Ledger:
    """The ledger as it is valid in this boot, at `wall` seconds since 1970 and `now` of CLOCK_BOOTTIME.

    Times count from the boot, and a reboot ends every process that uses the driver. So a driver release ends with its
    boot, and so do verdicts (`records.rebooted`), the lengths of time slices, and what was done to partitions:
    instances are gone. These stay: the requested layouts, by label too, which bring the instances back before the API
    server is heard, and whether NVIDIA's MIG manager acts on the node; claims, for their pods start again; the name of
    the configuration; the GPUs of held MIG devices and the layouts of held shares, because UUIDs stay; and drains. The
    container runtime and kubelet are assumed to be the same as before the reboot.
    """
    if ledger.boot_id == boot_id:
        return ledger
    health = None if ledger.health is None else apply_reboot(ledger.health, wall, now)
    before = ledger.node_requests or NodeObjectRequests()
    asked = NodeObjectRequests(
        container_runtime=before.container_runtime,
        kubelet_version=before.kubelet_version,
        drain_reasons=before.drain_reasons,
        mig_config=before.mig_config,
        has_mig_manager=before.has_mig_manager,
    )
    return Ledger(
        boot_id=boot_id,
        node_requests=None if asked == NodeObjectRequests() else asked,
        config_name=ledger.config_name,
        mig_parents=ledger.mig_parents,
        share_layouts=ledger.share_layouts,
        layout_request=ledger.layout_request,
        claims=ledger.claims,
        health=health,
    )


def is_ledger_stored(snapshot: Snapshot) -> bool:
    """Whether the whole ledger is on disk. Only then may an answer that depends on it be sent."""
    return snapshot.stored_ledger.ledger == snapshot.ledger


def is_ledger_remembered(snapshot: Snapshot) -> bool:
    """Whether the next agent would know of what is pending now, or never can: the state directory cannot be written."""
    state = snapshot.statuses.of(STATE_DIRECTORY_PART)
    return is_ledger_stored(snapshot) or (state is not None and state.state == "failing")
