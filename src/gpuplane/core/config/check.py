"""What contradicts itself in a configuration file.

A file means here what it means to NVIDIA's plugin, but for these differences, each an error with line and remedy:

- What they drop silently: MPS beside time-slicing, a sharing entry for a resource that no device can ever be named,
  a pattern or an entry that is never reached because another one above it takes everything.
- `resources`, `rename` and `devices` work, where they parse them and then discard them; so they have to be right.
- `replicas: 1` is legal, and means a device that is not shared. Beyond 32,768 a list does not fit into a message.
- What would take all devices away from containers, an empty strategy list, and what leaves open which is meant: a key
  that stands twice, two entries that share all of one resource.

Shares of memory are ours: they need a name that nothing else has, for a number of them means an amount. So is `health`.
What it says of a fault has to be about a fault that there is or may be, and to have an effect.

What only a machine shows is not judged here but where devices are named, and costs those that it is about.
"""

import re
from collections.abc import Iterable, Iterator

from gpuplane.core.config.durations import Duration, seconds, shown
from gpuplane.core.config.flags import FLAGS
from gpuplane.core.config.given import typed
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
from gpuplane.core.config.xids import MOST_XID, meant, possible
from gpuplane.core.health.catalogue import CATALOGUE, UNLISTED
from gpuplane.core.inventory.naming import GPU, MIG, PREFIX, qualified
from gpuplane.core.inventory.sharing import MOST_IDS, MPS_CLIENTS
from gpuplane.core.strict import Path, close_to, spot

PERCENT = 100
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
    names = {PREFIX + each.name.removeprefix(PREFIX) for each in (*gpus, *mig)}
    yield from _check_sharing(sharing, {GPU, *names})
    yield from _check_health(file.health or Health())


def _check_flags(file: File) -> Wrong:
    for flag in FLAGS:
        value, path = at(file, flag.key), tuple(flag.key.split("."))
        if isinstance(value, str | tuple):
            try:
                if not typed(flag, value) and flag.kind == "choices":
                    one = f"say one of {', '.join(flag.choices)}, or leave it out"
                    yield path, f"is empty, so that containers would be told of no device; {one}"
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


def _check_sharing(sharing: Strategies, names: set[str]) -> Wrong:
    taken = _Taken()
    if sharing.time_slicing:
        where: Path = ("sharing", "timeSlicing")
        fails = bool(sharing.time_slicing.fail_requests_greater_than_one)
        yield from _check_strategy(where, sharing.time_slicing, names, MOST_IDS, fails, taken)
    if sharing.mps and sharing.time_slicing:
        yield ("sharing", "mps"), "contradicts sharing.timeSlicing: devices are shared by one of them; leave one out"
    elif sharing.mps:
        where, by_memory = ("sharing", "mps"), bool(sharing.memory and sharing.memory.mps)
        fails = sharing.mps.fail_requests_greater_than_one is not False
        if sharing.mps.resources or not by_memory:
            yield from _check_strategy(where, sharing.mps, names, MPS_CLIENTS, fails, taken)
        percentage = sharing.mps.active_thread_percentage
        if percentage is not None and not 1 <= percentage <= PERCENT:
            yield (*where, "activeThreadPercentage"), f"must be 1 to {PERCENT}, not {percentage}"
    if sharing.memory:
        yield from _check_memory(sharing.memory, names, taken)


class _Taken:
    """What entries above have had: the devices that they take, and the names that shares go by."""

    def __init__(self) -> None:
        self.devices: dict[tuple[str, str], Path] = {}
        self.names: dict[str, tuple[Path, str]] = {}  # the name → who has it, and what it stands for there


def _check_strategy(
    where: Path, strategy: TimeSlicing | Mps, names: set[str], most: int, fails: bool, taken: _Taken
) -> Wrong:
    """`most`: replicas of a device. `fails`: whether requests for more than one share are refused."""
    if not strategy.resources:
        yield where, "names no resources; leave it out where nothing is shared"
    for i, entry in enumerate(strategy.resources or ()):
        path: Path = (*where, "resources", i)
        suffix = SHARED if strategy.rename_by_default else ""
        yield from _check_names(path, entry, suffix, "renameByDefault: ", names)
        if not 1 <= entry.replicas <= most:
            why = "as many clients as MPS has" if most == MPS_CLIENTS else "what kubelet takes in one list"
            yield (*path, "replicas"), f"must be 1 (not shared) to {most}, {why}, not {entry.replicas}"
        if entry.distinct and fails:
            refuses = f"{where[-1]}.failRequestsGreaterThanOne refuses every request for more than one share"
            yield (*path, "distinct"), f"has no effect while {refuses}; say failRequestsGreaterThanOne: false"
        if (
            isinstance(strategy, Mps)
            and _selects(entry)
            and _offered(entry, suffix) == PREFIX + entry.name.removeprefix(PREFIX)
        ):
            kept = "the devices that it does not select would go by the same name and have no MPS daemon"
            yield path, f"{kept}; give the shares a rename"
        yield from _check_selection(path, entry, taken)
        kind = f"shares of which a container's are {'' if entry.distinct else 'not '}always of different GPUs"
        yield from _check_kind(path, entry, _offered(entry, suffix), kind, taken)


def _check_memory(memory: Memory, names: set[str], taken: _Taken) -> Wrong:
    where, unit = ("sharing", "memory"), memory.unit or "GiB"
    if not memory.resources:
        yield where, "names no resources; leave it out where no memory is shared"
    if memory.grain is not None and memory.grain < 1:
        yield (*where, "grain"), f"must be 1 {unit} or more, not {memory.grain}"
    for i, entry in enumerate(memory.resources or ()):
        path: Path = (*where, "resources", i)
        yield from _check_names(path, entry, MEMORY, "its shares are called so: ", names)
        if entry.grain is not None and entry.grain < 1:
            yield (*path, "grain"), f"must be 1 {unit} or more, not {entry.grain}"
        yield from _check_selection(path, entry, taken)
        name = _offered(entry, MEMORY)
        if name in names or (entry.rename is not None and name.startswith(MIG)):
            what = f"{name!r} is what devices are called that are not shared; memory needs a name of its own"
            yield (*path, "rename"), what
        grain = entry.grain or memory.grain or 1
        yield from _check_kind(path, entry, name, f"memory in shares of {grain} {unit}", taken)


def _selects(entry: Shares) -> bool:
    return bool(entry.model) or isinstance(entry.devices, int | tuple)


def _offered(entry: Shares | MemoryEntry, suffix: str) -> str:
    """The name that shares go by."""
    return PREFIX + (entry.rename or f"{entry.name}{suffix}").removeprefix(PREFIX)


def _check_names(path: Path, entry: Shares | MemoryEntry, suffix: str, note: str, names: set[str]) -> Wrong:
    wrong = list(_check_name((*path, "name"), entry.name))
    yield from wrong
    full = PREFIX + entry.name.removeprefix(PREFIX)
    if not wrong and full not in names and not full.startswith(MIG):
        close = close_to(full, names) or GPU
        yield (*path, "name"), f"no device is named {full!r} before it is shared; did you mean {close!r}?"
    if entry.rename is not None:
        yield from _check_name((*path, "rename"), entry.rename)
    elif suffix and not wrong:
        yield from _check_name((*path, "name"), f"{entry.name}{suffix}", note)


def _check_kind(path: Path, entry: Shares | MemoryEntry, name: str, kind: str, taken: _Taken) -> Wrong:
    """What goes by one name has to be one kind of thing."""
    earlier, other = taken.names.setdefault(name, (path, kind))
    if other != kind:
        key = "rename" if entry.rename is not None else "name"
        yield (*path, key), f"{name} is {kind} here, and {other} in {spot(earlier)}; give one of them another name"


def _check_selection(path: Path, entry: Shares | MemoryEntry, taken: _Taken) -> Wrong:
    yield from _check_devices((*path, "devices"), entry.devices)
    if entry.model == "":
        yield (*path, "model"), "is empty and matches nothing; leave it out for any"
    yield from _check_reached(path, entry, taken.devices)


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


def _check_reached(path: Path, entry: Shares | MemoryEntry, taken: dict[tuple[str, str], Path]) -> Wrong:
    """Entries for one resource share out its devices, the first one first: each must have some to take."""
    name, model = entry.name.removeprefix(PREFIX), entry.model or "*"
    takers = [taken[name, all] for all in ("all *", f"all {model}") if (name, all) in taken]
    if takers:
        which = "of that name" if (name, "all *") in taken else f"of that name and model {model!r}"
        remedy = "leave one out, or say in the first which devices or model it shares"
        yield path, f"is never reached: {spot(takers[0])} shares all devices {which}; {remedy}"
    elif isinstance(entry.devices, tuple):
        for i, device in enumerate(entry.devices):
            earlier = taken.get((name, str(device)), path)
            if earlier != path:
                yield (*path, "devices", i), f"{device} is shared by {spot(earlier)} already"
            elif model == "*":
                taken[name, str(device)] = path
    elif not isinstance(entry.devices, int):
        taken[name, f"all {model}"] = path


PROBE_PERIODS = ("50ms", "1h")
"""The shortest and the longest time between two probes."""


def _check_health(health: Health) -> Wrong:
    path: Path = ("health", "probePeriod")
    yield from _check_duration(path, health.probe_period, *PROBE_PERIODS)
    for code, rule in (health.faults or {}).items():
        path = ("health", "faults", code)
        if not possible(code):
            close = meant(code)
            perhaps = f"; did you mean {close!r}?" if close else ""
            yield path, f"there is no such fault: the fault catalogue's, or xid-1 to xid-{MOST_XID}{perhaps}"
        elif rule is not None:
            yield from _check_rule(path, rule, rule.ends or CATALOGUE.get(code, UNLISTED).cleared_by)


def doubtful(file: File) -> Wrong:
    """What is taken, and perhaps not what was meant, as `check` gives it."""
    for code in (file.health or Health()).faults or ():
        if code not in CATALOGUE:
            close = meant(code)
            perhaps = f"; did you mean {close!r}?" if close else ""
            rule = "the rule counts if a driver tells that XID"
            path: Path = ("health", "faults", code)
            yield path, f"{spot(path)}: {code} is not in the fault catalogue: {rule}{perhaps}"


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
