"""kubelet_internal_checkpoint: what kubelet's device manager remembers (devicemanager/checkpoint).

The shape is kubelet's: an entry for each container and resource, with the ids by NUMA node (-1: none) and the whole
answer to Allocate; the healthy devices of each registered resource; a checksum. Without entries there is a null, as Go
writes it. Kubelet's checksum hashes a Go value's printed form; ours is a CRC of the data, which only we check. A file
that does not fit its checksum is refused, as kubelet refuses it.
"""

import zlib

import msgspec
from google.protobuf.message import DecodeError

from gpuplane.node.kubelet.protocols import deviceplugin_pb2 as pb
from gpuplane.sandbox.kubelet.devices import AllocationKey, Devices, HeldDevices, ResourceState
from gpuplane.sandbox.kubelet.topology import ids_by_numa_node, numa_nodes_by_id

CHECKPOINT_FILE_NAME = "kubelet_internal_checkpoint"


class CorruptCheckpoint(Exception):
    """The checkpoint does not fit its checksum, or is no checkpoint."""


class _Entry(msgspec.Struct):
    uid: str = msgspec.field(name="PodUID")
    container: str = msgspec.field(name="ContainerName")
    resource: str = msgspec.field(name="ResourceName")
    ids: dict[int, list[str]] = msgspec.field(name="DeviceIDs")
    response: bytes = msgspec.field(name="AllocResp")


class _Data(msgspec.Struct):
    entries: list[_Entry] | None = msgspec.field(name="PodDeviceEntries")
    registered: dict[str, list[str]] = msgspec.field(name="RegisteredDevices")


class _File(msgspec.Struct):
    data: _Data = msgspec.field(name="Data")
    checksum: int = msgspec.field(name="Checksum")


def encode(devices: Devices) -> bytes:
    """The file's bytes."""
    entries = [
        _Entry(*place, ids_by_numa_node(held.ids), held.response.SerializeToString())
        for place, held in devices.allocated.items()
    ]
    data = _Data(entries or None, {name: sorted(known.healthy) for name, known in devices.resources.items()})
    return msgspec.json.encode(_File(data, _checksum(data)))


def decode(content: bytes) -> Devices:
    """What was remembered; registered resources come back with no device. Raises CorruptCheckpoint."""
    try:
        file = msgspec.json.decode(content, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptCheckpoint(f"not a checkpoint: {error}") from None
    if file.checksum != _checksum(file.data):
        raise CorruptCheckpoint("checkpoint is corrupted")
    devices = Devices({name: ResourceState() for name in file.data.registered})
    for entry in file.data.entries or ():
        place = AllocationKey(entry.uid, entry.container, entry.resource)
        try:
            answer = pb.ContainerAllocateResponse.FromString(entry.response)
        except DecodeError:
            continue  # kubelet passes over such an entry
        devices.allocated[place] = HeldDevices(numa_nodes_by_id(entry.ids), answer)
    return devices


def _checksum(data: _Data) -> int:
    return zlib.crc32(msgspec.json.encode(data))
