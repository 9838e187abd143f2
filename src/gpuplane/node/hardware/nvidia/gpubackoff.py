"""Which GPUs the driver must not be asked about for now, because a hang or a crash was charged to them.

A GPU is tried again after a while, or once a probe has found that it answers; if that goes wrong soon, the next while
is twice as long.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from gpuplane.node.hardware.nvidia.driver.channel import Skipped
from gpuplane.node.model.machine import Gpu


@dataclass(frozen=True)
class Charge:
    """A GPU that is skipped until a time, `wait` seconds after it was charged."""

    skipped: Skipped
    until: float
    wait: float


Charges = tuple[Charge, ...]


def charge(charges: Charges, skipped: Skipped, now: float, least: float, most: float) -> Charges:
    """The charges after another one. It counts as a relapse within as long as the GPU was skipped last."""
    before = next((each for each in charges if each.skipped.means(skipped.index, skipped.pci)), None)
    relapse = before is not None and now < before.until + before.wait
    wait = min(most, before.wait * 2) if before is not None and relapse else least
    others = tuple(each for each in charges if each is not before)
    return (*others, Charge(skipped, now + wait, wait))


def lift(charges: Charges, gpu: Gpu, now: float) -> Charges:
    """The charges without those against this GPU, which are remembered for the case of a relapse."""
    return tuple(
        replace(each, until=min(now, each.until)) if each.skipped.means(gpu.index, gpu.pci) else each
        for each in charges
    )


def in_force(charges: Iterable[Charge], now: float) -> tuple[Skipped, ...]:
    """The GPUs to skip now."""
    return tuple(each.skipped for each in charges if now < each.until)
