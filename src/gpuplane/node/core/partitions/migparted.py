"""The file of named MIG configurations, as nvidia-mig-parted reads and writes it (api/spec/v1/spec.go).

It is read strictly: all that is misspelt, missing or contradictory is reported at once, each with its line. Whether a
GPU has the profiles, and which GPUs an entry means, is decided where the GPUs are known (`entries`, `plan`).

What NVIDIA's command takes and this refuses, since it can only be a mistake: a device filter that is no number (it
matches nothing there), a negative index, a repeated key, an empty value of `mig-enabled`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec
import yaml

from gpuplane.base.strict import DocumentPath, InvalidInput, build_type, load_with_lines
from gpuplane.base.text import join_first_names
from gpuplane.base.value import Value
from gpuplane.kubernetes.migprofilenames import parse_profile
from gpuplane.node.model.machine import Gpu
from gpuplane.node.model.partitions import MigConfigEntry, MigConfigs

VERSION = "v1"
ALL = "all"
Format = Literal["yaml", "json"]
DEVICE_ID = re.compile(r"0[xX][0-9a-fA-F]{1,8}|0[bB][01]{1,32}|0[oO]?[0-7]{1,11}|[1-9][0-9]{0,9}|0", re.ASCII)
"""A number that Go's ParseUint(text, 0, 32) takes (pkg/types/device.go), without underscores."""
PROBABLY_PROFILE = re.compile(r"(\d)g\W*(\d{1,3})(?:gb?)?(\+me)?", re.ASCII | re.IGNORECASE)
"""A misspelt name of a profile, without its white space."""
MAX_VALUES = 1024
"""Entries of one configuration, with their device filters and indices. A node has some sixteen GPUs."""


class _Entry(Value, rename="kebab"):
    devices: Literal["all"] | tuple[int, ...]
    mig_enabled: bool
    mig_devices: Mapping[str, int] | None = None
    device_filter: str | tuple[str, ...] | None = None


class _Spec(Value, rename="kebab"):
    version: Literal["v1"]
    mig_configs: Mapping[str, tuple[_Entry, ...]] | None = None


build_type(_Spec)


def parse_configs(data: bytes, file: str) -> MigConfigs:
    """The named configurations in a file, YAML or JSON; `file` names it in errors. Raises InvalidInput."""
    spec, line_of = load_with_lines(data, _Spec, file, _problems, prepare=lambda root: root)
    return {
        name: tuple(
            MigConfigEntry(
                mig_enabled=entry.mig_enabled,
                mig_devices={profile: count for profile, count in (entry.mig_devices or {}).items() if count},
                device_filters=_filters(entry),
                indices=entry.devices if isinstance(entry.devices, tuple) else None,
                source=f"{file}:{line_of(('mig-configs', name, i))}",
            )
            for i, entry in enumerate(entries)
        )
        for name, entries in (spec.mig_configs or {}).items()
    }


def select_config(configs: MigConfigs, name: str, file: str) -> tuple[str, tuple[MigConfigEntry, ...]]:
    """The configuration of this name, with its name; without a name the only one. Raises InvalidInput."""
    known = join_first_names(sorted(configs), 12) or "none"
    if not name and len(configs) == 1:
        name = next(iter(configs))
    if not name:
        raise InvalidInput([f"{file}: which configuration is meant? It has {known}"])
    if name not in configs:
        raise InvalidInput([f"{file}: there is no configuration {name!r}; there are {known}"])
    return name, configs[name]


def parse_device_id(text: str) -> tuple[int, int | None]:
    """(device and vendor, those of the board or None) of a device filter: "0x233010DE" or "0x233010DE:0x16C110DE".

    Raises ValueError, with a text for people.
    """
    parts = text.split(":")
    if len(parts) > 2 or not all(DEVICE_ID.fullmatch(part) for part in parts):
        raise ValueError(
            f"{text!r} is no PCI id: write the device and the vendor as one number, such as 0x233010DE, or with those "
            "of the board, as 0x233010DE:0x16C110DE"
        )
    numbers = [int(f"0o{part}" if re.fullmatch(r"0[0-7]+", part) else part, 0) for part in parts]
    if any(number >= 1 << 32 for number in numbers):
        raise ValueError(f"{text!r} does not fit into 32 bits")
    return numbers[0], numbers[1] if numbers[1:] else None


def export_configs(gpus: Sequence[Gpu], label: str = "current") -> MigConfigs:
    """The current state of these GPUs as one configuration: equal GPUs are in one entry (cmd/…/export/config.go)."""
    layouts: dict[tuple[bool, tuple[tuple[str, int], ...]], list[Gpu]] = {}
    for gpu in gpus:
        counts: dict[str, int] = {}
        for device in gpu.mig_devices if gpu.mig_enabled else ():
            counts[device.profile] = counts.get(device.profile, 0) + 1
        layouts.setdefault((gpu.mig_enabled, tuple(sorted(counts.items()))), []).append(gpu)
    kinds = {gpu.pci_id for gpu in gpus}
    entries = []
    for (enabled, devices), equal in layouts.items():
        filters = tuple(sorted({gpu.pci_id for gpu in equal} - {""}))
        chosen = [gpu for gpu in gpus if not filters or gpu.pci_id in filters]
        entries.append(
            MigConfigEntry(
                mig_enabled=enabled,
                mig_devices=dict(devices),
                device_filters=filters if len(kinds) > 1 and len(layouts) > 1 else (),
                indices=None if len(chosen) == len(equal) else tuple(gpu.index for gpu in equal),
            )
        )
    return {label: tuple(entries)}


def format_configs(configs: MigConfigs, form: Format) -> str:
    """A file with these configurations."""
    document = {
        "version": VERSION,
        "mig-configs": {name: [_as_document(each) for each in entries] for name, entries in configs.items()},
    }
    if form == "json":
        return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"
    text: str = yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)
    return text


class _FlowList(list[Any]):
    """A list that is written on one line."""


class _Dumper(yaml.SafeDumper):
    """Writes as nvidia-mig-parted does: `devices: [0, 1]`."""


_Dumper.add_representer(
    _FlowList, lambda dumper, items: dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=True)
)


def _as_document(entry: MigConfigEntry) -> dict[str, Any]:
    filters = entry.device_filters[0] if len(entry.device_filters) == 1 else _FlowList(entry.device_filters)
    return {
        **({"device-filter": filters} if filters else {}),
        "devices": ALL if entry.indices is None else _FlowList(entry.indices),
        "mig-enabled": entry.mig_enabled,
        **({"mig-devices": dict(entry.mig_devices)} if entry.mig_enabled else {}),
    }


def _filters(entry: _Entry) -> tuple[str, ...]:
    filters = (entry.device_filter,) if isinstance(entry.device_filter, str) else entry.device_filter or ()
    return tuple(each for each in filters if each)


def _count_values(entry: _Entry) -> int:
    return 1 + len(_filters(entry)) + (len(entry.devices) if isinstance(entry.devices, tuple) else 0)


def _problems(spec: _Spec) -> Iterator[tuple[DocumentPath, str]]:
    if spec.mig_configs is not None and not spec.mig_configs:
        yield ("mig-configs",), "mig-configs: must have at least one configuration"
    for name, entries in (spec.mig_configs or {}).items():
        if not entries:
            yield ("mig-configs", name), f"{name}: must have at least one entry"
        if (count := sum(map(_count_values, entries))) > MAX_VALUES:
            text = f"{name}: has {count} entries, device filters and indices; a configuration may have {MAX_VALUES}"
            yield ("mig-configs", name), text
            continue
        for i, entry in enumerate(entries):
            for path, problem in _entry_problems(entry):
                yield ("mig-configs", name, i, *path), f"{name}[{i}]: {problem}"


def _entry_problems(entry: _Entry) -> Iterator[tuple[DocumentPath, str]]:
    if entry.mig_enabled and entry.mig_devices is None:
        yield (), "mig-devices is missing: write `mig-devices: {}` for MIG mode without instances"
    if not entry.mig_enabled and entry.mig_devices:
        yield ("mig-devices",), "mig-devices must be empty where mig-enabled is false"
    if isinstance(entry.devices, tuple):
        for index in entry.devices:
            if index < 0:
                yield ("devices",), f"devices: no GPU has the index {index}"
    for text in _filters(entry):
        try:
            parse_device_id(text)
        except ValueError as error:
            yield ("device-filter",), f"device-filter: {error}"
    counts = entry.mig_devices or {}
    for profile, count in counts.items():
        try:
            parse_profile(profile)
        except ValueError as error:
            yield ("mig-devices", profile), f"mig-devices: {error}{_suggest_profile(profile)}"
        if count < 0:
            yield ("mig-devices", profile), f"mig-devices: there cannot be {count} of {profile}"
    if entry.mig_enabled and counts and not any(counts.values()):
        yield ("mig-devices",), "mig-devices: all counts are 0: write `mig-devices: {}` for MIG mode without instances"


def _suggest_profile(name: str) -> str:
    found = PROBABLY_PROFILE.fullmatch("".join(name.split()))
    return f"; did you mean {f'{found[1]}g.{found[2]}gb' + '+me' * bool(found[3])!r}?" if found else ""
