"""Flags, environment, file and defaults → settings: what is said earlier in this list holds.

What is wrong in each of them is told together, as far as one mistake does not hide another. Nothing of a wrong
configuration comes into force.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gpuplane.core.config.accepted import accepted
from gpuplane.core.config.check import check, doubtful
from gpuplane.core.config.durations import Duration, seconds
from gpuplane.core.config.flags import FLAGS, Flag
from gpuplane.core.config.given import given, typed
from gpuplane.core.config.schema import (
    MEMORY,
    SHARED,
    Devices,
    File,
    Health,
    Memory,
    MemoryEntry,
    Mps,
    Pattern,
    Resources,
    Rule,
    Shares,
    Strategies,
    TimeSlicing,
    at,
)
from gpuplane.core.document import Problem
from gpuplane.core.health import judge
from gpuplane.core.inventory.naming import qualified
from gpuplane.core.inventory.sharing import MIB
from gpuplane.core.strict import Invalid, Path, read
from gpuplane.model import config
from gpuplane.model.config import MemoryResource, NamingRule, ReplicatedResource, Settings, Sharing, TimeSlice
from gpuplane.model.health import FaultOverride
from gpuplane.model.value import Value


class Resolved(Value, omit_defaults=False):
    """Settings, and where each was said.

    `sources`: a field of Settings, with the entry's number where it is a list ("gpus.0", of sharing "sharing.0" and
    "memory.0") or its name ("faults.xid-94") → where it was said ("config.yaml:3", "--mig-strategy", "MIG_STRATEGY").
    What was left at its default is not in it.
    `idle`: where something was said that has no effect here → why it has none.
    `warnings`: what of the file is taken otherwise than it is written, or is perhaps not what was meant; each
    "file:line: what".
    """

    settings: Settings
    sources: Mapping[str, str]
    idle: Mapping[str, str]
    warnings: tuple[str, ...] = ()


def resolve(
    file: bytes | None, name: str, flags: Mapping[str, str] = {}, environment: Mapping[str, str] = {}
) -> Settings:
    """The settings. `file` is None where there is none; `name` is what to call it; `flags` as `given.texts` gives them.

    Raises Invalid with the errors: those of the file by line, those of a flag or variable by its name.
    """
    return trace(file, name, flags, environment).settings


def trace(
    file: bytes | None, name: str, flags: Mapping[str, str] = {}, environment: Mapping[str, str] = {}
) -> Resolved:
    """What `resolve` gives, and where each setting comes from. Raises Invalid."""
    errors: list[str] = []
    warnings: list[Problem] = []
    try:
        content, line = read(file or b"", File, name, check, lambda root: accepted(root, warnings))
    except Invalid as invalid:
        errors += invalid.errors
        content, line = read(b"", File, name)
    chosen: dict[str, Any] = {}
    sources: dict[str, str] = {}
    idle: dict[str, str] = {}
    for flag in FLAGS:
        try:
            value, where = _take(flag, given(flag, flags, environment), at(content, flag.key))
        except ValueError as error:
            errors.append(str(error))
            continue
        if where == FILE:
            where = f"{name}:{line(tuple(flag.key.split('.')))}"
        if flag.setting:
            chosen[flag.setting] = value
            sources |= {flag.setting: where} if where else {}
        if where and flag.idle:
            idle[where] = flag.help
    if errors:
        raise Invalid(errors)
    sources |= {rule: f"{name}:{line(path)}" for rule, path in _rules(content)}
    settings = _settings(content, chosen)
    for where, why in _unheard(settings, sources):
        idle[where] = f"{idle[where]}; {why}" if where in idle else why
    warnings += ((line(path), text) for path, text in doubtful(content))
    told = tuple(f"{name}:{number}: {text}" for number, text in sorted(warnings))
    return Resolved(settings=settings, sources=sources, idle=idle, warnings=told)


FILE = "file"


def _take(flag: Flag, said: tuple[str, str] | None, written: Any) -> tuple[Any, str]:
    """A row's value, and where it was said; "" for its default. Raises ValueError."""
    if said is None:
        if written is None:
            return typed(flag, flag.default), ""
        return (typed(flag, written) if isinstance(written, str | tuple) else written), FILE
    text, where = said
    try:
        return typed(flag, text), where
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _settings(content: File, chosen: Mapping[str, Any]) -> Settings:
    settings = Settings(**chosen)
    resources, health = content.resources or Resources(), content.health or Health()
    driver_root = settings.driver_root or "/"
    return settings.but(
        driver_root=driver_root,
        dev_root=settings.dev_root or driver_root,
        mps_root=settings.mps_root or Settings().mps_root,
        gpus=_namings(resources.gpus),
        mig=_namings(resources.mig),
        sharing=_sharing(content),
        probe_period=settings.probe_period if (period := _seconds(health.probe_period)) is None else period,
        faults={code: _ruling(rule) for code, rule in (health.faults or {}).items() if rule is not None},
    )


def _namings(patterns: Iterable[Pattern] | None) -> tuple[NamingRule, ...]:
    return tuple(NamingRule(pattern=each.pattern, name=qualified(each.name)) for each in patterns or ())


def _sharing(content: File) -> Sharing:
    said = content.sharing or Strategies()
    memory = said.memory or Memory()
    unit = memory.unit or "GiB"
    entries = ((entry, entry.grain or memory.grain or 1) for entry in memory.resources or ())
    return _replicated(said).but(
        memory=tuple(_memory(entry, grain * MIB[unit]) for entry, grain in entries),
        memory_unit=unit,
        memory_by_mps=bool(memory.mps),
        mps=_mps(said.mps or Mps()),
    )


def _replicated(said: Strategies) -> Sharing:
    if said.mps is not None:
        entries = (_replication(entry, said.mps, None) for entry in said.mps.resources or ())
        one = said.mps.fail_requests_greater_than_one is not False
        return Sharing(resources=tuple(entries), fail_requests_greater_than_one=one, strategy="mps")
    slicing = said.time_slicing or TimeSlicing()
    slices = (
        _replication(entry, slicing, entry.time_slice or (slicing.time_slice if entry.replicas > 1 else None))
        for entry in slicing.resources or ()
    )
    return Sharing(resources=tuple(slices), fail_requests_greater_than_one=bool(slicing.fail_requests_greater_than_one))


def _replication(entry: Shares, section: TimeSlicing | Mps, time_slice: TimeSlice | None) -> ReplicatedResource:
    name = qualified(entry.name)
    return ReplicatedResource(
        name=name,
        replicas=entry.replicas,
        rename=qualified(entry.rename) if entry.rename else f"{name}{SHARED}" if section.rename_by_default else "",
        devices=_devices(entry.devices),
        model=entry.model or "",
        distinct_gpus=bool(entry.distinct),
        time_slice=time_slice,
    )


def _memory(entry: MemoryEntry, grain_mib: int) -> MemoryResource:
    return MemoryResource(
        name=qualified(entry.name),
        rename=qualified(entry.rename or f"{entry.name}{MEMORY}"),
        share_mib=grain_mib,
        devices=_devices(entry.devices),
        model=entry.model or "",
    )


def _mps(said: Mps) -> config.Mps:
    return config.Mps(
        compute_mode=said.compute_mode or "exclusive",
        multi_user=bool(said.multi_user),
        active_thread_percentage=said.active_thread_percentage,
    )


def _devices(devices: Devices) -> tuple[str, ...] | int | None:
    if isinstance(devices, tuple):
        return tuple(map(_reference, devices))
    return devices if isinstance(devices, int) else None


def _reference(device: int | str) -> str:
    """An index or UUID as the driver writes it: 7 for "07", a UUID in small letters."""
    text = str(device)
    if text[0].isdecimal():
        return ":".join(str(int(each)) for each in text.split(":"))
    kind, mark, uuid = text.rpartition("GPU-" if "GPU-" in text else "MIG-")
    return f"{kind}{mark}{uuid.lower()}"


def _seconds(duration: Duration | None) -> float | None:
    return None if duration is None else seconds(duration)


def _ruling(rule: Rule) -> FaultOverride:
    return FaultOverride(
        severity=rule.severity,
        cleared_by=rule.ends,
        scope=rule.scope,
        grace_period=_seconds(rule.patience),
        clear_after=_seconds(rule.lasts),
        advice=rule.advice,
    )


def _unheard(settings: Settings, sources: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What was said about faults in vain, and why."""
    for field in judge.VARIABLES:
        if odd := judge.listed(getattr(settings, field)).odd:
            words = ", ".join(map(repr, odd))
            yield sources[field], f"passes over {words}: it takes XIDs (1 to 99999) and all"
    for code, ruling in settings.faults.items():
        if ruling.severity is not None and (field := judge.decided(code, settings)):
            yield sources[f"faults.{code}"], f"no effect of {code}'s severity: {sources[field]} decides"


def _rules(content: File) -> Iterator[tuple[str, Path]]:
    """What the file alone can say, by its names among the sources, and where it stands."""
    resources, sharing = content.resources or Resources(), content.sharing or Strategies()
    lists: list[tuple[str, Path, Any]] = [
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
    health = content.health or Health()
    if health.probe_period is not None:
        yield "probe_period", ("health", "probePeriod")
    yield from ((f"faults.{code}", ("health", "faults", code)) for code in health.faults or ())
