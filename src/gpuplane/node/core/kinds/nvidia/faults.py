"""The faults of NVIDIA's driver and GPUs: a table. What each fault is, what it affects, and what clears it.

XIDs count as they do for NVIDIA's device plugin (k8s-device-plugin 0.20, internal/rm/health.go): all make a GPU
unhealthy but 13, 31, 43, 45, 68 and 109, which speak of the program that ran. These differ:
- 154 announces any change of the recovery action, also that none is left, and a look shows which it is.
- 144 to 150 say in their text whether they are fatal: a link that corrects itself says `Nonfatal` a thousand times.
  Those are a note, and so is an event without the text: the recovery action of the next look decides.
- 63 says that a row waits to be remapped, and so does a look, as `remap-pending`: one fact has one verdict.
- Of some others NVIDIA's XID catalogue says that nothing has to be done (IGNORE), and why: they are a note or degraded.
What ends them is the immediate action in that catalogue (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html);
docs/faults.md has the two beside each other, and where they differ. XIDs that are not in the table are judged as
`UNLISTED`.
"""

from typing import Literal, NamedTuple

from gpuplane.node.core.commands import INSPECT, RESTORE, RESUME, Command
from gpuplane.node.model.health import (
    NONFATAL,
    XIDS_WITH_SEVERITY_IN_TEXT,
    CatalogueEntry,
    ClearWhen,
    FaultCatalogue,
    Scope,
    Severity,
)


class Advice(NamedTuple):
    """What to do about a fault, and the commands that do it."""

    text: str
    commands: tuple[Command, ...] = ()


RESET = (
    ("gpuplane", "driver", "release", "--for", "10m", "--why", "GPU reset"),
    ("nvidia-smi", "-r", "-i", "GPU"),
    RESUME,
)
"""A reset needs the driver released; the last command ends that before its time."""

RESTART_ADVICE = (
    "restart the program that used the GPU; if the fault comes back on the same GPU with other programs, reset the GPU"
)
PROGRAM_ADVICE = "read the log of the program that used the GPU: the program is usually the cause"
RESET_ADVICE = Advice("end the pods on the GPU, release the driver, reset the GPU and resume the driver", RESET)
LOST_ADVICE = Advice(
    "end the pods on the GPU, release the driver, reset the GPU and resume the driver; if it does not come back, "
    "reboot, then check its power, its seating in the slot and the riser card",
    RESET,
)
ABSENT_ADVICE = Advice(
    "see the driver's lines in the kernel log (dmesg | grep NVRM) and reboot, then check its power, its seating in the "
    "slot and the riser card; if it was taken out, say so",
    (RESTORE,),
)
PEERS_ADVICE = Advice(
    "end the pods on the GPU and its NVLink peers, release the driver, reset the GPU and resume the driver", RESET
)
REBOOT_ADVICE = "drain the node and reboot it"
REPLACE_ADVICE = "run NVIDIA's field diagnostic, and replace the GPU"
DRIVER_ADVICE = "see the driver's lines in the kernel log (dmesg | grep NVRM)"
PROBE_ADVICE = (
    "see the driver's lines in the kernel log (dmesg | grep NVRM): this driver may not support the GPU; else reboot, "
    "then check its power, its seating in the slot and the riser card"
)
FABRIC_ADVICE = Advice(
    "see the log of nvidia-fabricmanager, and the state of the fabric", (("nvidia-smi", "-q", "-i", "GPU"),)
)
COOLING_ADVICE = Advice(
    "check the fans and the air flow, and the temperature of the GPU",
    (("nvidia-smi", "-q", "-d", "TEMPERATURE,PERFORMANCE", "-i", "GPU"),),
)
POWER_ADVICE = Advice(
    "check the power supplies and cables, and the power of the GPU",
    (("nvidia-smi", "-q", "-d", "POWER,PERFORMANCE", "-i", "GPU"),),
)
LINKS_ADVICE = Advice(
    "see the state and the errors of the links; then end the pods on the GPU, release the driver, reset the GPU and "
    "resume the driver; if that does not help, check the board",
    (("nvidia-smi", "nvlink", "-s", "-i", "GPU"), ("nvidia-smi", "nvlink", "-e", "-i", "GPU"), *RESET),
)
IGNORED_ADVICE = "nothing to do but to restart a program that failed; if the fault comes back, contact NVIDIA support"
SWITCH_ADVICE = Advice(
    "the GPU at the link of the switch has XID 74; if programs fail to start on other GPUs, too, end all pods on the "
    "node's GPUs, release the driver, reset all GPUs at once and resume the driver; if that does not help, reboot",
    (("nvidia-smi", "nvlink", "-s"), RESET[0], ("nvidia-smi", "-r"), RESUME),
)
NO_ADVICE = "nothing to do"


def _fault(
    title: str,
    scope: Scope,
    severity: Severity,
    clear_when: ClearWhen,
    advice: str | Advice,
    *,
    grace_period: float = 0.0,
    seen: Literal["look", "event"] = "look",
) -> CatalogueEntry:
    told = advice if isinstance(advice, Advice) else Advice(advice)
    return CatalogueEntry(
        title=title,
        detected_by=seen,
        scope=scope,
        severity=severity,
        clear_when=clear_when,
        advice=told.text,
        grace_period=grace_period,
        commands=told.commands,
    )


def _event(title: str, scope: Scope, severity: Severity, clear_when: ClearWhen, advice: str | Advice) -> CatalogueEntry:
    return _fault(title, scope, severity, clear_when, advice, seen="event")


# fmt: off
_OBSERVED_FAULTS = {
    # the driver, and with it every GPU of the node
    "not-looked": _fault("not observed since the driver was released", "node", "unhealthy", "no-longer-seen",
        Advice("the fault ends when the agent observes the machine again; if this does not happen, read the line of "
               "the part driver", (INSPECT,))),
    "driver-hang": _fault(
        "the driver's library does not answer", "node", "unhealthy", "no-longer-seen", DRIVER_ADVICE, grace_period=30
    ),
    "driver-crash": _fault("the driver's library crashes", "node", "degraded", "no-longer-seen", DRIVER_ADVICE),
    "driver-failed": _fault(
        "the driver's library fails", "node", "unhealthy", "no-longer-seen", DRIVER_ADVICE, grace_period=30
    ),
    "driver-start": _fault("the driver's process cannot be started", "node", "unhealthy", "no-longer-seen",
        "see the node's memory and process limits", grace_period=30),
    "driver-denied": _fault("the agent has no permission to use the driver", "node", "unhealthy", "no-longer-seen",
        "check the permissions of /dev/nvidiactl and the device cgroup of this process", grace_period=30),
    "driver-missing": _fault("there is no driver library", "node", "unhealthy", "no-longer-seen",
        "install NVIDIA's driver; if it is installed, set --driver-root-ctr-path to its path in the agent's container"),
    "driver-unusable": _fault("the driver's library cannot be loaded", "node", "unhealthy", "no-longer-seen",
        "install the driver for this machine's architecture"),
    "driver-not-loaded": _fault("the kernel driver is not loaded", "node", "unhealthy", "no-longer-seen",
        Advice("load it", (("modprobe", "nvidia"),))),
    "driver-mismatch": _fault(
        "the driver's library and the kernel driver have different versions", "node", "unhealthy", "no-longer-seen",
        "load the installed kernel driver: reboot; or end all processes that use the old driver, unload it "
        "and load the new one"),

    # one GPU, or one MIG device
    "gpu-lost": _fault("the GPU has fallen off the bus", "gpu", "unhealthy", "gpu-reset",
        LOST_ADVICE),
    "gpu-missing": _fault(
        "the GPU is in the machine, but the driver does not list it", "gpu", "unhealthy", "gpu-reset", DRIVER_ADVICE
    ),
    "gpu-absent": _fault(
        "the driver listed the GPU before, and does not now", "gpu", "unhealthy", "restored-by-admin", ABSENT_ADVICE,
        grace_period=10
    ),
    "gpu-unlisted": _fault(
        "there is a GPU on the PCI bus that the driver does not have", "gpu", "degraded", "no-longer-seen",
        PROBE_ADVICE, grace_period=10
    ),
    "gpu-hang": _fault(
        "the driver's library hangs in a call about this GPU", "gpu", "unhealthy", "no-longer-seen", RESET_ADVICE
    ),
    "gpu-crash": _fault(
        "the driver's library crashes in a call about this GPU", "gpu", "unhealthy", "no-longer-seen", RESET_ADVICE
    ),
    "query-failed": _fault(
        "the driver cannot report the data of the device",
        "instance", "unhealthy", "no-longer-seen", DRIVER_ADVICE, grace_period=3
    ),
    "node-missing": _fault("a device node is missing", "instance", "unhealthy", "no-longer-seen",
        "create the device node: run nvidia-modprobe -c MINOR, or nvidia-smi"),
    "reset-required": _fault("the driver asks for a reset", "gpu", "unhealthy", "gpu-reset", RESET_ADVICE),
    "recovery-reset": _fault("recovery action: reset", "gpu", "unhealthy", "gpu-reset", RESET_ADVICE),
    "recovery-reboot": _fault("recovery action: reboot", "gpu", "unhealthy", "node-rebooted", REBOOT_ADVICE),
    "recovery-drain": _fault("recovery action: drain", "gpu", "unhealthy", "gpu-reset",
        PEERS_ADVICE),
    "recovery-fabric": _fault("recovery action: recover IMEX", "gpu", "unhealthy", "no-longer-seen", FABRIC_ADVICE),
    "remap-pending": _fault(
        "memory rows will be remapped at the next GPU reset", "gpu", "degraded", "gpu-reset", RESET_ADVICE
    ),
    "remap-failed": _fault("a row could not be remapped", "gpu", "unhealthy", "restored-by-admin", REPLACE_ADVICE),
    "pages-pending": _fault(
        "memory pages will be retired at the next GPU reset", "gpu", "degraded", "no-longer-seen", RESET_ADVICE
    ),
    "pages-exhausted": _fault("no more pages can be retired", "gpu", "unhealthy", "restored-by-admin", REPLACE_ADVICE),
    "nvlink-down": _fault("an NVLink is down", "link", "degraded", "no-longer-seen", LINKS_ADVICE, grace_period=10),
    "nvlink-errors": _fault(
        "NVLinks have repeated recovery and replay errors", "link", "degraded", "no-longer-seen", LINKS_ADVICE
    ),
    "fabric-pending": _fault(
        "the NVLink fabric is not set up", "link", "unhealthy", "no-longer-seen", FABRIC_ADVICE, grace_period=10
    ),
    "fabric-failed": _fault("setting up the NVLink fabric failed", "link", "unhealthy", "no-longer-seen",
        FABRIC_ADVICE),
    "thermal-slowdown": _fault("slowed down by heat", "gpu", "degraded", "no-longer-seen", COOLING_ADVICE,
        grace_period=10),
    "power-slowdown": _fault("slowed down because of too little power", "gpu", "degraded", "no-longer-seen",
        POWER_ADVICE, grace_period=10),
    "vgpu-unlicensed": _fault("the virtual GPU has no license, and becomes slower", "gpu", "degraded", "no-longer-seen",
        Advice("check the license server and the client's configuration token, and see the log of nvidia-gridd",
               (("nvidia-smi", "-q", "-i", "GPU"),)), grace_period=60),
    "pcie-degraded": _fault("the PCIe link is narrower than it can be", "gpu", "degraded", "no-longer-seen",
        Advice("check the seating of the GPU in the slot and the riser card, and the width of its PCIe link",
               (("nvidia-smi", "-q", "-i", "GPU"),)), grace_period=30),
}

_EVENT_FAULTS = {
    "ecc-uncorrectable": _event("new uncorrectable memory errors", "gpu", "unhealthy", "process-ended", RESTART_ADVICE),
    "ecc-single-bit": _event("a single-bit memory error, corrected", "gpu", "note", "no-longer-seen", NO_ADVICE),
    "ecc-double-bit": _event(
        "a double-bit memory error; the agent judges it by XIDs and error counters",
        "gpu", "note", "no-longer-seen", NO_ADVICE
    ),
    "ecc-storm": _event("very many corrected memory errors in a short time", "gpu", "degraded", "time-passed",
        REPLACE_ADVICE),
    "dram-retired": _event("memory was retired", "gpu", "note", "no-longer-seen", NO_ADVICE),
    "dram-retirement-failed": _event("memory could not be retired", "gpu", "unhealthy", "restored-by-admin",
        REPLACE_ADVICE),
    "poison-nonfatal": _event("poisoned data was contained", "instance", "unhealthy", "process-ended", RESTART_ADVICE),
    "poison-fatal": _event("poisoned data was not contained", "gpu", "unhealthy", "gpu-reset", RESET_ADVICE),
    "gpu-init-failed": _event("the driver could not start the GPU", "gpu", "unhealthy", "time-passed", RESET_ADVICE),
    "gpu-bind-failed": _event("the driver could not take up the GPU", "gpu", "unhealthy", "time-passed", PROBE_ADVICE),
    "gpu-unavailable": _event("the GPU became unavailable", "gpu", "unhealthy", "gpu-reset", RESET_ADVICE),
    "recovery-changed": _event(
        "the recovery action has changed; the next observation decides about health",
        "gpu", "note", "no-longer-seen", NO_ADVICE
    ),
    "mig-changed": _event(
        "the MIG layout has changed; the next observation decides about health", "gpu", "note", "no-longer-seen",
        NO_ADVICE
    ),
    "nvswitch-fatal": _event("an NVSwitch had a fatal error", "link", "degraded", "gpu-reset", SWITCH_ADVICE),
    "nvswitch-nonfatal": _event("an NVSwitch had an error that is not fatal", "link", "note", "no-longer-seen",
        NO_ADVICE),
    "gpu-bound": _event(
        "the GPU was bound to the driver; the next observation decides about health",
        "gpu", "note", "no-longer-seen", NO_ADVICE
    ),
    "gpu-unbound": _event(
        "the GPU was unbound from the driver; the next observation decides about health",
        "gpu", "note", "no-longer-seen", NO_ADVICE
    ),
}

ENGINE_XIDS = (39, 40, 41, 60, 70, 71, 72, 75, 76, 77, *range(82, 87), 88, 89, *range(96, 106), *range(126, 136), 139)
"""Exceptions of copy engines, video and JPEG decoders and optical flow units, which NVIDIA numbered one by one."""

_XID_ENTRIES = {
    8: _event("GPU stopped processing", "instance", "unhealthy", "process-ended", RESTART_ADVICE),
    **dict.fromkeys((11, 25, 32), _event("corrupted push buffer", "instance", "unhealthy", "process-ended",
        RESTART_ADVICE)),
    13: _event("graphics engine exception", "process", "note", "process-ended", PROGRAM_ADVICE),
    18: _event("bus mastering is off", "gpu", "unhealthy", "gpu-reset", RESET_ADVICE),
    31: _event("memory page fault", "process", "note", "process-ended", PROGRAM_ADVICE),
    **dict.fromkeys((37, 38), _event("driver firmware error", "instance", "unhealthy", "process-ended",
        IGNORED_ADVICE)),
    **dict.fromkeys(ENGINE_XIDS, _event("exception of an engine for copies, video, images or optical flow",
        "instance", "unhealthy", "process-ended", RESTART_ADVICE)),
    43: _event("GPU stopped processing a program's work", "process", "note", "process-ended", PROGRAM_ADVICE),
    44: _event("fault during a context switch", "instance", "unhealthy", "process-ended", IGNORED_ADVICE),
    45: _event("the driver ended a program because of earlier errors", "process", "note", "process-ended",
        PROGRAM_ADVICE),
    46: _event("GPU stopped processing", "gpu", "unhealthy", "gpu-reset", RESET_ADVICE),
    48: _event("double-bit memory error", "instance", "unhealthy", "gpu-reset", RESET_ADVICE),
    54: _event("auxiliary power is not connected", "gpu", "unhealthy", "node-rebooted",
        "check the power cables of the GPU"),
    61: _event("internal micro-controller warning", "gpu", "unhealthy", "gpu-reset", RESET_ADVICE),
    62: _event("internal micro-controller halt", "gpu", "unhealthy", "gpu-reset", RESET_ADVICE),
    63: _event("a memory row or page will be retired at the next GPU reset", "gpu", "degraded", "gpu-reset",
        RESET_ADVICE),
    64: _event("a row or page could not be retired", "gpu", "unhealthy", "gpu-reset", RESET_ADVICE),
    **dict.fromkeys((66, 67), _event("illegal access by the driver", "instance", "unhealthy", "process-ended",
        IGNORED_ADVICE)),
    68: _event("video decoder exception", "process", "note", "process-ended", PROGRAM_ADVICE),
    69: _event("graphics engine class error", "instance", "unhealthy", "process-ended", RESTART_ADVICE),
    74: _event("NVLink error", "link", "unhealthy", "gpu-reset", LINKS_ADVICE),
    79: _event("GPU has fallen off the bus", "gpu", "unhealthy", "gpu-reset",
        LOST_ADVICE),
    80: _event("corrupted data were sent to the GPU", "instance", "unhealthy", "process-ended", RESTART_ADVICE),
    92: _event("many corrected memory errors", "gpu", "degraded", "time-passed", REPLACE_ADVICE),
    93: _event("the limit of writes to the InfoROM is exceeded", "gpu", "unhealthy", "process-ended", IGNORED_ADVICE),
    94: _event("memory error, contained to the program that ran", "instance", "unhealthy", "process-ended",
        RESTART_ADVICE),
    95: _event("memory error, not contained", "gpu", "unhealthy", "gpu-reset", RESET_ADVICE),
    **dict.fromkeys((106, 107), _event("a test message of the GPU's controller", "gpu", "note", "no-longer-seen",
        NO_ADVICE)),
    **dict.fromkeys((108, 137), _event("a program's memory access over NVLink was refused", "process", "note",
        "process-ended", PROGRAM_ADVICE)),
    109: _event("context switch timeout", "process", "note", "process-ended", PROGRAM_ADVICE),
    110: _event(
        "security fault", "gpu", "unhealthy", "node-rebooted", "switch the node off and on; then contact NVIDIA support"
    ),
    119: _event("the GPU's system processor does not answer", "gpu", "unhealthy", "gpu-reset", RESET_ADVICE),
    120: _event("the GPU's system processor failed", "gpu", "unhealthy", "gpu-reset", RESET_ADVICE),
    121: _event("corrected errors on the link to the CPU", "link", "note", "no-longer-seen",
        "nothing to do at once: the next reset of the GPU trains the link anew"),
    136: _event("link training failed", "link", "unhealthy", "gpu-reset", LINKS_ADVICE),
    140: _event("memory errors that could not be recovered", "gpu", "unhealthy", "gpu-reset", RESET_ADVICE),
    141: _event("CUDA fast path error", "instance", "unhealthy", "process-ended", IGNORED_ADVICE),
    143: _event("the GPU could not be initialized", "gpu", "unhealthy", "gpu-reset", RESET_ADVICE),
    **dict.fromkeys(XIDS_WITH_SEVERITY_IN_TEXT, _event("NVLink error", "link", "unhealthy", "gpu-reset", LINKS_ADVICE)),
    151: _event("a key could not be rotated", "gpu", "unhealthy", "node-rebooted", REBOOT_ADVICE),
    154: _event(
        "the recovery action has changed; the next observation decides about health",
        "gpu", "note", "no-longer-seen", NO_ADVICE
    ),
    155: _event("NVLink software error", "link", "unhealthy", "gpu-reset", LINKS_ADVICE),
    156: _event("a resource was retired; reset the GPU to complete this", "gpu", "unhealthy", "gpu-reset",
        RESET_ADVICE),
    157: _event("a resource could not be retired", "gpu", "degraded", "restored-by-admin", REPLACE_ADVICE),
    158: _event("fatal timeout", "gpu", "unhealthy", "gpu-reset", RESET_ADVICE),
    **dict.fromkeys((160, 161), _event("a channel of the memory is retired, or could not be", "instance", "unhealthy",
        "process-ended", IGNORED_ADVICE)),
    **dict.fromkeys(range(162, 166), _event("the state of the power smoothing circuit has changed", "gpu", "note",
        "no-longer-seen", NO_ADVICE)),
}
# fmt: on

_NONFATAL = _event(
    "NVLink error that is not fatal; the recovery action decides about health",
    "link",
    "note",
    "no-longer-seen",
    NO_ADVICE,
)

CATALOGUE = {
    **_OBSERVED_FAULTS,
    **_EVENT_FAULTS,
    **{f"xid-{number}": entry for number, entry in sorted(_XID_ENTRIES.items())},
    **{f"xid-{number}{NONFATAL}": _NONFATAL for number in XIDS_WITH_SEVERITY_IN_TEXT},
}

UNLISTED_XID = _event("an XID that the catalogue does not list", "instance", "unhealthy", "gpu-reset", DRIVER_ADVICE)
"""An XID without a row."""

UNKNOWN_FAULT = _fault(
    "a fault that the catalogue does not list", "instance", "unhealthy", "no-longer-seen", DRIVER_ADVICE
)
"""Any other code, as a record of another version of us may have it."""

CODES_THAT_HIDE_OTHERS = ("gpu-lost", "gpu-missing", "gpu-hang", "gpu-crash", "reset-required", "query-failed")
"""While an observation shows one of these, it cannot show that another fault is over."""

CODES_THAT_BLOCK_RECOVERY = ("remap-pending", "pages-pending", "nvlink-down")
"""With these a probe fails, although they alone do not make a device unhealthy."""

CODES_THAT_NEED_PROBE = ("gpu-hang", "gpu-crash")
"""Observations show these until a probe finds the GPU healthy, for they no longer ask the driver about it."""

CODES_CLEARED_ONLY_BY_RESET = (
    "gpu-lost",
    "gpu-missing",
    "reset-required",
    "recovery-reset",
    "recovery-reboot",
    "recovery-drain",
    "remap-pending",
)
"""Only a reset (or a reboot) clears these: when observations no longer show one, the GPU was reset.

Counts of memory errors that begin anew are no such sign, nor are pages that no longer wait: without persistence mode
both happen whenever the last client of the GPU ends, and that may have been this agent.
"""


NVIDIA_FAULTS = FaultCatalogue(
    entries=CATALOGUE,
    codes_that_hide_others=frozenset(CODES_THAT_HIDE_OTHERS),
    codes_that_block_recovery=frozenset(CODES_THAT_BLOCK_RECOVERY),
    codes_that_need_probe=frozenset(CODES_THAT_NEED_PROBE),
    codes_cleared_only_by_reset=frozenset(CODES_CLEARED_ONLY_BY_RESET),
)
