"""What ails devices: faults as they are judged, what is remembered of each device, and what a person asks for.

Times are seconds of CLOCK_BOOTTIME, durations are seconds.
"""

from collections.abc import Mapping
from typing import Literal

from gpuplane.model.value import Value

Scope = Literal["process", "instance", "gpu", "link", "node"]
Severity = Literal["note", "degraded", "unhealthy"]
End = Literal["nothing", "process", "reset", "reboot", "time", "operator"]
State = Literal["healthy", "suspect", "degraded", "unhealthy", "probing", "drained", "withheld"]


class Entry(Value):
    """One row of the fault catalogue: how a fault is judged.

    `scope`: what it befalls. An event that names a MIG instance stays within it where the scope is process or instance.
    `severity`: a note is counted, a degraded device is served, an unhealthy one is not given out.
    `ends`: what has to be had, beside the fault not being seen any more, before a device can be well again.
    `patience`: what a look shows counts once it has been shown for so long; what happens counts once it happens again
    within so long. 0: at once.
    """

    title: str
    seen: Literal["look", "event"]  # a look shows it for as long as it is there, or it happens at a moment
    scope: Scope
    severity: Severity
    ends: End
    advice: str
    patience: float = 0.0
    lasts: float = 60.0  # where time ends it: for how long it must not be seen


class Ruling(Value):
    """What a configuration says otherwise about one entry; None leaves it."""

    severity: Severity | None = None
    ends: End | None = None
    scope: Scope | None = None
    patience: float | None = None
    lasts: float | None = None
    advice: str | None = None


class Finding(Value):
    """One fault of one device, for as long as it counts against it.

    `last`: when it happened last, or when a look ceased to show it; None while a look shows it.
    `standing`: its patience is over. `pids`: the processes that it befell, as the driver or the kernel names them;
    `holders`: where it names none, the containers that held the device then ("namespace/pod/container"; "" for those
    whom kubelet will name with its first word).
    """

    code: str
    message: str
    since: float
    last: float | None = None
    event: bool = False
    standing: bool = False
    pids: tuple[int, ...] = ()
    holders: tuple[str, ...] = ()
    rebooted: bool = False  # of an earlier boot: its times mean nothing any more


class Drain(Value):
    """A person's word that a device shall not be given out. `until` None: until it is restored.

    `wall` is the same moment in seconds since 1970, for a drain outlives the boot that `until` counts from.
    """

    why: str
    until: float | None = None
    wall: float | None = None
    since: float | None = None  # when it was said; None: in an earlier boot


class Probing(Value):
    """How the recovery of a device goes. `asked`: when the probe that is under way was wished for."""

    asked: float | None = None
    next: float = 0.0  # not before then
    tries: int = 0  # that failed
    failed: str = ""  # why the last one did


class Record(Value):
    """What is remembered of one device."""

    findings: tuple[Finding, ...] = ()
    drain: Drain | None = None
    probing: Probing | None = None
    renewed: float = -1.0  # when it was last seen to have been reset; -1: never in this boot
    excused: float = -1.0  # when a person said last that it is mended
    recovered: float | None = None  # when the probe was begun that last found it well again
    flaps: int = 0  # how often in a row it fell ill again soon after that
    away: bool = False  # the driver counted the GPUs, and not this one
    pci: str = ""
    uncorrected: int | None = None  # uncorrectable memory errors, as last counted
    lanes: int = 0  # the most NVLinks that were seen active
    counts: Mapping[str, int] = {}  # code → how often it has happened


class Health(Value):
    """UUID of a GPU or MIG device → its record; "" is the node. `log`: the last kernel log record that was judged."""

    devices: Mapping[str, Record] = {}
    log: int = -1


class Diagnosis(Value):
    """How one device stands, for people: the view of its record."""

    device: str  # UUID; "" for the node
    index: str  # "0", "0:1"; "" for the node and for a device that is away
    state: State
    since: float | None = None  # None: healthy, or nobody knows
    until: float | None = None  # when time alone ends it, if nothing comes between; None: it does not
    code: str = ""  # of the fault that decides
    reason: str = ""
    ends: str = ""
    advice: str = ""
    counts: Mapping[str, int] = {}
