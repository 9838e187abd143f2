"""Devices that are offered twice: by the device plugin, and to claims by ResourceSlices.

The scheduler counts the two apart, and a claim that is allocated and not prepared yet is unknown to the agent. Until it
is prepared, kubelet may be sent a pod for the same device as a resource of the device plugin. Then the device is
unhealthy in kubelet's list, or Allocate is refused, and kubelet rejects the pod (UnexpectedAdmissionError).
"""

from gpuplane.node.core.advertising import offer
from gpuplane.node.core.devicenames import DeviceName
from gpuplane.node.core.dra.devices import DraDevices, dra_devices
from gpuplane.node.core.view import part_view
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import SLICES_PART
from gpuplane.node.model.views import Offer

OFFERED_TWICE_TEXT = (
    "offered by the device plugin and in ResourceSlices: kubelet may reject pods on this node, for a claim that is not "
    "prepared yet is unknown to the plugin (docs/dra.md)"
)


def devices_offered_twice(snapshot: Snapshot) -> tuple[DeviceName, ...]:
    """The devices that the device plugin offers, whole or as shares, and that slices of this node publish."""
    settings, status = snapshot.config.settings, snapshot.statuses.of(SLICES_PART)
    if settings is None or not settings.dra.enabled or status is None or not status.published:
        return ()
    return _offered_twice.of(snapshot, dra_devices(snapshot), offer(snapshot))


@part_view
def _offered_twice(devices: DraDevices, offered: Offer) -> tuple[DeviceName, ...]:
    by_plugin = {device.unit.gpu: device.unit for resource in offered.resources for device in resource.devices}
    published = (each.unit for each in devices.by_name.values() if each.not_claimable is None)
    return tuple((unit, by_plugin[unit].index) for unit in published if unit in by_plugin)
