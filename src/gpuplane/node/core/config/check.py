"""The contradictions in a configuration file.

A file means the same here as for NVIDIA's plugin. These differences are errors here, each with its line and a remedy:

- What NVIDIA's plugin ignores silently: MPS beside time-slicing, a sharing entry for a resource name that no device can
  have, a pattern or an entry without effect because one above it already matches everything.
- `resources`, `rename` and `devices` take effect (NVIDIA's plugin parses and then ignores them), so they must be right.
- `replicas: 1` is allowed, and means a device that is not shared. More than 32,768 devices do not fit into a message.
- An empty strategy list, which would leave every container without devices.
- What is ambiguous: a key that is there twice, two entries that share all devices of one resource.

`sharing.memory`, `health` and `metrics` are keys of gpuplane. Shares of memory need a resource name of their own,
because their number means an amount. `health` must name faults that may exist, and must have an effect.

What depends on the machine is checked where devices get their names (`core.inventory`), and affects only those devices.
"""

import re
from collections.abc import Iterable, Iterator, Sized

from gpuplane.base.strict import DocumentPath, closest_match, format_path
from gpuplane.base.text import MAX_PATTERN
from gpuplane.kubernetes.resourcenames import (
    GPU_RESOURCE,
    MIG_RESOURCE_PREFIX,
    RESOURCE_PREFIX,
    qualified_resource_name,
)
from gpuplane.node.core.config.durations import UnparsedDuration, quote_duration_as_written, to_seconds
from gpuplane.node.core.config.faultcodes import MAX_XID, closest_fault_code, is_valid_fault_code
from gpuplane.node.core.config.flags import FLAGS
from gpuplane.node.core.config.flagvalues import parse_flag_value
from gpuplane.node.core.config.schema import (
    MEMORY_RESOURCE_SUFFIX,
    SHARED_RESOURCE_SUFFIX,
    ConfigFile,
    DeviceSelection,
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
    TimeSlicingSection,
    value_of_key,
)
from gpuplane.node.core.kinds.nvidia.faults import UNLISTED_XID
from gpuplane.node.core.kinds.table import FAULTS
from gpuplane.node.core.shares import MAX_MPS_CLIENTS, MAX_SHARES_PER_NODE

MAX_PERCENT = 100
DocumentProblems = Iterator[tuple[DocumentPath, str]]


def config_problems(file: ConfigFile) -> DocumentProblems:
    """The contradictions in a file, as (path, text)."""
    for path, text in _problem_texts_without_path(file):
        yield path, f"{format_path(path)}: {text}"


def _problem_texts_without_path(file: ConfigFile) -> DocumentProblems:
    if file.version not in (None, "", "v1"):
        yield ("version",), f"{file.version!r} is unknown; write v1"
    yield from _flag_problems(file)
    resources, sharing = file.resources or ResourcesSection(), file.sharing or SharingSection()
    gpus, mig = resources.gpus or (), resources.mig or ()
    yield from _count_problems(("resources", "gpus"), gpus)
    yield from _count_problems(("resources", "mig"), mig)
    yield from _naming_pattern_problems(("resources", "gpus"), gpus)
    yield from _naming_pattern_problems(("resources", "mig"), mig)
    names = {RESOURCE_PREFIX + each.name.removeprefix(RESOURCE_PREFIX) for each in (*gpus, *mig)}
    yield from _sharing_problems(sharing, {GPU_RESOURCE, *names})
    yield from _health_problems(file.health or HealthSection())
    yield from _metrics_problems(file.metrics or MetricsSection())


MOST_ENTRIES, MOST_LABEL_PATTERNS = 1000, 100
"""Entries of a list: each is compared with each device, or with each label of each pod."""


def _count_problems(path: DocumentPath, entries: Sized | None, most: int = MOST_ENTRIES) -> DocumentProblems:
    if entries is not None and len(entries) > most:
        yield path, f"has {len(entries)} entries; it may have {most}"


def _flag_problems(file: ConfigFile) -> DocumentProblems:
    for flag in FLAGS:
        value, path = value_of_key(file, flag.file_key), tuple(flag.file_key.split("."))
        if isinstance(value, str | tuple):
            try:
                if not parse_flag_value(flag, value) and flag.value_kind == "choices":
                    remedy = f"write one of {', '.join(flag.choices)}, or leave it out"
                    yield path, f"is empty, so containers would get no device; {remedy}"
            except ValueError as error:
                yield path, str(error)
    interval = value_of_key(file, "flags.gfd.sleepInterval")
    if isinstance(interval, str) and not GO_DURATION_PATTERN.fullmatch(interval):
        yield ("flags", "gfd", "sleepInterval"), f"{interval!r} is not a duration; write 60s, 5m or infinite"


GO_DURATION_PATTERN = re.compile(r"infinite|[-+]?(0|((\d+(\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h))+)", re.ASCII)  # Go's


def _naming_pattern_problems(section_path: DocumentPath, patterns: Iterable[NamingPattern]) -> DocumentProblems:
    above: dict[str, int] = {}
    for i, each in enumerate(patterns):
        yield from _resource_name_problems((*section_path, i, "name"), each.name)
        if not each.pattern:
            yield (*section_path, i, "pattern"), "is empty and matches nothing; * matches everything"
        yield from _length_problems((*section_path, i, "pattern"), each.pattern)
        matching = [above[pattern] for pattern in (each.pattern, "*") if pattern in above]
        if matching:
            first = format_path((*section_path, matching[0]))
            yield (
                (*section_path, i),
                f"has no effect: {first} already matches all its devices; remove this entry or move it above {first}",
            )
        above.setdefault(each.pattern, i)


def _length_problems(path: DocumentPath, pattern: str) -> DocumentProblems:
    if len(pattern) > MAX_PATTERN:
        yield path, f"has {len(pattern)} characters; a pattern may have {MAX_PATTERN}"


def _resource_name_problems(path: DocumentPath, name: str, prefix: str = "") -> DocumentProblems:
    try:
        qualified_resource_name(name)
    except ValueError as error:
        yield path, f"{prefix}{error}"


def _sharing_problems(sharing: SharingSection, names: set[str]) -> DocumentProblems:
    earlier = _CheckedEntries()
    if sharing.time_slicing:
        where: DocumentPath = ("sharing", "timeSlicing")
        one_share_only = bool(sharing.time_slicing.fail_requests_greater_than_one)
        yield from _replication_problems(
            where, sharing.time_slicing, names, MAX_SHARES_PER_NODE, one_share_only, earlier
        )
    if sharing.mps and sharing.time_slicing:
        yield ("sharing", "mps"), "cannot be combined with sharing.timeSlicing; leave one of them out"
    elif sharing.mps:
        where, by_memory = ("sharing", "mps"), bool(sharing.memory and sharing.memory.enforced_by_mps)
        one_share_only = sharing.mps.fail_requests_greater_than_one is not False
        if sharing.mps.resources or not by_memory:
            yield from _replication_problems(where, sharing.mps, names, MAX_MPS_CLIENTS, one_share_only, earlier)
        percentage = sharing.mps.active_thread_percentage
        if percentage is not None and not 1 <= percentage <= MAX_PERCENT:
            yield (*where, "activeThreadPercentage"), f"must be 1 to {MAX_PERCENT}, not {percentage}"
    if sharing.memory:
        yield from _memory_problems(sharing.memory, names, earlier)


class _CheckedEntries:
    """What earlier entries already use: the devices that they share, and the resource names of their shares."""

    def __init__(self) -> None:
        self.path_by_device: dict[tuple[str, str], DocumentPath] = {}
        self.share_kind_by_name: dict[
            str, tuple[DocumentPath, str]
        ] = {}  # resource name → its entry, what a share of it is


def _replication_problems(
    section_path: DocumentPath,
    strategy: TimeSlicingSection | MpsSection,
    names: set[str],
    max_replicas: int,
    one_share_only: bool,
    checked: _CheckedEntries,
) -> DocumentProblems:
    """`max_replicas`: of one device. `one_share_only`: a request for more than one share is refused."""
    if not strategy.resources:
        yield section_path, "has no resources; add one, or leave the section out"
    for i, entry in enumerate(strategy.resources or ()):
        path: DocumentPath = (*section_path, "resources", i)
        suffix = SHARED_RESOURCE_SUFFIX if strategy.rename_by_default else ""
        yield from _entry_name_problems(path, entry, suffix, "renameByDefault: ", names)
        if not 1 <= entry.replicas <= max_replicas:
            why = "the limit of MPS clients" if max_replicas == MAX_MPS_CLIENTS else "kubelet's limit for one list"
            yield (*path, "replicas"), f"must be 1 (not shared) to {max_replicas} ({why}), not {entry.replicas}"
        if entry.distinct_gpus and one_share_only:
            refused = (
                f"{section_path[-1]}.failRequestsGreaterThanOne is on and refuses every request for more than one share"
            )
            yield (*path, "distinctGPUs"), f"has no effect: {refused}; set failRequestsGreaterThanOne to false"
        if (
            isinstance(strategy, MpsSection)
            and _restricts_devices(entry)
            and _shared_resource_name(entry, suffix) == RESOURCE_PREFIX + entry.name.removeprefix(RESOURCE_PREFIX)
        ):
            rest = "devices that this entry does not select would have the same resource name, but no MPS daemon"
            yield path, f"{rest}; set rename"
        yield from _entry_selection_problems(path, entry, checked)
        kind = "shares of different GPUs" if entry.distinct_gpus else "shares that may be of the same GPU"
        yield from _name_conflict_problems(path, entry, _shared_resource_name(entry, suffix), kind, checked)


def _memory_problems(memory: MemorySection, names: set[str], checked: _CheckedEntries) -> DocumentProblems:
    where, unit = ("sharing", "memory"), memory.unit or "GiB"
    if not memory.resources:
        yield where, "has no resources; add one, or leave the section out"
    if memory.share_size is not None and memory.share_size < 1:
        yield (*where, "shareSize"), f"must be 1 {unit} or more, not {memory.share_size}"
    for i, entry in enumerate(memory.resources or ()):
        path: DocumentPath = (*where, "resources", i)
        yield from _entry_name_problems(path, entry, MEMORY_RESOURCE_SUFFIX, "the name of its shares: ", names)
        if entry.share_size is not None and entry.share_size < 1:
            yield (*path, "shareSize"), f"must be 1 {unit} or more, not {entry.share_size}"
        yield from _entry_selection_problems(path, entry, checked)
        name = _shared_resource_name(entry, MEMORY_RESOURCE_SUFFIX)
        if name in names or (entry.rename is not None and name.startswith(MIG_RESOURCE_PREFIX)):
            text = f"{name!r} is the name of devices that are not shared; give the shares of memory another name"
            yield (*path, "rename"), text
        size = entry.share_size or memory.share_size or 1
        yield from _name_conflict_problems(path, entry, name, f"memory in shares of {size} {unit}", checked)


def _restricts_devices(entry: ReplicatedEntry) -> bool:
    return bool(entry.model) or isinstance(entry.devices, int | tuple)


def _shared_resource_name(entry: ReplicatedEntry | MemoryEntry, suffix: str) -> str:
    """The resource name of an entry's shares."""
    return RESOURCE_PREFIX + (entry.rename or f"{entry.name}{suffix}").removeprefix(RESOURCE_PREFIX)


def _entry_name_problems(
    path: DocumentPath, entry: ReplicatedEntry | MemoryEntry, suffix: str, prefix: str, names: set[str]
) -> DocumentProblems:
    wrong = list(_resource_name_problems((*path, "name"), entry.name))
    yield from wrong
    full = RESOURCE_PREFIX + entry.name.removeprefix(RESOURCE_PREFIX)
    if not wrong and full not in names and not full.startswith(MIG_RESOURCE_PREFIX):
        close = closest_match(full, names) or GPU_RESOURCE
        yield (*path, "name"), f"there is no resource {full!r} that can be shared; did you mean {close!r}?"
    if entry.rename is not None:
        yield from _resource_name_problems((*path, "rename"), entry.rename)
    elif suffix and not wrong:
        yield from _resource_name_problems((*path, "name"), f"{entry.name}{suffix}", prefix)


def _name_conflict_problems(
    path: DocumentPath, entry: ReplicatedEntry | MemoryEntry, name: str, share_kind: str, checked: _CheckedEntries
) -> DocumentProblems:
    """All devices of one resource name must be shared in the same way."""
    first, other = checked.share_kind_by_name.setdefault(name, (path, share_kind))
    if other != share_kind:
        key = "rename" if entry.rename is not None else "name"
        text = f"{name} means {share_kind} here, and {other} in {format_path(first)}; give one of them another name"
        yield (*path, key), text


def _entry_selection_problems(
    path: DocumentPath, entry: ReplicatedEntry | MemoryEntry, checked: _CheckedEntries
) -> DocumentProblems:
    yield from _devices_value_problems((*path, "devices"), entry.devices)
    if entry.model == "":
        yield (*path, "model"), "is empty and matches nothing; remove it to match every model"
    yield from _length_problems((*path, "model"), entry.model or "")
    yield from _device_already_shared_problems(path, entry, checked.path_by_device)


UUID_PATTERN = r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
DEVICE_REFERENCE_PATTERN = re.compile(rf"\d+|\d+:\d+|(GPU|MIG)-{UUID_PATTERN}|MIG-GPU-{UUID_PATTERN}/\d+/\d+", re.ASCII)


def _devices_value_problems(path: DocumentPath, devices: DeviceSelection) -> DocumentProblems:
    match devices:
        case str() if devices != "all":
            yield path, f"must be all, a count or a list, not {devices!r}"
        case int() if devices < 1:
            yield path, f"a count must be 1 or more, not {devices}"
        case ():
            yield path, "an empty list selects nothing; remove it to select all devices"
        case tuple():
            for i, each in enumerate(devices):
                if not DEVICE_REFERENCE_PATTERN.fullmatch(str(each)):
                    yield (*path, i), f"must be an index (0), a MIG index (0:1) or a UUID (GPU-…, MIG-…), not {each!r}"


def _device_already_shared_problems(
    path: DocumentPath, entry: ReplicatedEntry | MemoryEntry, path_by_device: dict[tuple[str, str], DocumentPath]
) -> DocumentProblems:
    """A device belongs to the first entry that selects it, so a later entry must select other devices."""
    name, model = entry.name.removeprefix(RESOURCE_PREFIX), entry.model or "*"
    first = [path_by_device[name, all] for all in ("all *", f"all {model}") if (name, all) in path_by_device]
    if first:
        which = "of that name" if (name, "all *") in path_by_device else f"of that name and model {model!r}"
        remedy = "remove one of the two entries, or set devices or model in the first one"
        yield path, f"has no effect: {format_path(first[0])} already shares all devices {which}; {remedy}"
    elif isinstance(entry.devices, tuple):
        for i, device in enumerate(entry.devices):
            earlier = path_by_device.get((name, str(device)), path)
            if earlier != path:
                yield (*path, "devices", i), f"{format_path(earlier)} already shares {device}"
            elif model == "*":
                path_by_device[name, str(device)] = path
    elif not isinstance(entry.devices, int):
        path_by_device[name, f"all {model}"] = path


PROBE_PERIOD_LIMITS = ("50ms", "1h")
"""The shortest and the longest time between two probes."""


def _health_problems(health: HealthSection) -> DocumentProblems:
    path: DocumentPath = ("health", "probePeriod")
    yield from _duration_problems(path, health.probe_period, *PROBE_PERIOD_LIMITS)
    for code, rule in (health.faults or {}).items():
        path = ("health", "faults", code)
        if not is_valid_fault_code(code):
            close = closest_fault_code(code)
            suggestion = f"; did you mean {close!r}?" if close else ""
            yield (
                path,
                f"is not a fault code; write a code of the fault catalogue, or xid-1 to xid-{MAX_XID}{suggestion}",
            )
        elif rule is not None:
            yield from _fault_override_problems(
                path, rule, rule.clear_when or FAULTS.entries.get(code, UNLISTED_XID).clear_when
            )


SAMPLE_INTERVAL_LIMITS, SLOW_INTERVAL_LIMITS = ("500ms", "1m"), ("1s", "5m")
"""The shortest and the longest time between two samples, and between two readings of what takes the driver long."""
LABEL_PATTERN = re.compile(r"[A-Za-z0-9*]([A-Za-z0-9*._/-]*[A-Za-z0-9*])?")
"""A label's name, or a pattern of names."""


def _metrics_problems(metrics: MetricsSection) -> DocumentProblems:
    yield from _duration_problems(("metrics", "interval"), metrics.interval, *SAMPLE_INTERVAL_LIMITS)
    yield from _duration_problems(("metrics", "slowInterval"), metrics.slow_interval, *SLOW_INTERVAL_LIMITS)
    yield from _count_problems(("metrics", "podLabels"), metrics.pod_labels, MOST_LABEL_PATTERNS)
    for i, pattern in enumerate(metrics.pod_labels or ()):
        yield from _length_problems(("metrics", "podLabels", i), pattern)
        if not LABEL_PATTERN.fullmatch(pattern):
            yield (
                ("metrics", "podLabels", i),
                f"{pattern!r} is not a label's name, nor a pattern such as app.kubernetes.io/*",
            )
    if metrics.pod_labels and metrics.watch_pods is False:
        yield (
            ("metrics", "watchPods"),
            "podLabels need the API server's word about pods: remove watchPods, or remove podLabels",
        )


def config_warnings(file: ConfigFile) -> DocumentProblems:
    """What is accepted and is probably a mistake, as (path, text)."""
    for code in (file.health or HealthSection()).faults or ():
        if code not in FAULTS.entries:
            close = closest_fault_code(code)
            suggestion = f"; did you mean {close!r}?" if close else ""
            effect = "the rule takes effect if the driver reports this XID"
            path: DocumentPath = ("health", "faults", code)
            yield path, f"{format_path(path)}: {code} is not in the fault catalogue; {effect}{suggestion}"


def _fault_override_problems(
    path: DocumentPath, override: FaultOverrideEntry, effective_clear_when: str
) -> DocumentProblems:
    yield from _duration_problems((*path, "gracePeriod"), override.grace_period)
    yield from _duration_problems((*path, "clearAfter"), override.clear_after)
    if override.clear_after is not None and effective_clear_when != "time-passed":
        yield (
            path,
            (
                f"'clearAfter' has no effect, because the value of 'clearWhen' is {effective_clear_when}; set "
                "'clearWhen' to time-passed, or remove 'clearAfter'"
            ),
        )


def _duration_problems(
    path: DocumentPath, duration: UnparsedDuration | None, shortest: str = "", longest: str = ""
) -> DocumentProblems:
    if duration is None:
        return
    try:
        found = to_seconds(duration)
    except ValueError as error:
        yield path, str(error)
    else:
        if (shortest and found < to_seconds(shortest)) or (longest and found > to_seconds(longest)):
            yield path, f"must be {shortest} to {longest}, not {quote_duration_as_written(duration)}"
