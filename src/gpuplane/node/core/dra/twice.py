"""GPUs that are offered twice: by the device plugin, and to claims by ResourceSlices.

The scheduler counts the two apart, and a claim that is allocated and not prepared yet is unknown to the agent. Until it
is prepared, kubelet may be sent a pod for the same GPU as a resource of the device plugin. Then the GPU is unhealthy in
kubelet's list, or Allocate is refused, and kubelet rejects the pod (UnexpectedAdmissionError).
"""

from gpuplane.node.core.advertising import offer
from gpuplane.node.core.devicenames import DeviceName
from gpuplane.node.core.dra.names import device_name
from gpuplane.node.core.view import part_view
from gpuplane.node.model.machine import Gpu
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import SLICES
from gpuplane.node.model.views import Offer

OFFERED_TWICE_TEXT = (
    "offered by the device plugin and in ResourceSlices: kubelet may reject pods on this node, for a claim that is not "
    "prepared yet is unknown to the plugin (docs/dra.md)"
)


def gpus_offered_twice(snapshot: Snapshot) -> tuple[DeviceName, ...]:
    """The GPUs that the device plugin offers, whole or as shares, and that slices of this node publish."""
    settings, status = snapshot.config.settings, snapshot.statuses.of(SLICES)
    if settings is None or not settings.dra.enabled or status is None or not status.published:
        return ()
    return _offered_twice.of(snapshot, snapshot.gpus, offer(snapshot))


@part_view
def _offered_twice(gpus: tuple[Gpu, ...], offered: Offer) -> tuple[DeviceName, ...]:
    by_plugin = {device.unit.gpu for resource in offered.resources for device in resource.devices}
    published = (gpu for gpu in gpus if device_name(gpu.uuid) and not gpu.mig_enabled)
    return tuple((gpu.uuid, str(gpu.index)) for gpu in published if gpu.uuid in by_plugin)
