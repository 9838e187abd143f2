"""The CDI devices that a container runtime knows from its specification files, and the edits of requested devices.

The rules are those of the runtimes' own library (CNCF container-device-interface, pkg/cdi/cache.go): a later directory
has priority; if two files of equal priority define a device, it is unresolvable, even if a file of higher priority
defines it too.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpuplane.base.strict import InvalidInput, closest_match
from gpuplane.base.text import join_first_names
from gpuplane.base.value import Value
from gpuplane.node.core.containers.cdi.effectiveedits import concatenate_edits, drop_overridden_edits
from gpuplane.node.core.containers.cdi.names import CDI_KINDS, qualified_name
from gpuplane.node.core.containers.cdi.rules import is_qualified_name
from gpuplane.node.core.containers.cdi.validation import parse_spec, runtime_refusal_problems
from gpuplane.node.model.cdi import CdiDevice, ContainerEdits, Spec

SPEC_FILE_SUFFIXES = (".json", ".yaml")
"""The suffixes of specification files. Other files in a directory are ignored, and so are its subdirectories."""

DEFAULT_SPEC_DIRECTORIES = ("/etc/cdi", "/var/run/cdi")
"""Where runtimes look by default, the one with priority last."""

MAX_NAMES_LISTED = 8
"""The number of existing names that an error lists."""


ADVICE_BY_CDI_KIND = dict.fromkeys(
    CDI_KINDS, ("; the agent writes the file for the missing kind: see gpuplane inspect")
) | {"nvidia.com/gpu": "; gpuplane cdi generate writes a file for the missing kind"}
"""Kind → what to do if there is no device of it."""


class SpecFile(Value):
    """A file of a CDI directory: its specification, or the problem with it. `priority`: number of its directory."""

    path: str
    priority: int = 0
    spec: Spec | None = None
    problem: str = ""


class DeviceDefinition(Value):
    """A device and the file that defines it. `overridden_files`: files of lower priority that define it too."""

    device: CdiDevice
    file: SpecFile
    overridden_files: tuple[str, ...] = ()


class Registry(Value):
    """The devices of all files. Keys are qualified names."""

    devices: Mapping[str, DeviceDefinition] = {}
    conflicting_files_by_device: Mapping[
        str, tuple[str, ...]
    ] = {}  # unresolvable device → the files of equal priority that define it
    problem_by_file: Mapping[str, str] = {}  # file → why it is ignored


class UnresolvableDevices(Exception):
    """Devices that no file defines, or several. `reasons`: name → why, and what to do."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__("\n".join(f"{name}: {reason}" for name, reason in reasons.items()))
        self.reasons = reasons


def parse_spec_file(path: str, data: bytes | OSError, priority: int = 0) -> SpecFile:
    """A file from its content, or from the error of reading it. Never raises: errors become its `problem`."""
    if isinstance(data, OSError):
        return SpecFile(path, priority, problem=f"{path}: {data.strerror or data}")
    try:
        return SpecFile(path, priority, parse_spec(data, path, runtime_refusal_problems))
    except InvalidInput as invalid:
        first, *more = invalid.errors
        return SpecFile(path, priority, problem=first + (f" (and {len(more)} more)" if more else ""))


def build_registry(files: Iterable[SpecFile]) -> Registry:
    """The registry of all these files."""
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
            name: _definition_of_highest_priority(each)
            for name, each in sorted(definitions.items())
            if name not in conflicts
        },
        conflicting_files_by_device=conflicts,
        problem_by_file={file.path: file.problem for file in files if file.problem},
    )


def _definition_of_highest_priority(definitions: Sequence[DeviceDefinition]) -> DeviceDefinition:
    """The definition with priority, and the files that it overrides."""
    *over, first = definitions
    return first.but(overridden_files=tuple(each.file.path for each in over))


def _conflicting_files(definitions: Sequence[DeviceDefinition]) -> tuple[str, ...]:
    """The files of equal priority that define the same device; () if there is no conflict."""
    priorities = [each.file.priority for each in definitions]
    return tuple(each.file.path for each in definitions if priorities.count(each.file.priority) > 1)


def resolve_devices(registry: Registry, names: Sequence[str]) -> ContainerEdits:
    """The edits of a container with these devices. Raises UnresolvableDevices with all unresolvable names."""
    if reasons := {
        name: describe_unresolvable_device(registry, name) for name in names if name not in registry.devices
    }:
        raise UnresolvableDevices(reasons)
    return drop_overridden_edits(concatenate_edits(edits for _, edits in list_edits_by_device_or_kind(registry, names)))


def list_edits_by_device_or_kind(registry: Registry, names: Sequence[str]) -> Iterator[tuple[str, ContainerEdits]]:
    """(origin, edits) of resolvable devices, in the order in which they are applied.

    The origin of a device's own edits is its name. The common edits of a file come before those of its first device;
    their origin is the kind.
    """
    seen = set[str]()
    for name in names:
        device, file = registry.devices[name].device, registry.devices[name].file
        if file.path not in seen and file.spec is not None:
            seen.add(file.path)
            yield file.spec.kind, file.spec.container_edits
        yield name, device.container_edits


def describe_unresolvable_device(registry: Registry, name: str) -> str:
    """Why a name is not resolvable, and what to do."""
    if name in registry.conflicting_files_by_device:
        files = " and ".join(registry.conflicting_files_by_device[name])
        return f"{files} define this device with equal priority: keep it in one file and remove it from the others"
    kind, _, device = name.partition("=")
    if not is_qualified_name(name):
        similar = [each for each in registry.devices if each.partition("=")[2] == name]
        examples = " or ".join(similar[:MAX_NAMES_LISTED]) or "nvidia.com/gpu=0"
        return f"not a qualified name: write vendor/class=name, like {examples}"
    there = [
        each.partition("=")[2]
        for each in (*registry.devices, *registry.conflicting_files_by_device)
        if each.partition("=")[0] == kind
    ]
    return f"{_describe_missing_device(registry, kind, device, there)}{_describe_unreadable_files(registry)}"


def _describe_missing_device(registry: Registry, kind: str, device: str, existing_names: Sequence[str]) -> str:
    if existing_names:
        close = closest_match(device, existing_names)
        return (
            f"no file defines it; the devices of {kind} are: {join_first_names(existing_names, MAX_NAMES_LISTED)}"
            + (f"; did you mean {close}?" if close else "")
        )
    kinds = sorted({each.partition("=")[0] for each in (*registry.devices, *registry.conflicting_files_by_device)})
    others = f"; there are devices of these kinds: {', '.join(kinds)}" if kinds else ""
    return f"no file defines a device of {kind}{others}{ADVICE_BY_CDI_KIND.get(kind, '')}"


def _describe_unreadable_files(registry: Registry) -> str:
    """Names the files that are ignored: one of them could be the file that should define the device."""
    if not registry.problem_by_file:
        return ""
    first, *more = registry.problem_by_file.values()
    return f". A file with an error was ignored: {first}" + (f", and {len(more)} more" if more else "")
