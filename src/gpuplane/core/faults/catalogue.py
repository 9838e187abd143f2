"""The fault catalogue: a table. What each fault is, what it affects, and what clears it.

XIDs count as they do for NVIDIA's device plugin (k8s-device-plugin 0.20, internal/rm/health.go): all make a GPU
unhealthy but 13, 31, 43, 45, 68 and 109, which speak of the program that ran. One differs: 154 announces any change of
the recovery action, also that none is left, and a look shows which it is. What ends them follows the resolutions in
NVIDIA's XID catalogue (docs.nvidia.com/deploy/xid-errors). XIDs that are not in the table are judged as `UNLISTED`.
"""

from collections.abc import Mapping
from typing import Literal

from gpuplane.model.health import CatalogueEntry, ClearedBy, Scope, Severity
from gpuplane.model.value import Value

RESTART = "restart the program that ran; where it comes back on the same GPU with other programs, reset the GPU"
PROGRAM = "see the log of the program that ran: most often it is the cause"
RESET = "end its pods, release the driver (gpuplane driver release) and reset it (nvidia-smi -r -i GPU)"
REBOOT = "drain the node and reboot it"
REPLACE = "have NVIDIA's field diagnostic run, and replace the GPU"
DRIVER = "see the driver's lines in the kernel log (dmesg | grep NVRM)"
FABRIC = "see nvidia-smi -q (Fabric) and the log of nvidia-fabricmanager"
COOLING = "see its temperature (nvidia-smi -q -d TEMPERATURE,PERFORMANCE), fans and air flow"
LINKS = "see nvidia-smi nvlink -s and -e; reset the GPU, then look at the board"
NOTHING = "nothing to do"


def _fault(
    title: str,
    scope: Scope,
    severity: Severity,
    ends: ClearedBy,
    advice: str,
    *,
    patience: float = 0.0,
    seen: Literal["look", "event"] = "look",
) -> CatalogueEntry:
    return CatalogueEntry(
        title=title,
        detected_by=seen,
        scope=scope,
        severity=severity,
        cleared_by=ends,
        advice=advice,
        grace_period=patience,
    )


def _event(title: str, scope: Scope, severity: Severity, ends: ClearedBy, advice: str) -> CatalogueEntry:
    return _fault(title, scope, severity, ends, advice, seen="event")


# fmt: off
_OBSERVED_FAULTS = {
    # the driver, and with it every GPU of the node
    "not-looked": _fault("not observed since the driver was released", "node", "unhealthy", "nothing",
        "it ends with the next look; where none comes, see the part driver"),
    "driver-hang": _fault("the driver's library does not answer", "node", "unhealthy", "nothing", DRIVER, patience=30),
    "driver-crash": _fault("the driver's library crashes", "node", "degraded", "nothing", DRIVER),
    "driver-failed": _fault("the driver's library fails", "node", "unhealthy", "nothing", DRIVER, patience=30),
    "driver-start": _fault("the driver's process cannot be started", "node", "unhealthy", "nothing",
        "see the node's memory and process limits", patience=30),
    "driver-denied": _fault("the driver may not be used", "node", "unhealthy", "nothing",
        "see the rights to /dev/nvidiactl and the device cgroup of this process", patience=30),
    "driver-missing": _fault("there is no driver library", "node", "unhealthy", "nothing",
        "install NVIDIA's driver, or let the agent see it: --driver-root-ctr-path"),
    "driver-unusable": _fault("the driver's library cannot be loaded", "node", "unhealthy", "nothing",
        "install the driver for this machine's architecture"),
    "driver-not-loaded": _fault("the kernel driver is not loaded", "node", "unhealthy", "nothing",
        "load it: modprobe nvidia"),
    "driver-mismatch": _fault("library and kernel driver are of different versions", "node", "unhealthy", "nothing",
        "load the installed kernel driver: reboot, or unload the old one once no process uses it"),

    # one GPU, or one MIG device
    "gpu-lost": _fault("the GPU has fallen off the bus", "gpu", "unhealthy", "reset",
        "reset it; where it stays away, reboot, then see its power, seating and riser"),
    "gpu-missing": _fault("the GPU is there, and the driver does not count it", "gpu", "unhealthy", "reset", DRIVER),
    "gpu-hang": _fault("the driver's library hangs in a call about this GPU", "gpu", "unhealthy", "nothing", RESET),
    "gpu-crash": _fault("the driver's library crashes in a call about this GPU", "gpu", "unhealthy", "nothing", RESET),
    "query-failed": _fault("the driver fails to describe it", "instance", "unhealthy", "nothing", DRIVER, patience=3),
    "node-missing": _fault("a device node is missing", "instance", "unhealthy", "nothing",
        "make it: nvidia-modprobe -c MINOR, or nvidia-smi"),
    "reset-required": _fault("the driver asks for a reset", "gpu", "unhealthy", "reset", RESET),
    "recovery-reset": _fault("recovery action: reset", "gpu", "unhealthy", "reset", RESET),
    "recovery-reboot": _fault("recovery action: reboot", "gpu", "unhealthy", "reboot", REBOOT),
    "recovery-drain": _fault("recovery action: drain", "gpu", "unhealthy", "reset",
        "have the pods end that use it or its NVLink peers, then reset it"),
    "recovery-fabric": _fault("recovery action: recover IMEX", "gpu", "unhealthy", "nothing", FABRIC),
    "remap-pending": _fault("rows wait for a reset to be remapped", "gpu", "degraded", "reset", RESET),
    "remap-failed": _fault("a row could not be remapped", "gpu", "unhealthy", "operator", REPLACE),
    "pages-pending": _fault("pages wait for a reset to be retired", "gpu", "degraded", "nothing", RESET),
    "pages-exhausted": _fault("no more pages can be retired", "gpu", "unhealthy", "operator", REPLACE),
    "nvlink-down": _fault("an NVLink is down", "link", "degraded", "nothing", LINKS, patience=10),
    "nvlink-errors": _fault("NVLinks recover and replay again and again", "link", "degraded", "nothing", LINKS),
    "fabric-pending": _fault("the NVLink fabric is not set up", "link", "unhealthy", "nothing", FABRIC, patience=10),
    "fabric-failed": _fault("setting up the NVLink fabric failed", "link", "unhealthy", "nothing", FABRIC),
    "thermal-slowdown": _fault("slowed down by heat", "gpu", "degraded", "nothing", COOLING, patience=10),
    "power-slowdown": _fault("slowed down for want of power", "gpu", "degraded", "nothing",
        "see power supplies and cables; nvidia-smi -q -d POWER,PERFORMANCE", patience=10),
    "pcie-degraded": _fault("the PCIe link is narrower than it can be", "gpu", "degraded", "nothing",
        "see its seating and riser; nvidia-smi -q (PCI: Link Width)", patience=30),
}

_EVENT_FAULTS = {
    "ecc-uncorrectable": _event("more uncorrectable memory errors", "gpu", "unhealthy", "process", RESTART),
    "ecc-single-bit": _event("a single-bit memory error, corrected", "gpu", "note", "nothing", NOTHING),
    "ecc-double-bit": _event("a double-bit memory error; XIDs and counters decide", "gpu", "note", "nothing", NOTHING),
    "ecc-storm": _event("a storm of corrected memory errors", "gpu", "degraded", "time", REPLACE),
    "dram-retired": _event("memory was retired", "gpu", "note", "nothing", NOTHING),
    "dram-retirement-failed": _event("memory could not be retired", "gpu", "unhealthy", "operator", REPLACE),
    "poison-nonfatal": _event("poisoned data was contained", "instance", "unhealthy", "process", RESTART),
    "poison-fatal": _event("poisoned data was not contained", "gpu", "unhealthy", "reset", RESET),
    "gpu-unavailable": _event("the GPU became unavailable", "gpu", "unhealthy", "reset", RESET),
    "recovery-changed": _event("another recovery action; the look decides", "gpu", "note", "nothing", NOTHING),
    "mig-changed": _event("the MIG layout has changed; the look decides", "gpu", "note", "nothing", NOTHING),
    "gpu-bound": _event("bound to the driver; the look decides", "gpu", "note", "nothing", NOTHING),
    "gpu-unbound": _event("unbound from the driver; the look decides", "gpu", "note", "nothing", NOTHING),
}

_XID_ENTRIES = {
    8: _event("GPU stopped processing", "instance", "unhealthy", "process", RESTART),
    13: _event("graphics engine exception", "process", "note", "process", PROGRAM),
    18: _event("bus mastering is off", "gpu", "unhealthy", "reset", RESET),
    31: _event("memory page fault", "process", "note", "process", PROGRAM),
    32: _event("corrupted push buffer", "instance", "unhealthy", "process", RESTART),
    38: _event("driver firmware error", "gpu", "unhealthy", "reset", RESET),
    43: _event("GPU stopped processing a program's work", "process", "note", "process", PROGRAM),
    44: _event("fault during a context switch", "instance", "unhealthy", "process", RESTART),
    45: _event("a program was ended for earlier errors", "process", "note", "process", PROGRAM),
    46: _event("GPU stopped processing", "gpu", "unhealthy", "reset", RESET),
    48: _event("double-bit memory error", "instance", "unhealthy", "reset", RESET),
    54: _event("auxiliary power is not connected", "gpu", "unhealthy", "reboot", "see its power cables"),
    61: _event("internal micro-controller warning", "gpu", "unhealthy", "reset", RESET),
    62: _event("internal micro-controller halt", "gpu", "unhealthy", "reset", RESET),
    63: _event("a row or page is to be retired by a reset", "gpu", "unhealthy", "reset", RESET),
    64: _event("a row or page could not be retired", "gpu", "unhealthy", "reset", RESET),
    68: _event("video decoder exception", "process", "note", "process", PROGRAM),
    69: _event("graphics engine class error", "instance", "unhealthy", "process", RESTART),
    74: _event("NVLink error", "link", "unhealthy", "reset", LINKS),
    79: _event("GPU has fallen off the bus", "gpu", "unhealthy", "reset",
        "reset it; where it stays away, reboot, then see its power, seating and riser"),
    92: _event("many corrected memory errors", "gpu", "unhealthy", "reset", RESET),
    94: _event("memory error, contained to the program that ran", "instance", "unhealthy", "process", RESTART),
    95: _event("memory error, not contained", "gpu", "unhealthy", "reset", RESET),
    109: _event("context switch timeout", "process", "note", "process", PROGRAM),
    110: _event("security fault", "gpu", "unhealthy", "reboot", "switch the node off and on; then have NVIDIA's help"),
    119: _event("the GPU's system processor does not answer", "gpu", "unhealthy", "reset", RESET),
    120: _event("the GPU's system processor failed", "gpu", "unhealthy", "reset", RESET),
    121: _event("error on the link to the CPU", "link", "unhealthy", "reset", RESET),
    136: _event("link training failed", "link", "unhealthy", "reset", LINKS),
    137: _event("a peer's memory access over NVLink was refused", "instance", "unhealthy", "process", RESTART),
    140: _event("memory errors that could not be recovered", "gpu", "unhealthy", "reset", RESET),
    143: _event("the GPU could not be initialized", "gpu", "unhealthy", "reset", RESET),
    **dict.fromkeys(range(144, 151), _event("NVLink error", "link", "unhealthy", "reset", LINKS)),
    154: _event("another recovery action; the look decides", "gpu", "note", "nothing", NOTHING),
    155: _event("NVLink: an error of its software", "link", "unhealthy", "reset", LINKS),
    156: _event("a resource was retired; it takes a reset to take effect", "gpu", "unhealthy", "reset", RESET),
    157: _event("a resource could not be retired", "gpu", "unhealthy", "reset", RESET),
    158: _event("fatal timeout", "gpu", "unhealthy", "reset", RESET),
}
# fmt: on

CATALOGUE = {**_OBSERVED_FAULTS, **_EVENT_FAULTS, **{f"xid-{number}": entry for number, entry in _XID_ENTRIES.items()}}

UNLISTED_XID = _event("an XID that the catalogue does not list", "instance", "unhealthy", "reset", DRIVER)
"""An XID without a row."""

UNKNOWN_FAULT = _fault("a fault that the catalogue does not list", "instance", "unhealthy", "nothing", DRIVER)
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


class FaultCatalogue(Value):
    """All that health has to know of faults, of one or several kinds of devices. See the tables above."""

    entries: Mapping[str, CatalogueEntry]
    unlisted_xid: CatalogueEntry
    unknown_fault: CatalogueEntry
    codes_that_hide_others: frozenset[str]
    codes_that_block_recovery: frozenset[str]
    codes_that_need_probe: frozenset[str]
    codes_cleared_only_by_reset: frozenset[str]

    def sort_rank(self, code: str) -> int:
        """The position of a code in the catalogue; a code that is not in it comes last."""
        return next((n for n, each in enumerate(self.entries) if each == code), len(self.entries))


NVIDIA_FAULTS = FaultCatalogue(
    entries=CATALOGUE,
    unlisted_xid=UNLISTED_XID,
    unknown_fault=UNKNOWN_FAULT,
    codes_that_hide_others=frozenset(CODES_THAT_HIDE_OTHERS),
    codes_that_block_recovery=frozenset(CODES_THAT_BLOCK_RECOVERY),
    codes_that_need_probe=frozenset(CODES_THAT_NEED_PROBE),
    codes_cleared_only_by_reset=frozenset(CODES_CLEARED_ONLY_BY_RESET),
)
