"""The driver's files that every container gets as mounts: libraries, programs, firmware, configuration and sockets.

In the container a file has the path that it has below the driver root. Sockets are mounted writable and noexec
(nvidia-container-toolkit 1.20, internal/discover/ipc.go).

`library_alias_mounts` is for containers without hooks. There the loader's cache does not know the driver's libraries,
and there are no links to them. So each library is mounted by every name by which programs look for it, in the
directories that the loaders of Debian and of Red Hat search by default: which of the two an image has is not known.
"""

from collections.abc import Iterable, Iterator, Mapping

from gpuplane.base.text import Text, group_by_key, join_first_names
from gpuplane.node.core.containers.cdi import links
from gpuplane.node.core.containers.cdi.devicenodes import host_path
from gpuplane.node.core.containers.cdi.links import base_name, directory_of
from gpuplane.node.model.cdi import ContainerEdits, Mount
from gpuplane.node.model.machine import DriverFile, DriverFiles, DriverLibrary

READ_ONLY_MOUNT_OPTIONS = ("ro", "nosuid", "nodev", "rbind", "rprivate")
SOCKET_MOUNT_OPTIONS = ("nosuid", "nodev", "rbind", "rprivate", "noexec")
RED_HAT_LIBRARY_DIRECTORY = "/usr/lib64"
MULTIARCH_TRIPLETS = ("x86_64-linux-gnu", "aarch64-linux-gnu")
LIBCUDA_PREFIX = "libcuda.so."
MAX_PATHS_LISTED = 3
"""The number of paths that a note lists for one reason."""
EXPECTED_LIBRARY_PREFIXES = ("libnvidia-ml.so.", "libnvidia-ptxjitcompiler.so.")
"""Prefixes of the libraries that nearly every CUDA program loads sooner or later."""


def driver_file_edits(files: DriverFiles, root: str, *, with_sockets: bool = True) -> ContainerEdits:
    """The driver's files, without links to them. `with_sockets`: False leaves its sockets out."""
    shown = [*(DriverFile(path=each.path) for each in files.libraries), *files.files]
    mounts = [_mount(file, root, READ_ONLY_MOUNT_OPTIONS) for file in _sorted_files(shown)]
    if with_sockets:
        mounts += (_mount(file, root, SOCKET_MOUNT_OPTIONS) for file in _sorted_files(files.sockets))
    homes = sorted({directory_of(each.path) for each in _libcuda_libraries(files)})
    return ContainerEdits(
        env=(f"NVIDIA_CTK_LIBCUDA_DIR={':'.join(homes)}",) if homes else (),
        mounts=tuple(mounts),
    )


def gpudirect_storage_mounts(files: DriverFiles, root: str) -> Iterator[Mount]:
    """The files that GPUDirect Storage needs."""
    return (_mount(DriverFile(path=each), root, READ_ONLY_MOUNT_OPTIONS) for each in files.gds_paths)


def library_alias_mounts(files: DriverFiles, root: str) -> Iterator[Mount]:
    """The driver's libraries by all names by which programs look for them."""
    homes = {directory_of(each.path) for each in _libcuda_libraries(files)}
    found = sorted(files.libraries, key=lambda each: each.path)
    beside = [
        RED_HAT_LIBRARY_DIRECTORY,
        *(f"/usr/lib/{triplet}" for triplet in _multiarch_triplets(found, files.files)),
    ]
    for library in found:
        home = directory_of(library.path)
        above = max((each for each in homes if f"{home}/".startswith(f"{each}/")), key=len, default=home)
        below = home.removeprefix(above)
        yield from _mounts_by_all_library_names(library, root, home, (home, *(f"{each}{below}" for each in beside)))
    for file in _sorted_files(files.files):
        for link in links.library_links(file):
            yield _mount(DriverFile(path=file.path, container_path=link.path), root, READ_ONLY_MOUNT_OPTIONS)


def _mounts_by_all_library_names(
    library: DriverLibrary, root: str, home: str, directories: Iterable[str]
) -> Iterator[Mount]:
    """A library by all its names in each directory: those of its links, and its own if that is the SONAME."""
    names = [link.path.removeprefix(f"{home}/") for link in links.library_links(library)]
    if library.soname in ("", base_name(library.path)):
        names.append(base_name(library.path))
    for each in dict.fromkeys(directories):
        for name in names:
            yield _mount(DriverFile(path=library.path, container_path=f"{each}/{name}"), root, READ_ONLY_MOUNT_OPTIONS)


def _multiarch_triplets(libraries: Iterable[DriverLibrary], files: Iterable[DriverFile]) -> tuple[str, ...]:
    """Debian's multiarch names for this machine's processor; all of them if no path shows which."""
    paths = [*(each.path for each in libraries), *(each.path for each in files)]
    found = tuple(
        each
        for each in MULTIARCH_TRIPLETS
        if any(each in path or _vulkan_file_name_part(each) in base_name(path) for path in paths)
    )
    return found or MULTIARCH_TRIPLETS


def _vulkan_file_name_part(triplet: str) -> str:
    """The part of a file name that stands for a processor: ".x86_64." in nvidia_icd.x86_64.json of Vulkan."""
    return f".{triplet.partition('-')[0]}."


def _libcuda_libraries(files: DriverFiles) -> Iterator[DriverLibrary]:
    return (each for each in files.libraries if base_name(each.path).startswith(LIBCUDA_PREFIX))


def lacks_libcuda(files: DriverFiles | None) -> bool:
    """Whether libcuda is missing: then no container could use a GPU."""
    return files is None or next(_libcuda_libraries(files), None) is None


def missing_file_notes(files: DriverFiles) -> Iterator[Text]:
    """A note for each file that was not found in the driver, though a container may need it."""
    there = {base_name(each.path) for each in files.libraries}
    for begin in EXPECTED_LIBRARY_PREFIXES:
        if not any(name.startswith(begin) for name in there):
            yield f"the driver has no {begin}*"
    if not any(base_name(each.path) == "nvidia-smi" for each in files.files):
        yield "the driver has no nvidia-smi"


def omitted_file_notes(reason_by_path: Mapping[str, Text]) -> Iterator[Text]:
    """A note for each reason for which existing files are left out, with the paths."""
    for why, paths in group_by_key((why, path) for path, why in reason_by_path.items()):
        yield f"{join_first_names(paths, MAX_PATHS_LISTED)} {'is' if len(paths) == 1 else 'are'} left out: {why}"


def _sorted_files(files: Iterable[DriverFile]) -> Iterable[DriverFile]:
    return sorted(files, key=lambda each: (each.path, each.container_path))


def _mount(file: DriverFile, root: str, options: tuple[str, ...]) -> Mount:
    return Mount(host_path=host_path(root, file.path), container_path=file.container_path or file.path, options=options)
