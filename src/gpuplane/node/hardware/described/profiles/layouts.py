"""Where distributions put the driver's files: a described machine's, by one word.

The libraries are those of NVIDIA's packages for a server with graphics, with the SONAME that each has. Who may use DRM
nodes is as the distribution's udev rules and groups have it.
"""

from typing import NamedTuple

from gpuplane.node.model.machine import DeviceNodeStat, DriverFile, DriverFiles, DriverLibrary

LIBRARY_SONAMES = {  # name → its SONAME's version; "" where that is the driver's
    "libEGL_nvidia": "0",
    "libGLESv1_CM_nvidia": "1",
    "libGLESv2_nvidia": "2",
    "libGLX_nvidia": "0",
    "libcuda": "1",
    "libcudadebugger": "1",
    "libnvcuvid": "1",
    "libnvidia-allocator": "1",
    "libnvidia-cfg": "1",
    "libnvidia-eglcore": "",
    "libnvidia-encode": "1",
    "libnvidia-fbc": "1",
    "libnvidia-glcore": "",
    "libnvidia-glsi": "",
    "libnvidia-glvkspirv": "",
    "libnvidia-gpucomp": "",
    "libnvidia-ml": "1",
    "libnvidia-ngx": "1",
    "libnvidia-nvvm": "4",
    "libnvidia-opencl": "1",
    "libnvidia-opticalflow": "1",
    "libnvidia-pkcs11-openssl3": "",
    "libnvidia-ptxjitcompiler": "1",
    "libnvidia-rtcore": "",
    "libnvidia-sandboxutils": "1",
    "libnvidia-tls": "",
    "libnvoptix": "1",
}
LIBRARIES_WITH_PLAIN_LINK = (
    "libcuda",
    "libnvcuvid",
    "libnvidia-encode",
    "libnvidia-ml",
    "libnvidia-nvvm",
    "libnvidia-opticalflow",
)
"""Of these there is a link without any version too."""
LIBRARIES_WITH_OWN_VERSION = {"libnvidia-egl-gbm": "1.1.2", "libnvidia-egl-wayland": "1.1.18"}
"""Libraries with versions of their own; their SONAMEs are 1."""
PROGRAM_NAMES = (
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-smi",
)
FIRMWARE_NAMES = ("gsp_ga10x.bin", "gsp_tu10x.bin")
SHARED_FILES = (
    "/etc/OpenCL/vendors/nvidia.icd",
    "/usr/share/egl/egl_external_platform.d/10_nvidia_wayland.json",
    "/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json",
    "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
    "/usr/share/nvidia/nvoptix.bin",
)


class Layout(NamedTuple):
    """A distribution's folders, its file of Vulkan's, and (mode, group) of DRM's nodes."""

    home: str
    drivers: str  # of Xorg
    extensions: str
    vulkan: str
    card: tuple[int, int]
    render: tuple[int, int]


LAYOUTS = {
    "debian": Layout(
        home="/usr/lib/x86_64-linux-gnu",
        drivers="/usr/lib/x86_64-linux-gnu/nvidia/xorg",
        extensions="/usr/lib/x86_64-linux-gnu/nvidia/xorg",
        vulkan="nvidia_icd.json",
        card=(0o660, 44),
        render=(0o660, 110),
    ),
    "debian-arm64": Layout(
        home="/usr/lib/aarch64-linux-gnu",
        drivers="/usr/lib/aarch64-linux-gnu/nvidia/xorg",
        extensions="/usr/lib/aarch64-linux-gnu/nvidia/xorg",
        vulkan="nvidia_icd.json",
        card=(0o660, 44),
        render=(0o660, 110),
    ),
    "redhat": Layout(
        home="/usr/lib64",
        drivers="/usr/lib64/xorg/modules/drivers",
        extensions="/usr/lib64/xorg/modules/extensions",
        vulkan="nvidia_icd.x86_64.json",
        card=(0o660, 39),
        render=(0o666, 105),
    ),
}


def layout_files(name: str, version: str) -> DriverFiles:
    """A driver's files as the distribution's packages install them."""
    layout = LAYOUTS[name]
    modules = (f"{layout.drivers}/nvidia_drv.so", f"{layout.extensions}/libglxserver_nvidia.so.{version}")
    firmware = (f"/lib/firmware/nvidia/{version}/{each}" for each in FIRMWARE_NAMES)
    programs = (f"/usr/bin/{each}" for each in PROGRAM_NAMES)
    vulkan = (f"vulkan/icd.d/{layout.vulkan}", "vulkan/implicit_layer.d/nvidia_layers.json")
    return DriverFiles(
        libraries=tuple(_libraries(layout, version)),
        files=(
            *(DriverFile(path=each) for each in (*firmware, *modules, *SHARED_FILES, *programs)),
            *(DriverFile(path=f"/usr/share/{each}", container_path=f"/etc/{each}") for each in vulkan),
        ),
        sockets=(DriverFile(path="/run/nvidia-persistenced/socket"),),
    )


def _libraries(layout: Layout, version: str) -> list[DriverLibrary]:
    found = [
        _library(layout.home, name, version, soname, name in LIBRARIES_WITH_PLAIN_LINK)
        for name, soname in LIBRARY_SONAMES.items()
    ]
    found += (_library(layout.home, name, own, "1") for name, own in LIBRARIES_WITH_OWN_VERSION.items())
    nvvm = f"{layout.home}/libnvidia-nvvm70.so.4"
    return [
        *found,
        DriverLibrary(path=nvvm, soname="libnvidia-nvvm70.so.4"),
        _library(f"{layout.home}/vdpau", "libvdpau_nvidia", version, "1"),
    ]


def _library(folder: str, name: str, version: str, soname: str, plain: bool = False) -> DriverLibrary:
    return DriverLibrary(
        path=f"{folder}/{name}.so.{version}",
        soname=f"{name}.so.{soname or version}",
        symlinks=(*((f"{name}.so",) if plain else ()), *((f"{name}.so.{soname}",) if soname else ())),
    )


def with_drm_permissions(name: str, node: str, numbers: DeviceNodeStat) -> DeviceNodeStat:
    """A node's numbers with who may use it there, where that is a DRM node."""
    if not node.startswith("/dev/dri/"):
        return numbers
    mode, gid = LAYOUTS[name].card if node.startswith("/dev/dri/card") else LAYOUTS[name].render
    return numbers.but(mode=mode, gid=gid)
