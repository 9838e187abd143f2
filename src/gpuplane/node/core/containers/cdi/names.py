"""Names of kinds, devices and specification files.

Kinds and file names are those of NVIDIA's device plugin (k8s-device-plugin 0.20, internal/cdi). So the names in
kubelet's checkpoint stay valid after a migration, and the files that their plugin left behind are taken over.
"""

from gpuplane.node.core.kinds.table import PLAIN_KINDS
from gpuplane.node.model.views import Unit

VENDOR = "k8s.device-plugin.nvidia.com"
CDI_CLASSES = ("gpu", "imex-channel", "gdrcopy", "gds", "mofed")
"""The classes of NVIDIA's kinds."""

PLAIN_VENDOR = "gpuplane.io"
"""The vendor of devices that are no GPUs; their class is their kind."""

GPU_CDI_KINDS = tuple(f"{VENDOR}/{each}" for each in CDI_CLASSES)
CDI_KINDS = (*GPU_CDI_KINDS, *(f"{PLAIN_VENDOR}/{name}" for name in PLAIN_KINDS))
"""All our kinds; each has a file of its own."""


def plain_cdi_kind(kind: str) -> str:
    """The CDI kind of a plain kind: "gpuplane.io/device-node"."""
    return f"{PLAIN_VENDOR}/{kind}"


def plain_cdi_name(unit: Unit) -> str:
    """The qualified name of a unit of a plain kind: "gpuplane.io/device-node=kvm"."""
    return qualified_name(plain_cdi_kind(unit.kind), unit.id.removeprefix(PLAIN_KINDS[unit.kind].record_key))


def spec_file_name(kind: str) -> str:
    """Name of the file of a kind: "k8s.device-plugin.nvidia.com/gpu" → "k8s.device-plugin.nvidia.com-gpu.json"."""
    return f"{kind.replace('/', '-')}.json"


def qualified_name(kind: str, name: str) -> str:
    """A device's qualified name: "k8s.device-plugin.nvidia.com/gpu=GPU-…"."""
    return f"{kind}={name}"
