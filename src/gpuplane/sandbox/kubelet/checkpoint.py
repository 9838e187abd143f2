"""kubelet_internal_checkpoint: what kubelet's device manager remembers (devicemanager/checkpoint).

The shape is kubelet's: entries of pods with the ids by NUMA node and the whole answer to Allocate, the registered
devices, and a checksum. Kubelet's checksum hashes a Go value's printed form; ours is a CRC of the data, which only we
check. A file that does not fit its checksum is refused, as kubelet refuses it.
"""

import base64
import zlib
from typing import Any

import msgspec

from gpuplane.kubelet.protocols import deviceplugin_pb2 as pb
from gpuplane.sandbox.kubelet.devices import Devices, Known

NAME = "kubelet_internal_checkpoint"

Answers = dict[tuple[str, str, str], pb.ContainerAllocateResponse]
"""(pod UID, container, resource) → what Allocate answered."""


class Corrupt(Exception):
    """The checkpoint does not fit its checksum, or is no checkpoint."""


def encode(devices: Devices, answers: Answers) -> bytes:
    """The file's bytes."""
    data = {
        "PodDeviceEntries": [
            {
                "PodUID": uid,
                "ContainerName": container,
                "ResourceName": resource,
                "DeviceIDs": _by_numa(devices.resources.get(resource, Known()), ids),
                "AllocResp": base64.b64encode(
                    answers.get((uid, container, resource), pb.ContainerAllocateResponse()).SerializeToString()
                ).decode(),
            }
            for uid, containers in devices.allocated.items()
            for container, held in containers.items()
            for resource, ids in held.items()
        ],
        "RegisteredDevices": {name: sorted(known.healthy) for name, known in devices.resources.items()},
    }
    return msgspec.json.encode({"Data": data, "Checksum": _checksum(data)})


def decode(content: bytes) -> tuple[Devices, Answers]:
    """What was remembered; registered resources come back with no device. Raises Corrupt."""
    try:
        file = msgspec.json.decode(content)
        data = file["Data"]
        if file["Checksum"] != _checksum(data):
            raise Corrupt("checkpoint is corrupted")
        devices, answers = Devices({name: Known(stopped=0.0) for name in data["RegisteredDevices"]}), Answers()
        for entry in data["PodDeviceEntries"]:
            place = entry["PodUID"], entry["ContainerName"], entry["ResourceName"]
            devices.take(*place, [id for ids in entry["DeviceIDs"].values() for id in ids])
            answers[place] = pb.ContainerAllocateResponse.FromString(base64.b64decode(entry["AllocResp"]))
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise Corrupt(f"not a checkpoint: {error}") from None
    return devices, answers


def _by_numa(known: Known, ids: tuple[str, ...]) -> dict[str, list[str]]:
    nodes = known.healthy | known.unhealthy
    found: dict[str, list[str]] = {}
    for id in ids:
        for node in nodes.get(id) or (-1,):
            found.setdefault(str(node), []).append(id)
    return found


def _checksum(data: Any) -> int:
    return zlib.crc32(msgspec.json.encode(data, order="sorted"))
