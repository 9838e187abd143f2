"""Whether a device may be given to a pod, and if not, why."""

from gpuplane.model.machine import Gpu
from gpuplane.model.snapshot import Snapshot

SILENCE = 30.0
"""Seconds that the driver may be silent before its GPUs count as lost."""


def trouble(snapshot: Snapshot, gpu: Gpu) -> str:
    """Why this GPU must not be given out now; "" if it may. Shape: sentences for an operator."""
    machine, release = snapshot.machine, snapshot.ledger.release
    faults = [*(machine.faults if machine else ()), *gpu.faults]
    if release is not None:
        return f"the driver is let go of: {release.why}"
    if snapshot.config.asked is not None and snapshot.config.asked.release:
        return f"the driver is let go of: {snapshot.config.asked.release}"
    return "; ".join(f"{fault.code}: {fault.message}" for fault in faults)
