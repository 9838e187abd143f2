"""Names of kinds, devices and specification files.

Kinds and file names are those of NVIDIA's device plugin (k8s-device-plugin 0.20, internal/cdi). So the names in
kubelet's checkpoint stay valid after a migration, and the files that their plugin left behind are taken over.
"""

VENDOR = "k8s.device-plugin.nvidia.com"
CDI_CLASSES = ("gpu", "imex-channel", "gdrcopy", "gds", "mofed")
"""The classes of our kinds; each has a file of its own."""

CDI_KINDS = tuple(f"{VENDOR}/{each}" for each in CDI_CLASSES)


def spec_file_name(kind: str) -> str:
    """Name of the file of a kind: "k8s.device-plugin.nvidia.com/gpu" → "k8s.device-plugin.nvidia.com-gpu.json"."""
    return f"{kind.replace('/', '-')}.json"


def qualified_name(kind: str, name: str) -> str:
    """A device's qualified name: "k8s.device-plugin.nvidia.com/gpu=GPU-…"."""
    return f"{kind}={name}"
