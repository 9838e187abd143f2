"""Where the files of NVIDIA's driver may be under its root: a table, as NVIDIA's container toolkit has it.

Sources: NVIDIA/nvidia-container-toolkit, pkg/lookup/library.go, pkg/nvcdi/driver-nvml.go, internal/lookup/root,
internal/discover/{graphics,ipc,gds}.go.
"""

LIBRARY_FOLDERS = (
    "/",
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
    "/lib64",
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/lib/x86_64-linux-gnu/nvidia/current",
    "/lib/aarch64-linux-gnu/nvidia/current",
)
LOADER_CACHE = "/etc/ld.so.cache"
"""Where libcuda is in none of the folders, the loader's cache knows, as on Bottlerocket."""

XORG_MODULE_FOLDERS = tuple(
    f"{folder}/modules" for folder in ("/usr/lib/xorg", "/usr/lib64/xorg", "/usr/X11R6/lib", "/usr/X11R6/lib64")
)
FIRMWARE_FOLDERS = ("/lib/firmware/updates", "/lib/firmware")
PROGRAM_NAMES = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-imex",
    "nvidia-imex-ctl",
    "nvidia-xconfig",
)
PROGRAM_FOLDERS = ("/usr/local/bin", "/usr/local/sbin", "/usr/bin", "/usr/sbin", "/bin", "/sbin")
CONFIGURATION_FOLDERS = ("/etc", "/usr/local/share", "/usr/share")
CONFIGURATION_FILES = {
    "glvnd/egl_vendor.d/10_nvidia.json": "/usr/share",
    "egl/egl_external_platform.d/15_nvidia_gbm.json": "/usr/share",
    "egl/egl_external_platform.d/10_nvidia_wayland.json": "/usr/share",
    "egl/egl_external_platform.d/09_nvidia_wayland2.json": "/usr/share",
    "egl/egl_external_platform.d/20_nvidia_xcb.json": "/usr/share",
    "egl/egl_external_platform.d/20_nvidia_xlib.json": "/usr/share",
    "nvidia/nvoptix.bin": "/usr/share",
    "X11/xorg.conf.d/10-nvidia.conf": "/usr/share",
    "X11/xorg.conf.d/nvidia-drm-outputclass.conf": "/usr/share",
    "OpenCL/vendors/nvidia.icd": "/etc",
    "vulkan/icd.d/nvidia_icd.json": "/etc",
    "vulkan/icd.d/nvidia_icd.x86_64.json": "/etc",
    "vulkan/icd.d/nvidia_icd.aarch64.json": "/etc",
    "vulkan/icd.d/nvidia_layers.json": "/etc",
    "vulkan/implicit_layer.d/nvidia_layers.json": "/etc",
}
"""File → the folder in which a container has it, wherever the host does: where the loaders of any image look.

The toolkit does so with all of them since its commits of August 2026, after 1.20.0; before, Vulkan's alone were moved.
"""
SOCKET_PATHS = ("nvidia-persistenced/socket", "nvidia-fabricmanager/socket")
MPS_FOLDER = "/tmp/nvidia-mps"  # noqa: S108 — the default of NVIDIA's programs
GDS_PATHS = ("/run/udev", "/etc/cufile.json")
