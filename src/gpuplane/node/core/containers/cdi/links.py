"""Links to libraries and DRM nodes in a container: the other names by which programs look for them.

A library is mounted by its file name, which has the version. The loader looks for its SONAME, and programs that call
dlopen look for the names of the links that the driver's installer creates on the host. Some links NVIDIA creates in any
case, whatever the host has (nvidia-container-toolkit 1.20, internal/discover/{symlinks,graphics}.go): the table below.
"""

from collections.abc import Iterable, Iterator

from gpuplane.base.value import Value
from gpuplane.node.model.machine import DriverFile, DriverLibrary, Gpu

ALWAYS_CREATED_LINKS = (
    ("libcuda.so.", "libcuda.so", "libcuda.so.1"),  # many programs load it by this name
    ("libGLX_nvidia.so.", "libGLX_indirect.so.0", ""),  # GLVND, for indirect rendering
    ("libnvidia-opticalflow.so.", "libnvidia-opticalflow.so", "libnvidia-opticalflow.so.1"),
    ("libnvidia-allocator.so.", "gbm/nvidia-drm_gbm.so", "../libnvidia-allocator.so.1"),
    ("libnvidia-vulkan-producer.so.", "libnvidia-vulkan-producer.so", ""),
    ("libglxserver_nvidia.so.", "libglxserver_nvidia.so", ""),  # a module of Xorg
)
"""(prefix of a file's name, link in its directory, target: "" for the file itself)."""


class Link(Value):
    """A symbolic link in a container. `target`: its content; `path`: where it is."""

    target: str
    path: str


def directory_of(path: str) -> str:
    """The directory of a path."""
    return path.rpartition("/")[0]


def base_name(path: str) -> str:
    """The last component of a path."""
    return path.rpartition("/")[2]


def library_links(library: DriverLibrary | DriverFile) -> Iterator[Link]:
    """The links to a library, or to a module of Xorg, in its own directory."""
    home, own = directory_of(_container_path(library)), base_name(library.path)
    names = dict[str, str]()
    if isinstance(library, DriverLibrary):
        soname = library.soname or own
        names = {soname: own} | {name: own if name == soname else soname for name in library.symlinks}
    names |= {name: target or own for begin, name, target in ALWAYS_CREATED_LINKS if own.startswith(begin)}
    names.pop(own, None)
    yield from (Link(target=target, path=f"{home}/{name}") for name, target in names.items())


def unique_links(symlinks: Iterable[Link]) -> tuple[Link, ...]:
    """Each link path once, sorted; of two links with one path the one whose target sorts first."""
    ordered = sorted(symlinks, key=lambda link: (link.path, link.target), reverse=True)
    return tuple(reversed({link.path: link for link in ordered}.values()))


def _container_path(found: DriverLibrary | DriverFile) -> str:
    return found.path if isinstance(found, DriverLibrary) else found.container_path or found.path


def drm_links(gpu: Gpu) -> Iterator[Link]:
    """The links to a GPU's DRM nodes by its PCI address, which udev creates on the host."""
    for node in sorted(gpu.dri) if gpu.pci else ():
        what = "card" if base_name(node).startswith("card") else "render"
        yield Link(target=f"../{base_name(node)}", path=f"{directory_of(node)}/by-path/pci-{gpu.pci}-{what}")
