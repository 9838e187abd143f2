"""Health: faults as they are judged, what is remembered of each device, and what a person requests.

Times are seconds of CLOCK_BOOTTIME, durations are seconds.
"""

from collections.abc import Mapping
from typing import Literal

from gpuplane.base.text import Text
from gpuplane.base.value import Value
from gpuplane.kubernetes.contracts.nodegpus import State
from gpuplane.kubernetes.podref import PodRef

Scope = Literal["process", "instance", "gpu", "link", "node"]
Severity = Literal["note", "degraded", "unhealthy"]
ClearWhen = Literal["no-longer-seen", "process-ended", "gpu-reset", "node-rebooted", "time-passed", "restored-by-admin"]

XIDS_WITH_SEVERITY_IN_TEXT = range(144, 151)
"""XIDs whose text says their gravity: "RLW_SRC_TRACK Nonfatal XC1 i0 Link 17" (NVLink 5, Blackwell)."""
NONFATAL = "-nonfatal"
"""What the code of one ends with that is not fatal, as far as is known."""


class CatalogueEntry(Value):
    """One row of the fault catalogue: how a fault is judged.

    `detected_by`: an observation shows it for as long as it lasts, or it is an event at one moment.
    `scope`: what it affects. An event that names a MIG instance affects that one only, where the scope is process or
    instance. `severity`: a note is counted, a degraded device is given out, an unhealthy one is not.
    `clear_when`: what must happen, beside the fault being gone, before the device can be healthy again.
    `grace_period`: seconds. A fault of an observation counts once it has lasted so long; an event counts once it occurs
    again within that time. 0: at once. `clear_after`: seconds for which it must not be seen, where time clears it.
    `commands`: the words of the command lines that do what `advice` says; DEVICE and GPU stand for names
    (`core/commands.py`).
    """

    title: Text
    detected_by: Literal["look", "event"]
    scope: Scope
    severity: Severity
    clear_when: ClearWhen
    advice: Text
    grace_period: float = 0.0
    clear_after: float = 60.0
    commands: tuple[tuple[str, ...], ...] = ()


class FaultCatalogue(Value):
    """All that health has to know of the faults of one kind of devices, or of all kinds together.

    `codes_that_hide_others`: while an observation shows one, it cannot show that another fault is over.
    `codes_that_block_recovery`: with these a recovery probe fails, although they alone do not make a device unhealthy.
    `codes_that_need_probe`: observations show these until a probe finds the device healthy.
    `codes_cleared_only_by_reset`: when observations no longer show one of these, the device was reset.
    """

    entries: Mapping[str, CatalogueEntry] = {}
    codes_that_hide_others: frozenset[str] = frozenset()
    codes_that_block_recovery: frozenset[str] = frozenset()
    codes_that_need_probe: frozenset[str] = frozenset()
    codes_cleared_only_by_reset: frozenset[str] = frozenset()

    def sort_rank(self, code: str) -> int:
        """The position of a code in the catalogue; a code that is not in it comes last."""
        return next((n for n, each in enumerate(self.entries) if each == code), len(self.entries))


class FaultOverride(Value):
    """What a configuration changes of one catalogue entry. None leaves it as it is."""

    severity: Severity | None = None
    clear_when: ClearWhen | None = None
    scope: Scope | None = None
    grace_period: float | None = None
    clear_after: float | None = None
    advice: Text | None = None


class Finding(Value):
    """One fault of one device, for as long as it counts against the device.

    `last_seen`: when it last occurred, or when observations stopped showing it; None while they show it.
    `confirmed`: its grace period is over. `pids`: the affected processes, as the driver or the kernel names them.
    `holders`: where it names none, the containers that held the device then; `PodRef()` stands for those that kubelet
    has not listed yet.
    """

    code: str
    message: Text
    since: float
    last_seen: float | None = None
    is_event: bool = False
    confirmed: bool = False
    pids: tuple[int, ...] = ()
    holders: tuple[PodRef, ...] = ()
    from_earlier_boot: bool = False  # its times mean nothing in this boot


class Drain(Value):
    """A person's request that a device is given to no container. `until` None: until it is restored.

    `until_wall_clock` is the same moment in seconds since 1970: a drain outlives the boot that `until` counts from.
    """

    reason: Text
    until: float | None = None
    until_wall_clock: float | None = None
    since: float | None = None  # None: since an earlier boot


class ProbeState(Value):
    """The recovery probes of a device. `requested_at`: when the probe that runs now was requested; None: none runs."""

    requested_at: float | None = None
    not_before: float = 0.0  # the time of the next probe
    failed_tries: int = 0
    failure: Text = ""  # why the last one did
    failure_code: str = ""  # the fault that it found; "" for none


class DeviceRecord(Value):
    """What is remembered of one device."""

    findings: tuple[Finding, ...] = ()
    drain: Drain | None = None
    probe: ProbeState | None = None
    last_reset_at: float = -1.0  # when a reset was last seen; -1: never in this boot
    declared_repaired_at: float = -1.0  # when a person last said that it is repaired; -1: never
    last_recovered_at: float | None = None  # when the probe began that last found it healthy again
    relapses: int = 0  # how often in a row it became unhealthy soon after that
    absent: bool = False  # the driver counted the GPUs, and not this one
    last_listed_at: float | None = None  # when it last did, in seconds since 1970, to the hour while it does
    pci: str = ""
    uncorrected_errors: int | None = None  # uncorrectable memory errors at the last observation
    max_active_nvlinks: int = 0  # the most NVLinks that were seen active
    fault_counts: Mapping[str, int] = {}  # code → how often it has happened


NODE_RECORD_KEY = ""
"""The key of the node's own record: of what affects every GPU of it."""


class HealthRecords(Value):
    """UUID of a GPU or MIG device, or the id of another unit → its record; `NODE` is the node.

    Its faults are those of NVIDIA's driver. What affects all devices of another kind is in the record of that kind.

    `last_kernel_log_number`: of the last kernel log record that was judged.
    """

    devices: Mapping[str, DeviceRecord] = {}
    last_kernel_log_number: int = -1


class DeviceHealth(Value):
    """The health of one device, for people: the view of its record."""

    device: str  # UUID; "" for the node
    index: str  # "0", "0:1"; "" for the node and for a device that is absent
    state: State
    since: float | None = None  # None: healthy, or unknown
    until: float | None = None  # when time alone ends it; None: time does not
    code: str = ""  # of the fault that decides
    reason: Text = ""
    clear_when_text: Text = ""
    advice: Text = ""
    fault_counts: Mapping[str, int] = {}
