"""Whether a device may be given to a pod, and if not, why."""

from collections.abc import Iterable

from gpuplane.model.machine import Fault, Gpu
from gpuplane.model.snapshot import Snapshot

PATIENCE = {"driver": 30.0}
"""Seconds that a part may fail before what it speaks for counts as lost. A silent driver's GPUs are served so long."""


def trouble(snapshot: Snapshot, gpu: Gpu) -> str:
    """Why this GPU must not be given out now, for an operator to read; "" if it may.

    A driver that was let go of is not believed again before it has been looked at: the GPUs may have been reset,
    repartitioned or replaced meanwhile.
    """
    reasons = []
    driver = snapshot.conditions.get("driver")
    if away := released(snapshot):
        reasons.append(f"the driver is let go of: {away}")
    elif driver is not None and driver.standing == "waiting":
        reasons.append("the driver was let go of, and the machine has not been looked at since")
    if driver is not None and driver.overdue:
        reasons.append(f"the driver does not answer: {driver.reason}")
    faults = [*(snapshot.machine.faults if snapshot.machine else ()), *gpu.faults]
    return "; ".join(filter(None, (*reasons, told(faults))))


def told(faults: Iterable[Fault]) -> str:
    """Faults in words; "" for none."""
    return "; ".join(f"{fault.code}: {fault.message}" for fault in faults)


def released(snapshot: Snapshot) -> str:
    """Why the driver has to be let go of now: an operator's word here, or on our Node object; "" if it need not.

    Before the API server's first word what it said last holds: a restart must not open the driver amid its upgrade.
    """
    release, asked = snapshot.ledger.release, snapshot.config.asked
    if release is not None:
        return release.why
    return asked.release if asked is not None else snapshot.ledger.asked_release or ""
