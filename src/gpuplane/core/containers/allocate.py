"""The answer to Allocate (field guide: NVIDIA's plugin, internal/plugin/server.go)."""

from collections.abc import Sequence

from gpuplane.core.resources.offer import offer
from gpuplane.model.snapshot import Snapshot
from gpuplane.model.views import Edits, Offered, Refused


def allocate(snapshot: Snapshot, resource: str, ids: Sequence[str]) -> Edits:
    """What a container that holds these ids of a resource gets. Raises Refused, naming the device and the reason."""
    devices = chosen(snapshot, resource, ids)
    units = dict.fromkeys(device.unit.id for device in devices)
    return Edits(env={"NVIDIA_VISIBLE_DEVICES": ",".join(units)})


def chosen(snapshot: Snapshot, resource: str, ids: Sequence[str]) -> list[Offered]:
    """The devices of these ids, each fit to be given out. Raises Refused for the first that is not."""
    offered = offer(snapshot).resource(resource)
    if offered is None:
        raise Refused(f"{resource} is not offered by this node: {offer(snapshot).waiting or 'no device has that name'}")
    if not ids:
        raise Refused(f"{resource}: the request names no device")
    known = {device.id: device for device in offered.devices}
    devices = []
    for each in dict.fromkeys(ids):
        device = known.get(each)
        if device is None:
            raise Refused(f"{resource}: unknown device {each[:64]!r}; this node has {len(known)} devices of that name")
        if device.trouble:
            raise Refused(f"{resource}: device {each} cannot be given out: {device.trouble}")
        devices.append(device)
    return devices
