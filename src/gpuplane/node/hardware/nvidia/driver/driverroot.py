"""Where a driver root has what NVIDIA installs: one search for all libraries.

Apart from `find_library`, for the agent looks for programs there too, and must not import what loads the library.
"""

import os
import re
from collections.abc import Iterator

from gpuplane.node.hardware.nvidia.driver.driverpaths import LIBRARY_FOLDERS, LOADER_CACHE
from gpuplane.node.hardware.nvidia.driver.tree import Tree

NVML_SONAME = "libnvidia-ml.so.1"
PROGRAM_FOLDERS = ("opt/bin", "usr/bin", "usr/sbin", "bin", "sbin")  # those of NVIDIA's DRA driver (pkg/driverroot)


def folders_in_loader_cache(tree: Tree, soname: str) -> Iterator[str]:
    """Where the root's loader knows a library: its `ldconfig` has written it down.

    A root may have its libraries anywhere, as Bottlerocket and GKE do.
    """
    pattern = rb"(/[^\0]*)/%s\0" % re.escape(soname.encode())
    for folder in dict.fromkeys(re.findall(pattern, tree.read(LOADER_CACHE))):
        yield folder.decode(errors="replace")


def find_library(root: str, given: tuple[str, ...] = ()) -> str | None:
    """libnvidia-ml's file, as this process sees it; None where the dynamic linker shall find it.

    The given folders come first, then the usual ones, then those that the root's loader knows. What only has the name
    is passed over: a bind mount of a missing file leaves a directory.
    """
    if root in ("", "/") and not given:
        return None
    tree = Tree(root)
    cached = () if tree.untrusted_reason(LOADER_CACHE) else folders_in_loader_cache(tree, NVML_SONAME)
    paths = (f"{folder.rstrip('/')}/{NVML_SONAME}" for folder in (*given, *LIBRARY_FOLDERS, *cached))
    return next(filter(None, (_file(tree, path) for path in paths)), None)


def _file(tree: Tree, path: str) -> str | None:
    """A file, by links as whoever has the root for its root follows them, or as this process does."""
    inside, outside = tree.file(path), tree.outside(path)
    return tree.outside(inside) if inside is not None else outside if os.path.isfile(outside) else None


def library_candidates(root: str, given: tuple[str, ...] = ()) -> list[str]:
    """What decides which file that is: another search is worth while when one of them changes."""
    tree = Tree(root)
    return [
        tree.outside(LOADER_CACHE),
        *(tree.outside(f"{each.rstrip('/')}/{NVML_SONAME}") for each in (*given, *LIBRARY_FOLDERS)),
    ]


def describe_search(root: str, given: tuple[str, ...] = ()) -> str:
    """Where libnvidia-ml was looked for, for people."""
    places = ", ".join((*given, *LIBRARY_FOLDERS))
    cached = f"in what {LOADER_CACHE} there lists"
    return f"looked for {NVML_SONAME} under {root} in {places}, {cached}, and with the dynamic linker"


def find_program(root: str, name: str) -> str | None:
    """A program's file; None where the root has none."""
    return next(filter(os.path.isfile, (os.path.join(root, folder, name) for folder in PROGRAM_FOLDERS)), None)
