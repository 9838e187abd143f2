"""What contradicts itself in a configuration file.

A file means here what it means to NVIDIA's plugin, but for these differences, each an error with line and remedy:

- What they drop silently: MPS beside time-slicing, a sharing entry for a resource that no device can ever be named,
  a pattern or an entry that is never reached because another one above it takes everything.
- `resources`, `rename` and `devices` work, where they parse them and then discard them; so they have to be right.
- `replicas: 1` is legal, and means a device that is not shared. Beyond 1,024 the list would not fit into a message.

`health` is ours. What it says of a fault has to be about a fault that there is, and to have an effect.
"""

import re
from collections.abc import Iterable, Iterator

from gpuplane.core.config.durations import Duration, seconds, shown
from gpuplane.core.config.flags import FLAGS
from gpuplane.core.config.given import typed
from gpuplane.core.config.schema import (
    Devices,
    File,
    Health,
    Pattern,
    Resources,
    Rule,
    Shares,
    Strategies,
    Strategy,
    at,
)
from gpuplane.core.health.catalogue import CATALOGUE, UNLISTED
from gpuplane.core.health.judge import known
from gpuplane.core.resources.naming import GPU, MIG, PREFIX, qualified
from gpuplane.core.strict import Path, close_to, spot

MOST_REPLICAS = 1024
Wrong = Iterator[tuple[Path, str]]


def check(file: File) -> Wrong:
    """What contradicts itself, as (path, what is wrong)."""
    for path, text in _check(file):
        yield path, f"{spot(path)}: {text}"


def _check(file: File) -> Wrong:
    if file.version not in (None, "", "v1"):
        yield ("version",), f"{file.version!r} is not known; this is v1"
    yield from _check_flags(file)
    resources, sharing = file.resources or Resources(), file.sharing or Strategies()
    gpus, mig = resources.gpus or (), resources.mig or ()
    yield from _check_patterns(("resources", "gpus"), gpus)
    yield from _check_patterns(("resources", "mig"), mig)
    if sharing.mps and sharing.time_slicing:
        yield ("sharing", "mps"), "contradicts sharing.timeSlicing, and MPS sharing is not served yet; leave it out"
    elif sharing.mps:
        yield ("sharing", "mps"), "MPS sharing is not served yet; use sharing.timeSlicing, or leave it out"
    if sharing.time_slicing:
        names = {PREFIX + each.name.removeprefix(PREFIX) for each in (*gpus, *mig)}
        yield from _check_strategy(("sharing", "timeSlicing"), sharing.time_slicing, {GPU, *names})
    yield from _check_health(file.health or Health())


def _check_flags(file: File) -> Wrong:
    for flag in FLAGS:
        value, path = at(file, flag.key), tuple(flag.key.split("."))
        if isinstance(value, str | tuple):
            try:
                if not typed(flag, value) and flag.kind == "choices":
                    yield path, f"is empty; it takes one of {', '.join(flag.choices)} at least"
            except ValueError as error:
                yield path, str(error)
    interval = at(file, "flags.gfd.sleepInterval")
    if isinstance(interval, str) and not DURATION.fullmatch(interval):
        yield ("flags", "gfd", "sleepInterval"), f"{interval!r} is no time; write 60s, 5m or infinite"


DURATION = re.compile(r"infinite|[-+]?(0|((\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h))+)", re.ASCII)  # Go's


def _check_patterns(where: Path, patterns: Iterable[Pattern]) -> Wrong:
    above: dict[str, int] = {}
    for i, each in enumerate(patterns):
        yield from _check_name((*where, i, "name"), each.name)
        if not each.pattern:
            yield (*where, i, "pattern"), "is empty and matches nothing; * matches everything"
        takers = [above[pattern] for pattern in (each.pattern, "*") if pattern in above]
        if takers:
            yield (*where, i), f"is never reached: {spot((*where, takers[0]))} takes all that it could match"
        above.setdefault(each.pattern, i)


def _check_name(path: Path, name: str, note: str = "") -> Wrong:
    try:
        qualified(name)
    except ValueError as error:
        yield path, f"{note}{error}"


def _check_strategy(where: Path, strategy: Strategy, names: set[str]) -> Wrong:
    if not strategy.resources:
        yield where, "names no resources; leave it out where nothing is shared"
    taken: dict[tuple[str, str], Path] = {}
    for i, entry in enumerate(strategy.resources or ()):
        path: Path = (*where, "resources", i)
        yield from _check_names(path, entry, bool(strategy.rename_by_default), names)
        if not 1 <= entry.replicas <= MOST_REPLICAS:
            yield (*path, "replicas"), f"must be 1 (not shared) to {MOST_REPLICAS}, not {entry.replicas}"
        yield from _check_devices((*path, "devices"), entry.devices)
        yield from _check_reached(path, entry, taken)


def _check_names(path: Path, entry: Shares, rename: bool, names: set[str]) -> Wrong:
    wrong = list(_check_name((*path, "name"), entry.name))
    yield from wrong
    full = PREFIX + entry.name.removeprefix(PREFIX)
    if not wrong and full not in names and not full.startswith(MIG):
        close = close_to(full, names) or GPU
        yield (*path, "name"), f"no device is named {full!r} before it is shared; did you mean {close!r}?"
    if entry.rename is not None:
        yield from _check_name((*path, "rename"), entry.rename)
    elif rename and not wrong:
        yield from _check_name((*path, "name"), f"{entry.name}.shared", "renameByDefault: ")


UUID = r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
REFERENCE = re.compile(rf"\d+|\d+:\d+|(GPU|MIG)-{UUID}|MIG-GPU-{UUID}/\d+/\d+", re.ASCII)


def _check_devices(path: Path, devices: Devices) -> Wrong:
    match devices:
        case str() if devices != "all":
            yield path, f"must be all, a count or a list, not {devices!r}"
        case int() if devices < 1:
            yield path, f"a count must be 1 or more, not {devices}"
        case ():
            yield path, "an empty list selects nothing; leave it out for all"
        case tuple():
            for i, each in enumerate(devices):
                if not REFERENCE.fullmatch(str(each)):
                    yield (*path, i), f"must be an index (0), a MIG index (0:1) or a UUID (GPU-…, MIG-…), not {each!r}"


def _check_reached(path: Path, entry: Shares, taken: dict[tuple[str, str], Path]) -> Wrong:
    """Entries for one resource share out its devices, the first one first: each must have some to take."""
    name = entry.name.removeprefix(PREFIX)
    if (name, "all") in taken:
        yield path, f"is never reached: {spot(taken[name, 'all'])} shares all devices of that name"
    elif isinstance(entry.devices, tuple):
        for i, device in enumerate(entry.devices):
            earlier = taken.setdefault((name, str(device)), path)
            if earlier != path:
                yield (*path, "devices", i), f"{device} is shared by {spot(earlier)} already"
    elif not isinstance(entry.devices, int):
        taken[name, "all"] = path


PROBE_PERIODS = ("50ms", "1h")
"""The shortest and the longest time between two probes."""


def _check_health(health: Health) -> Wrong:
    path: Path = ("health", "probePeriod")
    yield from _check_duration(path, health.probe_period, *PROBE_PERIODS)
    for code, rule in (health.faults or {}).items():
        path = ("health", "faults", code)
        if not known(code):
            meant = _meant(code)
            perhaps = f"; did you mean {meant!r}?" if meant else ""
            yield path, f"there is no such fault: the fault catalogue's, or xid-1 to xid-99999{perhaps}"
        elif rule is not None:
            yield from _check_rule(path, rule, rule.ends or CATALOGUE.get(code, UNLISTED).ends)


def _meant(code: str) -> str:
    """The fault that was probably meant, or ""."""
    number = re.sub(r"^(xid[-_ ]?)?0*", "xid-", code.lower())
    if known(number):
        return number
    return "" if number.removeprefix("xid-").isdecimal() else close_to(code, CATALOGUE)


def _check_rule(path: Path, rule: Rule, ends: str) -> Wrong:
    yield from _check_duration((*path, "patience"), rule.patience)
    yield from _check_duration((*path, "lasts"), rule.lasts)
    if rule.lasts is not None and ends != "time":
        yield path, f"lasts has no effect on what ends with {ends}; say ends: time, or leave it out"


def _check_duration(path: Path, said: Duration | None, least: str = "", most: str = "") -> Wrong:
    if said is None:
        return
    try:
        found = seconds(said)
    except ValueError as error:
        yield path, str(error)
    else:
        if (least and found < seconds(least)) or (most and found > seconds(most)):
            yield path, f"must be {least} to {most}, not {shown(said)}"
