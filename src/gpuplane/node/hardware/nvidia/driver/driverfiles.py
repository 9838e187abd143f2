"""The driver's files that a container needs, found under the driver root as NVIDIA's container toolkit finds them.

What belongs to the driver is told by its version in a file's name, so the version is the one that is loaded; files of
another version beside them are left alone. A library's path is that of the file, after all links. Any other path is the
one by which programs look for it; only where an absolute link is on the way, which for whoever mounts it would lead to
another root, it is the file's, and the one that programs look for is its target.

Containers get these files, and root runs some of them. So what somebody else than root could change is left out, with
the reason: a file, a directory or a link on the way to it that another user owns or may write to. What is mounted
writable has no link on its way at all: whoever put it there would choose what is mounted.

Where to look stands in `driverpaths`. Which of it: NVIDIA/nvidia-container-toolkit, pkg/nvcdi/driver-nvml.go.
"""

import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping

from gpuplane.node.hardware.nvidia.driver.driverpaths import (
    CONFIGURATION_FILES,
    CONFIGURATION_FOLDERS,
    FIRMWARE_FOLDERS,
    GDS_PATHS,
    LIBRARY_FOLDERS,
    LOADER_CACHE,
    MPS_FOLDER,
    PROGRAM_FOLDERS,
    PROGRAM_NAMES,
    SOCKET_PATHS,
    XORG_MODULE_FOLDERS,
)
from gpuplane.node.hardware.nvidia.driver.driverroot import folders_in_loader_cache
from gpuplane.node.hardware.nvidia.driver.elf import read_soname
from gpuplane.node.hardware.nvidia.driver.kernelfiles import KernelFiles
from gpuplane.node.hardware.nvidia.driver.tree import Tree
from gpuplane.node.model.machine import DriverFile, DriverFiles, DriverLibrary

FILE_NAME_PATTERN = r"[\w.+-]+"
EGL_LIBRARY = re.compile(r"libnvidia-egl-(gbm|wayland2?|xcb|xlib)\.so\.\d+\.[\d.]+")
NVVM_LIBRARY = re.compile(rf"libnvidia-nvvm70\.so\.{FILE_NAME_PATTERN}")
CUDA_LIBRARY = re.compile(r"libcuda\.so\.(\d+\.[\d.]+)")

FilesOrReason = tuple[DriverFiles | None, str]


class DriverFilesSearch:
    """The files under one root. They are looked for again only when something has changed that the search came by."""

    def __init__(self, root: str, files: KernelFiles, chosen: str = "", folders: tuple[str, ...] = ()) -> None:
        """`folders`: where libraries are looked for first."""
        self._root, self._files, self._chosen, self._folders = root, files, chosen, folders
        self._version, self._tree = "", Tree(root)
        self._found: FilesOrReason | None = None
        self.left: Mapping[str, str] = {}
        """What is there and was left out at the last look: its path as this process sees it → why."""

    def search(self, version: str) -> FilesOrReason:
        """(the files of this version, "") or (None, why there are none). Nothing is raised."""
        if self._found is None or version != self._version or self._tree.changed():
            self._version, self._tree = version, Tree(self._root)
            search = _Search(self._tree, self._files, version, self._folders)
            files, missing = search.found()
            self._found = files, "; ".join(filter(None, (missing, missing and self._chosen)))
            self.left = dict(sorted(search.left.values()))
        return self._found


class _Search:
    """One search in a tree."""

    def __init__(self, tree: Tree, files: KernelFiles, version: str, given: tuple[str, ...]) -> None:
        self._tree, self._files, self._version, self._given = tree, files, version, given
        self._of_version = re.compile(rf"{FILE_NAME_PATTERN}\.so\.{re.escape(version)}")
        self.left: dict[str, tuple[str, str]] = {}
        """What was left out: where it really is → the first path to it, for people, and why."""

    def found(self) -> FilesOrReason:
        """The files, or why there are none."""
        folders = self._folders()
        if not folders:
            return None, self._absence()
        libraries = self._libraries(folders)
        if not libraries:
            return None, self._refused() or f"{self._tree.outside(folders[0])} changed while it was read"
        files = (*self._firmware(), *self._xorg(folders), *self._configuration(), *self._programs())
        there = (path for path in GDS_PATHS if self._tree.stat(path) and self._tree.same_outside(path))
        storage = tuple(path for path in there if self._trusted(path))
        sockets = unique_by_path(self._sockets())
        return DriverFiles(libraries=libraries, files=unique_by_path(files), sockets=sockets, gds_paths=storage), ""

    def _folders(self) -> tuple[str, ...]:
        """Where libcuda of this version is."""
        usual, name = (*self._given, *LIBRARY_FOLDERS), f"libcuda.so.{self._version}"
        found = tuple(dict.fromkeys(self._folders_with(name, usual)))
        if found or not self._regular(LOADER_CACHE):
            return found
        return tuple(dict.fromkeys(self._folders_with(name, folders_in_loader_cache(self._tree, "libcuda.so.1"))))

    def _folders_with(self, name: str, folders: Iterable[str]) -> Iterator[str]:
        return (_folder(path) for folder in folders if (path := self._regular(f"{folder}/{name}")))

    def _libraries(self, folders: Iterable[str]) -> tuple[DriverLibrary, ...]:
        paths = set[str]()
        for folder in folders:
            for name in self._tree.names(folder):
                if self._of_version.fullmatch(name) or NVVM_LIBRARY.fullmatch(name):
                    paths.add(f"{folder}/{name}")
            for name in self._tree.names(f"{folder}/vdpau"):
                if self._of_version.fullmatch(name):
                    paths.add(f"{folder}/vdpau/{name}")
        for folder in (*folders, *self._given, *LIBRARY_FOLDERS):
            paths |= {f"{folder}/{name}" for name in self._tree.names(folder) if EGL_LIBRARY.fullmatch(name)}
        real = sorted({path for each in paths if (path := self._regular(each))})
        links = self._links(real)
        return tuple(
            DriverLibrary(path=path, soname=self._soname(path), symlinks=tuple(links.get(path, ()))) for path in real
        )

    def _soname(self, path: str) -> str:
        with self._tree.open(path) as file:
            name = "" if file is None else read_soname(file)
        return name if re.fullmatch(FILE_NAME_PATTERN, name) else ""

    def _links(self, libraries: Iterable[str]) -> dict[str, list[str]]:
        """Library → names in its folder that lead to it."""
        stems: dict[str, set[str]] = {}
        for path in libraries:
            stems.setdefault(_folder(path), set()).add(_stem(path.rpartition("/")[2]))
        links: dict[str, list[str]] = {}
        for folder, wanted in stems.items():
            for name, is_link in sorted(self._tree.names(folder).items()):
                if is_link and _stem(name) in wanted and re.fullmatch(FILE_NAME_PATTERN, name):
                    target = self._regular(f"{folder}/{name}")
                    if target is not None and _folder(target) == folder:
                        links.setdefault(target, []).append(name)
        return links

    def _firmware(self) -> Iterator[DriverFile]:
        """GSP firmware, where the kernel looks for it (Documentation/driver-api/firmware/fw_search_path)."""
        release = self._files.release()
        usual = [
            f"{folder}{each}" for folder in FIRMWARE_FOLDERS for each in ((f"/{release}", "") if release else ("",))
        ]
        for folder in dict.fromkeys(filter(None, (self._files.firmware(), *usual))):
            inside = f"{folder}/nvidia/{self._version}"
            names = (
                name for name in sorted(self._tree.names(inside)) if re.fullmatch(rf"gsp{FILE_NAME_PATTERN}\.bin", name)
            )
            yield from filter(None, (self._file(f"{inside}/{name}") for name in names))

    def _xorg(self, folders: Iterable[str]) -> Iterator[DriverFile]:
        own = [f"{folder}/xorg/modules" for folder in folders]
        bases = [f"{base}{kind}" for base in (*own, *XORG_MODULE_FOLDERS) for kind in ("", "/updates")]
        places = [f"{base}/{each}" for base in bases for each in ("drivers", "extensions")]
        places = [*(f"{folder}/nvidia/xorg" for folder in folders), *places]
        for name in ("nvidia_drv.so", f"libglxserver_nvidia.so.{self._version}"):
            yield from self._first(f"{place}/{name}" for place in places)

    def _configuration(self) -> Iterator[DriverFile]:
        for name, inside in CONFIGURATION_FILES.items():
            yield from self._first((f"{folder}/{name}" for folder in (*CONFIGURATION_FOLDERS, "")), f"{inside}/{name}")

    def _programs(self) -> Iterator[DriverFile]:
        for name in PROGRAM_NAMES:
            there = (f"{folder}/{name}" for folder in PROGRAM_FOLDERS)
            yield from self._first(path for path in there if (found := self._tree.stat(path)) and found.st_mode & 0o111)

    def _sockets(self) -> Iterator[DriverFile]:
        """A folder where a socket should be is none: container runtimes make one of a source that is missing."""
        for name in SOCKET_PATHS:
            there = (f"{folder}/{name}" for folder in ("/run", "/var/run"))
            path = next((path for path in there if self._writable(path, stat.S_ISSOCK)), None)
            if path is not None:
                yield self._told(path)
        if self._writable(MPS_FOLDER, stat.S_ISDIR):
            yield self._told(MPS_FOLDER)

    def _writable(self, path: str, kind: Callable[[int], bool]) -> bool:
        """Whether that is there and containers may have it writable: no link is on the way to it."""
        return self._is(path, kind) and self._trusted(path, follow=False)

    def _is(self, path: str, kind: Callable[[int], bool]) -> bool:
        found = self._tree.stat(path)
        return found is not None and kind(found.st_mode)

    def _file(self, path: str, target: str = "") -> DriverFile | None:
        """A file, if it is there, and where a container has it: at the same path, unless it is said."""
        return self._told(path, target) if self._regular(path) else None

    def _regular(self, path: str) -> str | None:
        """Where a path leads, if that is a regular file that nobody else could change."""
        real = self._tree.file(path)
        return real if real is not None and self._trusted(path) else None

    def _trusted(self, path: str, *, follow: bool = True) -> bool:
        """Whether nobody else could change what a path leads to; else it is remembered why it is left out."""
        reason = self._tree.untrusted_reason(path, follow=follow)
        if reason:
            self.left.setdefault(self._tree.resolve(path) or path, (self._tree.printable_path_outside(path), reason))
        return not reason

    def _told(self, path: str, target: str = "") -> DriverFile:
        real = path if self._tree.same_outside(path) else self._tree.resolve(path) or path
        return DriverFile(path=real, container_path="" if real == (target or path) else target or path)

    def _first(self, paths: Iterable[str], target: str = "") -> Iterator[DriverFile]:
        """The first of these that is there."""
        file = next(filter(None, (self._file(path, target) for path in paths)), None)
        return iter(() if file is None else (file,))

    def _absence(self) -> str:
        """Why there are no files: what was looked for, where, and what is there instead."""
        root, wanted = self._tree.root, f"libcuda.so.{self._version}"
        if self._tree.stat("/") is None:
            return f"{root}: there is no such directory"
        if refused := self._refused():
            return f"cannot look for {wanted} in {root}: {refused}"
        left = [f"{path} is left out: {why}" for path, why in sorted(self.left.values())]
        found = [each for each in left if f"/{wanted} is left out" in each]
        return "; ".join(found or (self._nowhere(wanted), *left))

    def _nowhere(self, wanted: str) -> str:
        root = self._tree.root
        there = {
            folder: names for folder in (*self._given, *LIBRARY_FOLDERS[1:]) if (names := self._tree.names(folder))
        }
        others = [
            f"{folder}/{name}" for folder, names in there.items() for name in names if CUDA_LIBRARY.fullmatch(name)
        ]
        broken = [path for path in others if path.endswith(f"/{wanted}")]
        if broken:
            return f"{self._tree.outside(broken[0])} is neither a file nor a link to a file within {root}"
        if others:
            return f"{root} has {', '.join(sorted(others))}, but not {wanted}, the version of the loaded kernel driver"
        if there:
            return f"{root} has no {wanted} in {', '.join(there)}"
        return f"{root} has neither {wanted} nor a directory of libraries: is the driver installed there?"

    def _refused(self) -> str:
        return "; ".join(f"{path}: {why}" for path, why in sorted(self._tree.refused.items()))


def unique_by_path(files: Iterable[DriverFile]) -> tuple[DriverFile, ...]:
    """Each once, in the order of paths."""
    return tuple(sorted(set(files), key=lambda file: (file.path, file.container_path)))


def _folder(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _stem(name: str) -> str:
    return name.partition(".so")[0]
