"""Many files → which devices a container runtime would know, and what a container gets that asks for some of them.

As the runtimes' own library has it (CNCF container-device-interface, pkg/cdi/cache.go): a directory that comes later
has priority; two files of equal priority that define the same device make it unresolvable, and no file of a higher
priority mends that.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpuplane.core.containers.cdi.applied import appended, applied
from gpuplane.core.containers.cdi.check import read, refused
from gpuplane.core.containers.cdi.names import KINDS, qualified
from gpuplane.core.containers.cdi.rules import qualifies
from gpuplane.core.strict import InvalidInput, closest_match
from gpuplane.core.text import list_first
from gpuplane.model.cdi import CdiDevice, ContainerEdits, Spec
from gpuplane.model.value import Value

SUFFIXES = (".json", ".yaml")
"""Of the files that count. What else lies in a directory is passed over, and so are directories within it."""

DIRECTORIES = ("/etc/cdi", "/var/run/cdi")
"""Where runtimes look, the one with priority last."""

FEW = 8
"""So many names are listed where a name is not known."""


REMEDIES = dict.fromkeys(KINDS, "; the agent keeps these: gpuplane inspect says how it stands") | {
    "nvidia.com/gpu": "; gpuplane cdi generate makes a file of these"
}
"""What to do where there is no device of a kind."""


class Loaded(Value):
    """One file of a CDI directory: its document, or why it is none. `priority`: the number of its directory."""

    path: str
    priority: int = 0
    spec: Spec | None = None
    problem: str = ""


class Defined(Value):
    """A device, and the file that defines it; `over`: the files of lower priority that define it too."""

    device: CdiDevice
    file: Loaded
    over: tuple[str, ...] = ()


class Registry(Value):
    """What the files define. Keys are qualified names."""

    devices: Mapping[str, Defined] = {}
    conflicts: Mapping[str, tuple[str, ...]] = {}  # unresolvable for these files of equal priority
    problems: Mapping[str, str] = {}  # file → why it counts for nothing


class Unresolvable(Exception):
    """Devices that no file defines, or more than one. `reasons`: each name, and why with what to do."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__("\n".join(f"{name}: {reason}" for name, reason in reasons.items()))
        self.reasons = reasons


def load(path: str, data: bytes | OSError, priority: int = 0) -> Loaded:
    """One file. Never raises: what is wrong with it is its `problem`, with file:line."""
    if isinstance(data, OSError):
        return Loaded(path, priority, problem=f"{path}: {data.strerror or data}")
    try:
        return Loaded(path, priority, read(data, path, refused))
    except InvalidInput as invalid:
        first, *more = invalid.errors
        return Loaded(path, priority, problem=first + (f" (and {len(more)} more)" if more else ""))


def registry(files: Iterable[Loaded]) -> Registry:
    """All files together."""
    files = sorted(files, key=lambda file: (file.priority, file.path))
    definitions: dict[str, list[Defined]] = {}
    for file in files:
        if file.spec is not None:
            for device in file.spec.devices:
                definitions.setdefault(qualified(file.spec.kind, device.name), []).append(Defined(device, file))
    conflicts = {name: paths for name, each in sorted(definitions.items()) if (paths := _equals(each))}
    return Registry(
        devices={name: _first(each) for name, each in sorted(definitions.items()) if name not in conflicts},
        conflicts=conflicts,
        problems={file.path: file.problem for file in files if file.problem},
    )


def _first(definitions: Sequence[Defined]) -> Defined:
    """The definition that has priority, and over which."""
    *over, first = definitions
    return first.but(over=tuple(each.file.path for each in over))


def _equals(definitions: Sequence[Defined]) -> tuple[str, ...]:
    """The files of equal priority among those that define a device."""
    priorities = [each.file.priority for each in definitions]
    return tuple(each.file.path for each in definitions if priorities.count(each.file.priority) > 1)


def resolve(known: Registry, names: Sequence[str]) -> ContainerEdits:
    """What a container gets that asks for these devices. Raises Unresolvable, naming all that cannot be resolved."""
    if reasons := {name: unresolvable(known, name) for name in names if name not in known.devices}:
        raise Unresolvable(reasons)
    return applied(appended(edits for _, edits in parts(known, names)))


def parts(known: Registry, names: Sequence[str]) -> Iterator[tuple[str, ContainerEdits]]:
    """(whose, edits) in their order, for devices that are known: a device's under its name, and before those of the
    first device of a file what the file gives with any, under its kind."""
    seen = set[str]()
    for name in names:
        device, file = known.devices[name].device, known.devices[name].file
        if file.path not in seen and file.spec is not None:
            seen.add(file.path)
            yield file.spec.kind, file.spec.container_edits
        yield name, device.container_edits


def unresolvable(known: Registry, name: str) -> str:
    """Why a name that is not among the devices cannot be resolved, and what to do."""
    if name in known.conflicts:
        files = " and ".join(known.conflicts[name])
        return f"defined by {files}, which have equal priority: remove it from all but one"
    kind, _, device = name.partition("=")
    if not qualifies(name):
        meant = [each for each in known.devices if each.partition("=")[2] == name]
        return f"not a qualified name: write vendor/class=name, like {' or '.join(meant[:FEW]) or 'nvidia.com/gpu=0'}"
    there = [each.partition("=")[2] for each in (*known.devices, *known.conflicts) if each.partition("=")[0] == kind]
    return f"{_missing(known, kind, device, there)}{_broken(known)}"


def _missing(known: Registry, kind: str, device: str, there: Sequence[str]) -> str:
    if there:
        close = closest_match(device, there)
        return f"no file defines it; of {kind} there are: {list_first(there, FEW)}" + (
            f"; did you mean {close}?" if close else ""
        )
    kinds = sorted({each.partition("=")[0] for each in (*known.devices, *known.conflicts)})
    others = f"; there are devices of: {', '.join(kinds)}" if kinds else ""
    return f"no file defines a device of {kind}{others}{REMEDIES.get(kind, '')}"


def _broken(known: Registry) -> str:
    """A file that counts for nothing may be the one that should define a device."""
    if not known.problems:
        return ""
    first, *more = known.problems.values()
    return f". A file that counts for nothing may: {first}" + (f", and {len(more)} more" if more else "")
