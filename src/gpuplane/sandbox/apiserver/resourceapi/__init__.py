"""resource.k8s.io/v1 as the API server of Kubernetes 1.36 has it: ResourceSlices, DeviceClasses, claims, templates."""

from collections.abc import Mapping

from gpuplane.sandbox.apiserver.kinds import Kind
from gpuplane.sandbox.apiserver.resourceapi.claims import CLAIM_KIND, CLAIM_TEMPLATE_KIND
from gpuplane.sandbox.apiserver.resourceapi.classes import DEVICE_CLASS_KIND
from gpuplane.sandbox.apiserver.resourceapi.slices import SLICE_KIND

RESOURCE_KINDS: Mapping[str, Kind] = {
    each.plural: each for each in (DEVICE_CLASS_KIND, CLAIM_KIND, CLAIM_TEMPLATE_KIND, SLICE_KIND)
}
"""By their plural."""
