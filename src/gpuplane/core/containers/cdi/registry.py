"""Many files → which devices a container runtime would know, and what a container gets that asks for some of them.

As the runtimes' own library has it (CNCF container-device-interface, pkg/cdi/cache.go): a directory that comes later
has priority; two files of equal priority that define the same device make it unresolvable, and no file of a higher
priority mends that.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpuplane.core.containers.cdi.effectiveedits import concatenate_edits, effective_edits
from gpuplane.core.containers.cdi.names import KINDS, qualified_name
from gpuplane.core.containers.cdi.rules import is_qualified_name
from gpuplane.core.containers.cdi.validation import parse_spec, refusal_problems
from gpuplane.core.strict import InvalidInput, closest_match
from gpuplane.core.text import list_first
from gpuplane.model.cdi import CdiDevice, ContainerEdits, Spec
from gpuplane.model.value import Value

SPEC_FILE_SUFFIXES = (".json", ".yaml")
"""Of the files that count. What else lies in a directory is passed over, and so are directories within it."""

DEFAULT_SPEC_DIRECTORIES = ("/etc/cdi", "/var/run/cdi")
"""Where runtimes look, the one with priority last."""

MAX_NAMES_LISTED = 8
"""So many names are listed where a name is not known."""


ADVICE_BY_KIND = dict.fromkeys(KINDS, "; the agent keeps these: gpuplane inspect says how it stands") | {
    "nvidia.com/gpu": "; gpuplane cdi generate makes a file of these"
}
"""What to do where there is no device of a kind."""


class SpecFile(Value):
    """One file of a CDI directory: its document, or why it is none. `priority`: the number of its directory."""

    path: str
    priority: int = 0
    spec: Spec | None = None
    problem: str = ""


class DeviceDefinition(Value):
    """A device, and the file that defines it; `over`: the files of lower priority that define it too."""

    device: CdiDevice
    file: SpecFile
    overridden_files: tuple[str, ...] = ()


class Registry(Value):
    """What the files define. Keys are qualified names."""

    devices: Mapping[str, DeviceDefinition] = {}
    conflicts: Mapping[str, tuple[str, ...]] = {}  # unresolvable for these files of equal priority
    problems: Mapping[str, str] = {}  # file → why it counts for nothing


class UnresolvableDevices(Exception):
    """Devices that no file defines, or more than one. `reasons`: each name, and why with what to do."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__("\n".join(f"{name}: {reason}" for name, reason in reasons.items()))
        self.reasons = reasons


def parse_spec_file(path: str, data: bytes | OSError, priority: int = 0) -> SpecFile:
    """One file. Never raises: what is wrong with it is its `problem`, with file:line."""
    if isinstance(data, OSError):
        return SpecFile(path, priority, problem=f"{path}: {data.strerror or data}")
    try:
        return SpecFile(path, priority, parse_spec(data, path, refusal_problems))
    except InvalidInput as invalid:
        first, *more = invalid.errors
        return SpecFile(path, priority, problem=first + (f" (and {len(more)} more)" if more else ""))


def build_registry(files: Iterable[SpecFile]) -> Registry:
    """All files together."""
    files = sorted(files, key=lambda file: (file.priority, file.path))
    definitions: dict[str, list[DeviceDefinition]] = {}
    for file in files:
        if file.spec is not None:
            for device in file.spec.devices:
                definitions.setdefault(qualified_name(file.spec.kind, device.name), []).append(
                    DeviceDefinition(device, file)
                )
    conflicts = {name: paths for name, each in sorted(definitions.items()) if (paths := _conflicting_files(each))}
    return Registry(
        devices={
            name: _effective_definition(each) for name, each in sorted(definitions.items()) if name not in conflicts
        },
        conflicts=conflicts,
        problems={file.path: file.problem for file in files if file.problem},
    )


def _effective_definition(definitions: Sequence[DeviceDefinition]) -> DeviceDefinition:
    """The definition that has priority, and over which."""
    *over, first = definitions
    return first.but(overridden_files=tuple(each.file.path for each in over))


def _conflicting_files(definitions: Sequence[DeviceDefinition]) -> tuple[str, ...]:
    """The files of equal priority among those that define a device."""
    priorities = [each.file.priority for each in definitions]
    return tuple(each.file.path for each in definitions if priorities.count(each.file.priority) > 1)


def resolve_devices(known: Registry, names: Sequence[str]) -> ContainerEdits:
    """What a container gets that asks for these devices. Raises Unresolvable, naming all that cannot be resolved."""
    if reasons := {name: describe_unresolvable(known, name) for name in names if name not in known.devices}:
        raise UnresolvableDevices(reasons)
    return effective_edits(concatenate_edits(edits for _, edits in edits_with_origin(known, names)))


def edits_with_origin(known: Registry, names: Sequence[str]) -> Iterator[tuple[str, ContainerEdits]]:
    """(whose, edits) in their order, for devices that are known: a device's under its name, and before those of the
    first device of a file what the file gives with any, under its kind."""
    seen = set[str]()
    for name in names:
        device, file = known.devices[name].device, known.devices[name].file
        if file.path not in seen and file.spec is not None:
            seen.add(file.path)
            yield file.spec.kind, file.spec.container_edits
        yield name, device.container_edits


def describe_unresolvable(known: Registry, name: str) -> str:
    """Why a name that is not among the devices cannot be resolved, and what to do."""
    if name in known.conflicts:
        files = " and ".join(known.conflicts[name])
        return f"defined by {files}, which have equal priority: remove it from all but one"
    kind, _, device = name.partition("=")
    if not is_qualified_name(name):
        similar = [each for each in known.devices if each.partition("=")[2] == name]
        examples = " or ".join(similar[:MAX_NAMES_LISTED]) or "nvidia.com/gpu=0"
        return f"not a qualified name: write vendor/class=name, like {examples}"
    there = [each.partition("=")[2] for each in (*known.devices, *known.conflicts) if each.partition("=")[0] == kind]
    return f"{_describe_missing_device(known, kind, device, there)}{_describe_unreadable_files(known)}"


def _describe_missing_device(known: Registry, kind: str, device: str, there: Sequence[str]) -> str:
    if there:
        close = closest_match(device, there)
        return f"no file defines it; of {kind} there are: {list_first(there, MAX_NAMES_LISTED)}" + (
            f"; did you mean {close}?" if close else ""
        )
    kinds = sorted({each.partition("=")[0] for each in (*known.devices, *known.conflicts)})
    others = f"; there are devices of: {', '.join(kinds)}" if kinds else ""
    return f"no file defines a device of {kind}{others}{ADVICE_BY_KIND.get(kind, '')}"


def _describe_unreadable_files(known: Registry) -> str:
    """A file that counts for nothing may be the one that should define a device."""
    if not known.problems:
        return ""
    first, *more = known.problems.values()
    return f". A file that counts for nothing may: {first}" + (f", and {len(more)} more" if more else "")
