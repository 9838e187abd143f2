"""Flags, environment, file and defaults → settings: what is said earlier in this list holds.

What is wrong in each of them is told together, as far as one mistake does not hide another. Nothing of a wrong
configuration comes into force.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gpuplane.core.config.check import check
from gpuplane.core.config.durations import Duration, seconds
from gpuplane.core.config.flags import FLAGS, Flag
from gpuplane.core.config.given import given, typed
from gpuplane.core.config.schema import Devices, File, Health, Pattern, Resources, Rule, Shares, at
from gpuplane.core.health import judge
from gpuplane.core.resources.naming import qualified
from gpuplane.core.strict import Invalid, Path, read
from gpuplane.model.config import Naming, Replication, Settings, Sharing
from gpuplane.model.health import Ruling
from gpuplane.model.value import Value


class Resolved(Value):
    """Settings, and where each was said.

    `sources`: a field of Settings, with the entry's number where it is a list ("gpus.0", of sharing "sharing.0") or its
    name ("faults.xid-94") → where it was said ("config.yaml:3", "--mig-strategy", "MIG_STRATEGY"). What was left at its
    default is not in it.
    `idle`: where something was said that has no effect here → why it has none.
    """

    settings: Settings
    sources: Mapping[str, str]
    idle: Mapping[str, str]


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
    try:
        content, line = read(file or b"", File, name, check)
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
    return Resolved(settings=settings, sources=sources, idle=idle)


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
        gpus=_namings(resources.gpus),
        mig=_namings(resources.mig),
        sharing=_sharing(content),
        probe_period=settings.probe_period if (period := _seconds(health.probe_period)) is None else period,
        faults={code: _ruling(rule) for code, rule in (health.faults or {}).items() if rule is not None},
    )


def _namings(patterns: Iterable[Pattern] | None) -> tuple[Naming, ...]:
    return tuple(Naming(pattern=each.pattern, name=qualified(each.name)) for each in patterns or ())


def _sharing(content: File) -> Sharing:
    slicing = content.sharing.time_slicing if content.sharing else None
    if slicing is None:
        return Sharing()
    rename = bool(slicing.rename_by_default)
    return Sharing(
        resources=tuple(_replication(entry, rename) for entry in slicing.resources or ()),
        fail_requests_greater_than_one=bool(slicing.fail_requests_greater_than_one),
    )


def _replication(entry: Shares, rename: bool) -> Replication:
    name = qualified(entry.name)
    return Replication(
        name=name,
        replicas=entry.replicas,
        rename=qualified(entry.rename) if entry.rename else f"{name}.shared" if rename else "",
        devices=_devices(entry.devices),
    )


def _devices(devices: Devices) -> tuple[str, ...] | int | None:
    if isinstance(devices, tuple):
        return tuple(map(str, devices))
    return devices if isinstance(devices, int) else None


def _seconds(duration: Duration | None) -> float | None:
    return None if duration is None else seconds(duration)


def _ruling(rule: Rule) -> Ruling:
    return Ruling(
        severity=rule.severity,
        ends=rule.ends,
        scope=rule.scope,
        patience=_seconds(rule.patience),
        lasts=_seconds(rule.lasts),
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
    resources, slicing = content.resources or Resources(), content.sharing and content.sharing.time_slicing
    lists: list[tuple[str, Path, Any]] = [
        ("gpus", ("resources", "gpus"), resources.gpus),
        ("mig", ("resources", "mig"), resources.mig),
        ("sharing", ("sharing", "timeSlicing", "resources"), slicing and slicing.resources),
    ]
    for rule, path, entries in lists:
        yield from ((f"{rule}.{i}", (*path, i)) for i in range(len(entries or ())))
    health = content.health or Health()
    if health.probe_period is not None:
        yield "probe_period", ("health", "probePeriod")
    yield from ((f"faults.{code}", ("health", "faults", code)) for code in health.faults or ())
