"""Which GPUs the driver must not be asked about for now, because a call about them hung or crashed.

A GPU is tried again after a while, or once a probe has found that it answers; if that goes wrong soon, the next while
is twice as long.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from gpuplane.node.hardware.nvidia.driver.channel import SkippedGpu
from gpuplane.node.model.machine import Gpu


@dataclass(frozen=True)
class GpuBackoff:
    """A GPU that is skipped until a time, `wait` seconds after the fault."""

    skipped: SkippedGpu
    until: float
    wait: float


GpuBackoffs = tuple[GpuBackoff, ...]


def back_off(backoffs: GpuBackoffs, skipped: SkippedGpu, now: float, least: float, most: float) -> GpuBackoffs:
    """Those after another one. It counts as a relapse within as long as the GPU was skipped last."""
    before = next((each for each in backoffs if each.skipped.matches(skipped.index, skipped.pci)), None)
    relapse = before is not None and now < before.until + before.wait
    wait = min(most, before.wait * 2) if before is not None and relapse else least
    others = tuple(each for each in backoffs if each is not before)
    return (*others, GpuBackoff(skipped, now + wait, wait))


def end_back_off(backoffs: GpuBackoffs, gpu: Gpu, now: float) -> GpuBackoffs:
    """Those in which this GPU is skipped no more. It is remembered, for the case of a relapse."""
    return tuple(
        replace(each, until=min(now, each.until)) if each.skipped.matches(gpu.index, gpu.pci) else each
        for each in backoffs
    )


def skipped_gpus(backoffs: Iterable[GpuBackoff], now: float) -> tuple[SkippedGpu, ...]:
    """The GPUs to skip now."""
    return tuple(each.skipped for each in backoffs if now < each.until)
