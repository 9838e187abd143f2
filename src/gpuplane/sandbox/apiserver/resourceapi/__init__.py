"""resource.k8s.io/v1 as the API server of Kubernetes 1.36 has it: ResourceSlices, DeviceClasses, claims, templates."""

from collections.abc import Mapping

from gpuplane.sandbox.apiserver.kinds import Kind
from gpuplane.sandbox.apiserver.resourceapi.claims import CLAIMS, TEMPLATES
from gpuplane.sandbox.apiserver.resourceapi.classes import CLASSES
from gpuplane.sandbox.apiserver.resourceapi.slices import SLICES

KINDS: Mapping[str, Kind] = {each.plural: each for each in (CLASSES, CLAIMS, TEMPLATES, SLICES)}
"""By their plural."""
