"""Flags, environment variables, file and defaults → settings. What comes first in this list has priority.

The errors of all of them are reported together, as far as one mistake does not hide another. A configuration with an
error is not used at all.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gpuplane.base.document import LineProblem
from gpuplane.base.strict import DocumentPath, InvalidInput, build_type, load_with_lines
from gpuplane.base.value import Value
from gpuplane.kubernetes.resourcenames import qualified_resource_name
from gpuplane.node.core.config.check import config_problems, config_warnings
from gpuplane.node.core.config.compatibility import correct_config_keys
from gpuplane.node.core.config.durations import UnparsedDuration, to_seconds
from gpuplane.node.core.config.flags import FLAGS, Flag
from gpuplane.node.core.config.flagvalues import find_text_and_source, parse_flag_value
from gpuplane.node.core.config.schema import (
    MEMORY_RESOURCE_SUFFIX,
    SHARED_RESOURCE_SUFFIX,
    ConfigFile,
    DeviceSelection,
    DraSection,
    FaultOverrideEntry,
    HealthSection,
    MemoryEntry,
    MemorySection,
    MetricsSection,
    MpsSection,
    NamingPattern,
    ReplicatedEntry,
    ResourcesSection,
    SharingSection,
    TaintEffectsSection,
    TimeSlicingSection,
    value_of_key,
)
from gpuplane.node.core.faults import overrides as judge
from gpuplane.node.core.shares import MIB_PER_MEMORY_UNIT
from gpuplane.node.model import config
from gpuplane.node.model.config import (
    DraSettings,
    MemorySharedResource,
    MetricsSettings,
    NamingRule,
    NodeSettings,
    PartitionSettings,
    ReplicatedResource,
    Settings,
    Sharing,
    TimeSlice,
)
from gpuplane.node.model.health import FaultOverride

build_type(ConfigFile)


class ResolvedConfig(Value, omit_defaults=False):
    """Settings, and where each of them was set.

    `sources`: a field of Settings, with the number of the entry where it is a list ("gpus.0"; of sharing "sharing.0"
    and "memory.0") or its name ("faults.xid-94") → where it was set ("config.yaml:3", "--mig-strategy",
    "MIG_STRATEGY"). Fields that have their default are left out.
    `ignored_settings`: where something was set that has no effect here → why it has none.
    `warnings`: what in the file is understood differently from how it is written, or is probably a mistake; each
    "file:line: text".
    """

    settings: Settings
    sources: Mapping[str, str]
    ignored_settings: Mapping[str, str]
    warnings: tuple[str, ...] = ()


def resolve_settings(
    file: bytes | None, name: str, flags: Mapping[str, str] = {}, environment: Mapping[str, str] = {}
) -> Settings:
    """The settings. `file`: its content, or None where there is none; `name`: of the file, for errors; `flags`: as
    `flagvalues.flag_texts_by_name` returns them.

    Raises InvalidInput. Its errors name the line of the file, the flag or the variable.
    """
    return resolve_with_sources(file, name, flags, environment).settings


def resolve_with_sources(
    file: bytes | None, name: str, flags: Mapping[str, str] = {}, environment: Mapping[str, str] = {}
) -> ResolvedConfig:
    """The settings as of `resolve_settings`, and where each of them was set. Raises InvalidInput."""
    errors: list[str] = []
    warnings: list[LineProblem] = []
    try:
        content, line = load_with_lines(
            file or b"", ConfigFile, name, config_problems, lambda root: correct_config_keys(root, warnings)
        )
    except InvalidInput as invalid:
        errors += invalid.errors
        content, line = load_with_lines(b"", ConfigFile, name)
    flag_values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    ignored_settings: dict[str, str] = {}
    for flag in FLAGS:
        try:
            value, where = _flag_value_and_source(
                flag, find_text_and_source(flag, flags, environment), value_of_key(content, flag.file_key)
            )
        except ValueError as error:
            errors.append(str(error))
            continue
        if where == UNLOCATED_FILE_SOURCE:
            where = f"{name}:{line(tuple(flag.file_key.split('.')))}"
        if flag.settings_field:
            flag_values[flag.settings_field] = value
            sources |= {flag.settings_field: where} if where else {}
        if where and flag.has_no_effect:
            ignored_settings[where] = flag.help
    if errors:
        raise InvalidInput(errors)
    sources |= {rule: f"{name}:{line(path)}" for rule, path in _setting_paths_in_file(content)}
    settings = _build_settings(content, flag_values)
    for where, why in _ignored_fault_setting_reasons(settings, sources):
        ignored_settings[where] = f"{ignored_settings[where]}; {why}" if where in ignored_settings else why
    warnings += ((line(path), text) for path, text in config_warnings(content))
    texts = tuple(f"{name}:{number}: {text}" for number, text in sorted(warnings))
    return ResolvedConfig(settings=settings, sources=sources, ignored_settings=ignored_settings, warnings=texts)


UNLOCATED_FILE_SOURCE = "file"


def _flag_value_and_source(flag: Flag, text_and_source: tuple[str, str] | None, file_value: Any) -> tuple[Any, str]:
    """The value of a flag, and where it was set; "" for its default. Raises ValueError."""
    if text_and_source is None:
        if file_value is None:
            return parse_flag_value(flag, flag.default), ""
        return (
            parse_flag_value(flag, file_value) if isinstance(file_value, str | tuple) else file_value
        ), UNLOCATED_FILE_SOURCE
    text, where = text_and_source
    try:
        return parse_flag_value(flag, text), where
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _build_settings(content: ConfigFile, flag_values: Mapping[str, Any]) -> Settings:
    settings = _settings_of_flags(flag_values)
    resources, health = content.resources or ResourcesSection(), content.health or HealthSection()
    driver_root = settings.driver_root or "/"
    return settings.but(
        driver_root=driver_root,
        dev_root=settings.dev_root or driver_root,
        mps_root=settings.mps_root or Settings().mps_root,
        gpus=_naming_rules(resources.gpus),
        mig=_naming_rules(resources.mig),
        sharing=_build_sharing(content),
        probe_period=settings.probe_period if (period := _to_optional_seconds(health.probe_period)) is None else period,
        metrics=_metrics_settings(content.metrics or MetricsSection()),
        dra=_dra_settings(content.dra or DraSection(), settings.dra),
        faults={code: _fault_override(rule) for code, rule in (health.faults or {}).items() if rule is not None},
    )


def _metrics_settings(section: MetricsSection) -> MetricsSettings:
    given = {
        "dcgm_names": section.dcgm_names,
        "hostname_label": section.hostname_label,
        "clear_xids": section.clear_xids,
        "interval": _to_optional_seconds(section.interval),
        "slow_interval": _to_optional_seconds(section.slow_interval),
        "watch_pods": section.watch_pods or (True if section.pod_labels else None),
        "pod_labels": section.pod_labels,
    }
    return MetricsSettings().but(**{name: value for name, value in given.items() if value is not None})


def _dra_settings(section: DraSection, from_flags: DraSettings) -> DraSettings:
    effects = section.taint_effects or TaintEffectsSection()
    given = {
        "unhealthy": effects.unhealthy,
        "degraded": effects.degraded,
        "drained": effects.drained,
        "device_metadata": section.device_metadata,
    }
    return from_flags.but(**{name: value for name, value in given.items() if value is not None})


def _settings_of_flags(flag_values: Mapping[str, Any]) -> Settings:
    """The settings that flags can set; a field "node.labels" is one of `Settings.node`."""
    sections: dict[str, dict[str, Any]] = {"node": {}, "partitions": {}, "dra": {}, "": {}}
    for name, value in flag_values.items():
        section, _, field = name.rpartition(".")
        sections[section][field] = value
    return Settings(
        **sections[""],
        node=NodeSettings(**sections["node"]),
        partitions=PartitionSettings(**sections["partitions"]),
        dra=DraSettings(**sections["dra"]),
    )


def _naming_rules(patterns: Iterable[NamingPattern] | None) -> tuple[NamingRule, ...]:
    return tuple(NamingRule(pattern=each.pattern, name=qualified_resource_name(each.name)) for each in patterns or ())


def _build_sharing(content: ConfigFile) -> Sharing:
    said = content.sharing or SharingSection()
    memory = said.memory or MemorySection()
    unit = memory.unit or "GiB"
    entries = ((entry, entry.share_size or memory.share_size or 1) for entry in memory.resources or ())
    return _replicated_sharing(said).but(
        memory_resources=tuple(_memory_resource(entry, grain * MIB_PER_MEMORY_UNIT[unit]) for entry, grain in entries),
        memory_unit=unit,
        mps_limits_memory=bool(memory.enforced_by_mps),
        mps=_mps_settings(said.mps or MpsSection()),
    )


def _replicated_sharing(section: SharingSection) -> Sharing:
    if section.mps is not None:
        entries = (_replicated_resource(entry, section.mps, None) for entry in section.mps.resources or ())
        one = section.mps.fail_requests_greater_than_one is not False
        return Sharing(replicated_resources=tuple(entries), fail_requests_greater_than_one=one, strategy="mps")
    slicing = section.time_slicing or TimeSlicingSection()
    slices = (
        _replicated_resource(entry, slicing, entry.time_slice or (slicing.time_slice if entry.replicas > 1 else None))
        for entry in slicing.resources or ()
    )
    return Sharing(
        replicated_resources=tuple(slices), fail_requests_greater_than_one=bool(slicing.fail_requests_greater_than_one)
    )


def _replicated_resource(
    entry: ReplicatedEntry, section: TimeSlicingSection | MpsSection, time_slice: TimeSlice | None
) -> ReplicatedResource:
    name = qualified_resource_name(entry.name)
    return ReplicatedResource(
        name=name,
        replicas=entry.replicas,
        rename=qualified_resource_name(entry.rename)
        if entry.rename
        else f"{name}{SHARED_RESOURCE_SUFFIX}"
        if section.rename_by_default
        else "",
        devices=_device_selection(entry.devices),
        model=entry.model or "",
        distinct_gpus=bool(entry.distinct_gpus),
        time_slice=time_slice,
    )


def _memory_resource(entry: MemoryEntry, share_mib: int) -> MemorySharedResource:
    return MemorySharedResource(
        name=qualified_resource_name(entry.name),
        rename=qualified_resource_name(entry.rename or f"{entry.name}{MEMORY_RESOURCE_SUFFIX}"),
        share_mib=share_mib,
        devices=_device_selection(entry.devices),
        model=entry.model or "",
    )


def _mps_settings(section: MpsSection) -> config.MpsDaemonSettings:
    return config.MpsDaemonSettings(
        compute_mode=section.compute_mode or "exclusive",
        multi_user=bool(section.multi_user),
        active_thread_percentage=section.active_thread_percentage,
    )


def _device_selection(devices: DeviceSelection) -> tuple[str, ...] | int | None:
    if isinstance(devices, tuple):
        return tuple(map(_normalize_device_reference, devices))
    return devices if isinstance(devices, int) else None


def _normalize_device_reference(device: int | str) -> str:
    """An index or UUID as the driver writes it: 7 for "07", a UUID in lower case."""
    text = str(device)
    if text[0].isdecimal():
        return ":".join(str(int(each)) for each in text.split(":"))
    kind, mark, uuid = text.rpartition("GPU-" if "GPU-" in text else "MIG-")
    return f"{kind}{mark}{uuid.lower()}"


def _to_optional_seconds(duration: UnparsedDuration | None) -> float | None:
    return None if duration is None else to_seconds(duration)


def _fault_override(rule: FaultOverrideEntry) -> FaultOverride:
    return FaultOverride(
        severity=rule.severity,
        clear_when=rule.clear_when,
        scope=rule.scope,
        grace_period=_to_optional_seconds(rule.grace_period),
        clear_after=_to_optional_seconds(rule.clear_after),
        advice=rule.advice,
    )


def _ignored_fault_setting_reasons(settings: Settings, sources: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Settings about faults that have no effect: where each was set, and why it has none."""
    for field in judge.HEALTH_CHECK_VARIABLES:
        if odd := judge.parse_health_check_list(getattr(settings, field)).invalid_words:
            words = ", ".join(map(repr, odd))
            yield sources[field], f"ignores {words}: write XID numbers (1 to 99999) or the word all"
    for code, ruling in settings.faults.items():
        if ruling.severity is not None and (field := judge.overriding_variable(code, settings)):
            yield sources[f"faults.{code}"], f"the severity of {code} has no effect: {sources[field]} has priority"


def _setting_paths_in_file(content: ConfigFile) -> Iterator[tuple[str, DocumentPath]]:
    """What only the file can set: its key in `ResolvedConfig.sources`, and its path in the file."""
    resources, sharing = content.resources or ResourcesSection(), content.sharing or SharingSection()
    lists: list[tuple[str, DocumentPath, Any]] = [
        ("gpus", ("resources", "gpus"), resources.gpus),
        ("mig", ("resources", "mig"), resources.mig),
        ("sharing", ("sharing", "timeSlicing", "resources"), sharing.time_slicing and sharing.time_slicing.resources),
        ("sharing", ("sharing", "mps", "resources"), sharing.mps and sharing.mps.resources),
        ("memory", ("sharing", "memory", "resources"), sharing.memory and sharing.memory.resources),
    ]
    for rule, path, entries in lists:
        yield from ((f"{rule}.{i}", (*path, i)) for i in range(len(entries or ())))
    if sharing.memory:
        yield "memory", ("sharing", "memory")
    health = content.health or HealthSection()
    if health.probe_period is not None:
        yield "probe_period", ("health", "probePeriod")
    if content.metrics is not None:
        yield "metrics", ("metrics",)
    if content.dra is not None:
        yield "dra", ("dra",)
    yield from ((f"faults.{code}", ("health", "faults", code)) for code in health.faults or ())
