"""Names by which libraries are looked for, other than their own: in a container they are links, or mounts.

A library is mounted by the name of its version. The loader looks for its SONAME, and programs that load one by hand for
what the driver's installer links to it on the host. Some names NVIDIA makes in any case, whatever the host has
(nvidia-container-toolkit 1.20, internal/discover/{symlinks,graphics}.go): the table below.
"""

from collections.abc import Iterable, Iterator

from gpuplane.model.machine import DriverFile, DriverLibrary, Gpu
from gpuplane.model.value import Value

FIXED_LINKS = (
    ("libcuda.so.", "libcuda.so", "libcuda.so.1"),  # many programs load it by this name
    ("libGLX_nvidia.so.", "libGLX_indirect.so.0", ""),  # GLVND, for indirect rendering
    ("libnvidia-opticalflow.so.", "libnvidia-opticalflow.so", "libnvidia-opticalflow.so.1"),
    ("libnvidia-allocator.so.", "gbm/nvidia-drm_gbm.so", "../libnvidia-allocator.so.1"),
    ("libnvidia-vulkan-producer.so.", "libnvidia-vulkan-producer.so", ""),
    ("libglxserver_nvidia.so.", "libglxserver_nvidia.so", ""),  # a module of Xorg
)
"""(how a file's name begins, the link beside it, its target: "" is the file itself)."""


class Link(Value):
    """A link in a container. `target` as it stands in the link; `path` is where it is."""

    target: str
    path: str


def directory_of(path: str) -> str:
    """The folder that a file is in."""
    return path.rpartition("/")[0]


def base_name(path: str) -> str:
    """A file's name in its folder."""
    return path.rpartition("/")[2]


def library_links(found: DriverLibrary | DriverFile) -> Iterator[Link]:
    """The links to a library, or to a module of Xorg, in the folder where it is."""
    home, own = directory_of(_container_path(found)), base_name(found.path)
    names = dict[str, str]()
    if isinstance(found, DriverLibrary):
        soname = found.soname or own
        names = {soname: own} | {name: own if name == soname else soname for name in found.links}
    names |= {name: target or own for begin, name, target in FIXED_LINKS if own.startswith(begin)}
    names.pop(own, None)
    yield from (Link(target=target, path=f"{home}/{name}") for name, target in names.items())


def unique_links(found: Iterable[Link]) -> tuple[Link, ...]:
    """Each link once, by its path; of two at one path that to the name which comes first."""
    ordered = sorted(found, key=lambda link: (link.path, link.target), reverse=True)
    return tuple(reversed({link.path: link for link in ordered}.values()))


def _container_path(found: DriverLibrary | DriverFile) -> str:
    return found.path if isinstance(found, DriverLibrary) else found.target or found.path


def drm_links(gpu: Gpu) -> Iterator[Link]:
    """The names of a GPU's DRM nodes by its PCI address, as udev makes them on the host."""
    for node in sorted(gpu.dri) if gpu.pci else ():
        what = "card" if base_name(node).startswith("card") else "render"
        yield Link(target=f"../{base_name(node)}", path=f"{directory_of(node)}/by-path/pci-{gpu.pci}-{what}")
