"""Many files → which devices a container runtime would know, and what a container gets that asks for some of them.

As the runtimes' own library has it (CNCF container-device-interface, pkg/cdi/cache.go): a directory that comes later
has priority; two files of equal priority that define the same device make it unresolvable.
"""

from collections.abc import Iterable, Mapping, Sequence

from gpuplane.model.cdi import CdiDevice, ContainerEdits, Spec
from gpuplane.model.value import Value


class Loaded(Value):
    """One file of a CDI directory: its document, or why it is none. `priority`: the number of its directory."""

    path: str
    priority: int = 0
    spec: Spec | None = None
    problem: str = ""


class Defined(Value):
    """A device, and the file that defines it."""

    device: CdiDevice
    file: Loaded


class Registry(Value):
    """What the files define. Keys are qualified names."""

    devices: Mapping[str, Defined] = {}
    conflicts: Mapping[str, tuple[str, ...]] = {}  # unresolvable for these files of equal priority
    problems: Mapping[str, str] = {}  # file → why it counts for nothing


class Unresolvable(Exception):
    """A device that no file defines, or more than one: its name, and what to do."""


def load(path: str, data: bytes | OSError, priority: int = 0) -> Loaded:
    """One file. Never raises: what is wrong with it is its `problem`, with file:line."""
    raise NotImplementedError


def registry(files: Iterable[Loaded]) -> Registry:
    """All files together."""
    raise NotImplementedError


def resolve(known: Registry, names: Sequence[str]) -> ContainerEdits:
    """What a container gets that asks for these devices. Raises Unresolvable, naming all that cannot be resolved."""
    raise NotImplementedError
