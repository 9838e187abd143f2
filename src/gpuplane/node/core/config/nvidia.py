"""What a configuration file means here and not for NVIDIA's device plugin, of the keys that it reads and discards.

NVIDIA's plugin accepts `resources`, and `rename` and `devices` of a shared resource, and forgets them
(k8s-device-plugin 0.20, api/config/v1: DisableResourceNamingInConfig and replicas.go). They work here. So a node that
comes from that plugin changes the names that it offers, or the devices that it shares.
"""

from collections.abc import Iterable, Iterator

from gpuplane.base.strict import DocumentPath, format_path, load_with_lines
from gpuplane.kubernetes.resourcenames import GPU_RESOURCE, MIG_RESOURCE_PREFIX, RESOURCE_PREFIX
from gpuplane.node.core.config.compatibility import correct_config_keys
from gpuplane.node.core.config.schema import (
    SHARED_RESOURCE_SUFFIX,
    ConfigFile,
    NamingPattern,
    ReplicatedEntry,
    ResourcesSection,
    SharingSection,
)

DISCARDS = "NVIDIA's device plugin discards this key"


def differences_from_nvidia(data: bytes, name: str) -> tuple[str, ...]:
    """Each as "file:line: text", with the names here and there. Raises InvalidInput."""
    file, line = load_with_lines(data, ConfigFile, name, prepare=lambda root: correct_config_keys(root, []))
    return tuple(f"{name}:{line(path)}: {format_path(path)}: {text}" for path, text in _differences(file))


def _differences(file: ConfigFile) -> Iterator[tuple[DocumentPath, str]]:
    resources, sharing = file.resources or ResourcesSection(), file.sharing or SharingSection()
    yield from _of_names(("resources", "gpus"), resources.gpus or (), is_mig=False)
    yield from _of_names(("resources", "mig"), resources.mig or (), is_mig=True)
    for key, section in (("timeSlicing", sharing.time_slicing), ("mps", sharing.mps)):
        for i, entry in enumerate((section.resources if section else None) or ()):
            suffix = SHARED_RESOURCE_SUFFIX if section and section.rename_by_default else ""
            yield from _of_shares(("sharing", key, "resources", i), entry, suffix)


def _of_names(
    path: DocumentPath, patterns: Iterable[NamingPattern], *, is_mig: bool
) -> Iterator[tuple[DocumentPath, str]]:
    for i, each in enumerate(patterns):
        profile = each.pattern.replace("+", ".") if "*" not in each.pattern else "PROFILE"
        here, there = _full(each.name), f"{MIG_RESOURCE_PREFIX}{profile}" if is_mig else GPU_RESOURCE
        if here != there:
            yield (*path, i), f"these devices are {here}; {DISCARDS}, with it they are {there}"


def _of_shares(path: DocumentPath, entry: ReplicatedEntry, suffix: str) -> Iterator[tuple[DocumentPath, str]]:
    name, there = _full(entry.name), _full(f"{entry.name}{suffix}")
    if name != GPU_RESOURCE and not name.startswith(MIG_RESOURCE_PREFIX):
        yield (*path, "name"), f"{name} is shared; NVIDIA's device plugin has no such resource, with it nothing is"
        return
    if entry.rename is not None and _full(entry.rename) != there:
        yield (*path, "rename"), f"the shares are {_full(entry.rename)}; {DISCARDS}, with it they are {there}"
    if entry.devices not in (None, "all"):
        rest = f"only these devices are shared; {DISCARDS}, with it all devices of {name} are"
        yield (*path, "devices"), rest


def _full(name: str) -> str:
    return RESOURCE_PREFIX + name.removeprefix(RESOURCE_PREFIX)
