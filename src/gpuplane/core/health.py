"""Whether a device may be given to a pod, and if not, why."""

from gpuplane.model.machine import Gpu
from gpuplane.model.snapshot import Snapshot

PATIENCE = {"driver": 30.0}
"""Seconds that a part may fail before what it speaks for counts as lost. A silent driver's GPUs are served so long."""


def trouble(snapshot: Snapshot, gpu: Gpu) -> str:
    """Why this GPU must not be given out now, for an operator to read; "" if it may."""
    reasons = []
    if away := released(snapshot):
        reasons.append(f"the driver is let go of: {away}")
    driver = snapshot.conditions.get("driver")
    if driver is not None and driver.overdue:
        reasons.append(f"the driver does not answer: {driver.reason}")
    faults = [*(snapshot.machine.faults if snapshot.machine else ()), *gpu.faults]
    reasons += [f"{fault.code}: {fault.message}" for fault in faults]
    return "; ".join(reasons)


def released(snapshot: Snapshot) -> str:
    """Why the driver has to be let go of now: an operator's word here, or on our Node object; "" if it need not."""
    release, asked = snapshot.ledger.release, snapshot.config.asked
    if release is not None:
        return release.why
    return asked.release if asked is not None else ""
