"""What kinds, devices and files are called.

Kinds and file names are those of NVIDIA's device plugin (k8s-device-plugin 0.20, internal/cdi), so that what kubelet's
checkpoint names goes on meaning the same after a migration, and what their plugin left behind is taken over.
"""

VENDOR = "k8s.device-plugin.nvidia.com"
CLASSES = ("gpu", "imex-channel", "gdrcopy", "gds", "mofed")
"""The classes of our kinds; each has a file of its own."""

KINDS = tuple(f"{VENDOR}/{each}" for each in CLASSES)


def spec_file_name(kind: str) -> str:
    """The file of a kind: "k8s.device-plugin.nvidia.com/gpu" → "k8s.device-plugin.nvidia.com-gpu.json"."""
    return f"{kind.replace('/', '-')}.json"


def qualified_name(kind: str, name: str) -> str:
    """A device's qualified name, as runtimes take it."""
    return f"{kind}={name}"
