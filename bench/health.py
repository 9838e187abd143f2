"""Health: how soon a fault is at kubelet, how soon what is mended is back, and what watching costs.

On the stand-in of the driver's library, so that each figure has the whole way in it: the driver's process, its channel,
the step, the list stream and kubelet's books.
"""

import asyncio
import random
import statistics
import time
from collections.abc import Callable, Sequence

import psutil

from bench.reference import in_loops
from bench.rig import GPU, Driven, driven, running
from bench.row import Measure, Row
from gpuplane.node.model.config import Settings
from gpuplane.node.model.machine import InjectedFailure
from gpuplane.sandbox.kubelet import Kubelet, PodRejected, pod

ROUNDS, LOSSES, IDLE = 13, 5, 30.0
PERIOD = Settings().probe_period


class Bystanders:
    """The GPUs on which nothing was injected: how often one's health changed, or a pod was refused one."""

    def __init__(self) -> None:
        self.harmed = self.pods = 0

    async def fall(self, kubelet: Kubelet, ill: Sequence[str], act: Callable[[], object]) -> float:
        """Seconds from `act`, which makes the last of `ill` so, until kubelet has it as unhealthy."""

        def seen() -> bool:
            view = kubelet.device_health()[GPU]
            self.harmed += any(health != "Healthy" for id, health in view.items() if id not in ill)
            return view[ill[-1]] == "Unhealthy"

        began = time.perf_counter()
        act()
        await kubelet.until(seen, 30)
        took = time.perf_counter() - began
        await self.is_served(kubelet, len(ill))
        return took

    async def is_served(self, kubelet: Kubelet, ill: int) -> None:
        """Every GPU but the ill ones can be given to a pod."""
        served = pod(f"p{self.pods}", gpu=8 - ill)
        self.pods += 1
        try:
            if ill < 8:
                await kubelet.run(served)
                await kubelet.end(served.key)
        except PodRejected:
            self.harmed += 1

    def row(self, what: str) -> Row:
        """None may be harmed."""
        return Row(f"{what}: other GPUs' health changes, failed allocations", self.harmed, 0, "", f"{self.pods} pods")


async def xids() -> list[Row]:
    """an XID, until kubelet has the GPU as unhealthy"""
    times, others = list[float](), Bystanders()
    for _ in range(ROUNDS):
        with driven() as rig:
            async with running("nvml", 8, *rig.flags) as (kubelet, _, _):
                for n, uuid in enumerate(_gpus(rig)):
                    await asyncio.sleep(random.uniform(0, 0.3))
                    ill = _gpus(rig)[: n + 1]
                    times.append(await others.fall(kubelet, ill, lambda n=n: rig.driver.happen(n, 79)))  # type: ignore[misc]
                    assert uuid == ill[-1]
    how = f"{len(times)} XIDs, median {statistics.median(times) * 1e3:.1f} ms, max {max(times) * 1e3:.1f} ms"
    return [Row("XID event to Unhealthy at kubelet, p99", _p99(times) * 1e3, 250, "ms", how), others.row("XIDs")]


async def losses() -> list[Row]:
    """a GPU that is lost without an event, and what is mended again"""
    times, back, others = list[float](), list[float](), Bystanders()
    for _ in range(LOSSES):
        with driven() as rig:
            async with running("nvml", 8, *rig.flags) as (kubelet, _, _):
                gpus, lost = _gpus(rig), list[int]()
                for n in range(8):
                    await asyncio.sleep(random.uniform(0, 1))
                    lost.append(n)
                    times.append(await others.fall(kubelet, gpus[: n + 1], lambda lost=tuple(lost): _lose(rig, lost)))  # type: ignore[misc]
                back += await _mended(kubelet, rig)
    how = f"{len(times)} GPUs, median {statistics.median(times):.2f} s, max {max(times):.2f} s, polled each second"
    again = f"{len(back)} GPUs, median {statistics.median(back):.2f} s, a period is {PERIOD:g} s; no restart"
    return [
        Row("GPU lost with no event, to Unhealthy at kubelet, p99", _p99(times), 2, "s", how),
        others.row("losses"),
        Row("recovered GPU back to Healthy, in probe periods", max(back) / PERIOD, 2, "", again),
    ]


def _lose(rig: Driven, lost: Sequence[int]) -> None:
    failures = tuple(InjectedFailure(effect="error", gpu=index, error="GPU_IS_LOST") for index in lost)
    rig.driver.describe(rig.described.but(failures=failures))


async def _mended(kubelet: Kubelet, rig: Driven) -> list[float]:
    """Seconds until each GPU is back after all have been mended."""
    back: dict[str, float] = {}
    began = time.perf_counter()

    def seen() -> bool:
        for id, health in kubelet.device_health()[GPU].items():
            if health == "Healthy":
                back.setdefault(id, time.perf_counter() - began)
        return len(back) == 8

    rig.driver.describe(rig.described)
    await kubelet.until(seen, 60)
    return list(back.values())


async def hang() -> list[Row]:
    """the whole driver library hung for a minute"""
    with driven() as rig:
        async with running("nvml", 8, *rig.flags) as (kubelet, _, _):
            began = time.perf_counter()
            rig.driver.describe(rig.described.but(failures=(InjectedFailure(effect="hang"),)))
            await kubelet.until(lambda: kubelet.capacity(GPU) == (8, 0), 60)
            served = time.perf_counter() - began
            await asyncio.sleep(max(0.0, 60 - served))
            rig.driver.describe(rig.described)
            began = time.perf_counter()
            await kubelet.until(lambda: kubelet.capacity(GPU) == (8, 8), 120)
            back = time.perf_counter() - began
    how = f"served for {served:.0f} s of the hang, then unhealthy; no restart"
    return [Row("whole driver library hung 60 s: all back to Healthy after its end", back, 60, "s", how)]


async def polling() -> list[Row]:
    """what watching costs"""
    with driven() as rig:
        async with running("nvml", 8, *rig.flags) as (_, agent, _):
            await asyncio.sleep(5)
            [child] = psutil.Process(agent.process.pid).children()
            before, began = sum(child.cpu_times()[:2]), time.perf_counter()
            await asyncio.sleep(IDLE)
            share = (sum(child.cpu_times()[:2]) - before) / (time.perf_counter() - began) * 100
    how = f"over {IDLE:g} s: the driver's process, each second; the library is a stand-in"
    return [in_loops(Row("CPU of polling 8 GPUs", share, 0.3, "% of a core", how))]


def _gpus(rig: Driven) -> list[str]:
    return [gpu.uuid for gpu in rig.described.gpus or ()]


def _p99(times: Sequence[float]) -> float:
    return statistics.quantiles(times, n=100, method="inclusive")[98]


MEASURES: tuple[Measure, ...] = (xids, losses, hang, polling)
