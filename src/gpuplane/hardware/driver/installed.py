"""The driver's files that a container needs, found under the driver root as NVIDIA's container toolkit finds them.

What belongs to the driver is told by its version in a file's name, so the version is the one that is loaded; files of
another version beside them are left alone. A library's path is that of the file, after all links. Any other path is the
one by which programs look for it; only where an absolute link is on the way, which for whoever mounts it would lead to
another root, it is the file's, and the one that programs look for is its target.

Sources: NVIDIA/nvidia-container-toolkit, pkg/nvcdi/driver-nvml.go, pkg/lookup/library.go, internal/lookup/root,
internal/discover/{graphics,ipc,gds}.go.
"""

import re
import stat
from collections.abc import Callable, Iterable, Iterator

from gpuplane.hardware.driver.elf import soname
from gpuplane.hardware.driver.files import Files
from gpuplane.hardware.driver.tree import Tree
from gpuplane.model.machine import DriverFiles, File, Library

FOLDERS = (
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
CACHE = "/etc/ld.so.cache"
"""Where libcuda is in none of the folders, the loader's cache knows, as on Bottlerocket."""

XORG = ("drivers", "extensions")
XORG_FOLDERS = tuple(
    f"{folder}/modules" for folder in ("/usr/lib/xorg", "/usr/lib64/xorg", "/usr/X11R6/lib", "/usr/X11R6/lib64")
)
PROGRAMS = (
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
SHARED = ("/etc", "/usr/local/share", "/usr/share")
CONFIGURATION = (
    "glvnd/egl_vendor.d/10_nvidia.json",
    "egl/egl_external_platform.d/15_nvidia_gbm.json",
    "egl/egl_external_platform.d/10_nvidia_wayland.json",
    "egl/egl_external_platform.d/09_nvidia_wayland2.json",
    "egl/egl_external_platform.d/20_nvidia_xcb.json",
    "egl/egl_external_platform.d/20_nvidia_xlib.json",
    "nvidia/nvoptix.bin",
    "OpenCL/vendors/nvidia.icd",
)
MOVED = {  # where a container has it, wherever the host does
    "X11/xorg.conf.d/10-nvidia.conf": "/usr/share",
    "X11/xorg.conf.d/nvidia-drm-outputclass.conf": "/usr/share",
    "vulkan/icd.d/nvidia_icd.json": "/etc",
    "vulkan/icd.d/nvidia_icd.x86_64.json": "/etc",
    "vulkan/icd.d/nvidia_icd.aarch64.json": "/etc",
    "vulkan/icd.d/nvidia_layers.json": "/etc",
    "vulkan/implicit_layer.d/nvidia_layers.json": "/etc",
}
SOCKETS = ("nvidia-persistenced/socket", "nvidia-fabricmanager/socket")
MPS = "/tmp/nvidia-mps"  # noqa: S108 — the default of NVIDIA's programs
STORAGE = ("/run/udev", "/etc/cufile.json")

NAME = r"[\w.+-]+"
GRAPHICS = re.compile(r"libnvidia-egl-(gbm|wayland2?|xcb|xlib)\.so\.\d+\.[\d.]+")
NVVM = re.compile(rf"libnvidia-nvvm70\.so\.{NAME}")
CUDA = re.compile(r"libcuda\.so\.(\d+\.[\d.]+)")

Found = tuple[DriverFiles | None, str]


class Installed:
    """The files under one root. They are looked for again only when something has changed that the search came by."""

    def __init__(self, root: str, files: Files) -> None:
        self._root, self._files = root, files
        self._version, self._tree = "", Tree(root)
        self._found: Found | None = None

    def look(self, version: str) -> Found:
        """(the files of this version, "") or (None, why there are none). Nothing is raised."""
        if self._found is None or version != self._version or self._tree.changed():
            self._version, self._tree = version, Tree(self._root)
            self._found = _Search(self._tree, self._files, version).found()
        return self._found


class _Search:
    """One search in a tree."""

    def __init__(self, tree: Tree, files: Files, version: str) -> None:
        self._tree, self._files, self._version = tree, files, version
        self._of_version = re.compile(rf"{NAME}\.so\.{re.escape(version)}")

    def found(self) -> Found:
        """The files, or why there are none."""
        if not self._version:
            return (
                None,
                f"{self._tree.outside('/')}: the driver does not tell its version, which its files have in their names",
            )
        folders = self._folders()
        libraries = self._libraries(folders)
        if not folders or not libraries:
            return None, self._absence()
        files = (*self._firmware(), *self._xorg(folders), *self._configuration(), *self._programs())
        return DriverFiles(
            libraries=libraries,
            files=ordered(files),
            sockets=ordered(self._sockets()),
            storage=tuple(path for path in STORAGE if self._tree.stat(path) and self._tree.same_outside(path)),
        ), ""

    def _folders(self) -> tuple[str, ...]:
        """Where libcuda of this version is."""
        name = f"libcuda.so.{self._version}"
        found = (self._tree.file(f"{folder}/{name}") for folder in FOLDERS)
        folders = dict.fromkeys(_folder(path) for path in found if path)
        if not folders:
            cached = re.findall(rb"(/[^\0]*)/libcuda\.so\.1\0", self._tree.read(CACHE))
            found = (self._tree.file(f"{folder.decode(errors='replace')}/{name}") for folder in cached)
            folders = dict.fromkeys(_folder(path) for path in found if path)
        return tuple(folders)

    def _libraries(self, folders: Iterable[str]) -> tuple[Library, ...]:
        paths = set[str]()
        for folder in folders:
            for name in self._tree.names(folder):
                if self._of_version.fullmatch(name) or NVVM.fullmatch(name):
                    paths.add(f"{folder}/{name}")
            for name in self._tree.names(f"{folder}/vdpau"):
                if self._of_version.fullmatch(name):
                    paths.add(f"{folder}/vdpau/{name}")
        if not paths:
            return ()
        for folder in (*folders, *FOLDERS):
            paths |= {f"{folder}/{name}" for name in self._tree.names(folder) if GRAPHICS.fullmatch(name)}
        real = sorted({path for each in paths if (path := self._tree.file(each))})
        links = self._links(real)
        return tuple(Library(path=path, soname=self._soname(path), links=tuple(links.get(path, ()))) for path in real)

    def _soname(self, path: str) -> str:
        with self._tree.open(path) as file:
            name = "" if file is None else soname(file)
        return name if re.fullmatch(NAME, name) else ""

    def _links(self, libraries: Iterable[str]) -> dict[str, list[str]]:
        """Library → names in its folder that lead to it."""
        stems: dict[str, set[str]] = {}
        for path in libraries:
            stems.setdefault(_folder(path), set()).add(_stem(path.rpartition("/")[2]))
        links: dict[str, list[str]] = {}
        for folder, wanted in stems.items():
            for name, is_link in sorted(self._tree.names(folder).items()):
                if is_link and _stem(name) in wanted and re.fullmatch(NAME, name):
                    target = self._tree.file(f"{folder}/{name}")
                    if target is not None and _folder(target) == folder:
                        links.setdefault(target, []).append(name)
        return links

    def _firmware(self) -> Iterator[File]:
        """GSP firmware, where the kernel looks for it (Documentation/driver-api/firmware/fw_search_path)."""
        release = self._files.release()
        folders = dict.fromkeys(
            (
                self._files.firmware(),
                f"/lib/firmware/updates/{release}" if release else "",
                "/lib/firmware/updates",
                f"/lib/firmware/{release}" if release else "",
                "/lib/firmware",
            )
        )
        for folder in filter(None, folders):
            inside = f"{folder}/nvidia/{self._version}"
            names = (name for name in sorted(self._tree.names(inside)) if re.fullmatch(rf"gsp{NAME}\.bin", name))
            yield from filter(None, (self._file(f"{inside}/{name}") for name in names))

    def _xorg(self, folders: Iterable[str]) -> Iterator[File]:
        own = [f"{folder}/xorg/modules" for folder in folders]
        modules = [
            f"{base}{kind}/{each}" for base in (*own, *XORG_FOLDERS) for kind in ("", "/updates") for each in XORG
        ]
        places = [*(f"{folder}/nvidia/xorg" for folder in folders), *modules]
        for name in ("nvidia_drv.so", f"libglxserver_nvidia.so.{self._version}"):
            yield from self._first(f"{place}/{name}" for place in places)

    def _configuration(self) -> Iterator[File]:
        for name in CONFIGURATION:
            yield from filter(None, (self._file(f"{folder}/{name}") for folder in SHARED))
        for name, inside in MOVED.items():
            yield from self._first((f"{folder}/{name}" for folder in (*SHARED, "")), f"{inside}/{name}")

    def _programs(self) -> Iterator[File]:
        for name in PROGRAMS:
            there = (f"{folder}/{name}" for folder in PROGRAM_FOLDERS)
            yield from self._first(path for path in there if (found := self._tree.stat(path)) and found.st_mode & 0o111)

    def _sockets(self) -> Iterator[File]:
        """A folder where a socket should be is none: container runtimes make one of a source that is missing."""
        for name in SOCKETS:
            there = (f"{folder}/{name}" for folder in ("/run", "/var/run"))
            path = next((path for path in there if self._is(path, stat.S_ISSOCK)), None)
            if path is not None:
                yield self._told(path)
        if self._is(MPS, stat.S_ISDIR):
            yield self._told(MPS)

    def _is(self, path: str, kind: Callable[[int], bool]) -> bool:
        found = self._tree.stat(path)
        return found is not None and kind(found.st_mode)

    def _file(self, path: str, target: str = "") -> File | None:
        """A file, if it is there, and where a container has it: at the same path, unless it is said."""
        return self._told(path, target) if self._tree.file(path) else None

    def _told(self, path: str, target: str = "") -> File:
        real = path if self._tree.same_outside(path) else self._tree.resolve(path) or path
        return File(path=real, target="" if real == (target or path) else target or path)

    def _first(self, paths: Iterable[str], target: str = "") -> Iterator[File]:
        """The first of these that is there."""
        file = next(filter(None, (self._file(path, target) for path in paths)), None)
        return iter(() if file is None else (file,))

    def _absence(self) -> str:
        """Why there are no files: what was looked for, where, and what is there instead."""
        root, wanted = self._tree.outside("/"), f"libcuda.so.{self._version}"
        there = [folder for folder in FOLDERS[1:] if self._tree.names(folder)]
        others = sorted(
            {f"{folder}/{name}" for folder in there for name in self._tree.names(folder) if CUDA.fullmatch(name)}
        )
        if self._tree.refused:
            return "; ".join(f"{path}: {why}" for path, why in sorted(self._tree.refused.items()))
        if others:
            return (
                f"{root} has {', '.join(others)} and no {wanted}: the kernel has another version of the driver loaded"
            )
        if there:
            return f"{root} has no {wanted} in {', '.join(there)}"
        return f"{root} has no {wanted}, nor any folder of libraries: is the driver installed there?"


def ordered(files: Iterable[File]) -> tuple[File, ...]:
    """Each once, in the order of paths."""
    return tuple(sorted(set(files), key=lambda file: (file.path, file.target)))


def _folder(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _stem(name: str) -> str:
    return name.partition(".so")[0]
