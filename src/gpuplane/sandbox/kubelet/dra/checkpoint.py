"""dra_manager_state: what kubelet's DRA manager remembers (cm/dra/state), in kubelet's own format, checksum and all.

The list of claims is JSON in a string, with a CRC32 (IEEE) of that string beside it. Lists that are empty are null, as
Go writes them. With a file that does not fit its checksum kubelet does not start.
"""

import errno
import os
import zlib
from pathlib import Path

import msgspec

from gpuplane.base import files
from gpuplane.sandbox.kubelet.dra.claims import ClaimBooks, ClaimInfo, PreparedDevice

CHECKPOINT_FILE_NAME = "dra_manager_state"
CHECKPOINT_KIND, CHECKPOINT_VERSION = "DRACheckpoint", "checkpoint.dra.kubelet.k8s.io/v1"


class _Device(msgspec.Struct, rename="pascal"):
    pool_name: str
    device_name: str
    share_id: str | None = msgspec.field(name="ShareID")
    request_names: list[str] | None
    cdi_ids: list[str] | None = msgspec.field(name="CDIDeviceIDs")


class _Driver(msgspec.Struct, rename="pascal"):
    devices: list[_Device] | None = None


class _Claim(msgspec.Struct):
    uid: str = msgspec.field(name="ClaimUID")
    name: str = msgspec.field(name="ClaimName")
    namespace: str = msgspec.field(name="Namespace")
    pods: dict[str, dict[str, str]] = msgspec.field(name="PodUIDs")
    drivers: dict[str, _Driver] = msgspec.field(name="DriverState")


class _Data(msgspec.Struct):
    kind: str
    version: str = msgspec.field(name="apiVersion")
    claims: list[_Claim] = msgspec.field(name="ClaimInfoStateList")


class _File(msgspec.Struct, rename="pascal"):
    data: str
    checksum: int


def encode(books: ClaimBooks) -> bytes:
    """The file's bytes."""
    data = msgspec.json.encode(
        _Data(CHECKPOINT_KIND, CHECKPOINT_VERSION, [_claim_entry(each) for each in books.claims.values()])
    )
    return msgspec.json.encode(_File(data.decode(), zlib.crc32(data)))


def load(path: Path) -> ClaimBooks:
    """What was remembered; nothing without a file. Raises OSError for one that kubelet does not start with."""
    try:
        file = msgspec.json.decode(files.read(path), type=_File)
        if zlib.crc32(file.data.encode()) != file.checksum:
            raise msgspec.DecodeError("checkpoint is corrupted")
        data = msgspec.json.decode(file.data, type=_Data)
    except FileNotFoundError:
        return ClaimBooks()
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        problem = f"could not initialize checkpoint manager, please drain node and remove DRA state file: {error}"
        raise OSError(errno.EBADMSG, problem, os.fspath(path)) from None
    return ClaimBooks({(each.namespace, each.name): _claim_from_entry(each) for each in data.claims})


def _claim_entry(claim: ClaimInfo) -> _Claim:
    drivers = {
        driver: _Driver(
            [
                _Device(
                    each.pool, each.device, each.share_id, list(each.request_names) or None, list(each.cdi_ids) or None
                )
                for each in devices
            ]
            or None
        )
        for driver, devices in sorted(claim.drivers.items())
    }
    return _Claim(claim.uid, claim.name, claim.namespace, {uid: {} for uid in sorted(claim.pod_uids)}, drivers)


def _claim_from_entry(entry: _Claim) -> ClaimInfo:
    drivers = {
        driver: [
            PreparedDevice(
                each.pool_name,
                each.device_name,
                each.share_id,
                tuple(each.request_names or ()),
                tuple(each.cdi_ids or ()),
            )
            for each in state.devices or ()
        ]
        for driver, state in entry.drivers.items()
    }
    return ClaimInfo(entry.uid, entry.name, entry.namespace, dict.fromkeys(entry.pods), drivers)
