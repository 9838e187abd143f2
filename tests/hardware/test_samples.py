"""The counters of a real driver, read as the agent reads them. Nothing here changes a card."""

import asyncio
import csv
import shutil
import subprocess
from contextlib import aclosing

import pytest

from gpuplane.node.hardware.nvidia.driver.counters import GPM_METRICS, RATIO_FIELDS
from gpuplane.node.hardware.nvidia.driver.errors import NVML_ERRORS
from gpuplane.node.hardware.nvidia.settings import DriverLocation
from gpuplane.node.hardware.nvidia.source import Nvidia
from gpuplane.node.model.machine import Gpu
from gpuplane.node.model.telemetry import SAMPLED_FIELDS, Sample, SamplingRequest
from tests.node.hardware.nvidia.driver.watched import DEADLINE, Watched

ALL = SamplingRequest(fields=tuple(sorted(SAMPLED_FIELDS)), interval=0.5)


async def second_sample() -> tuple[Sample, tuple[Gpu, ...]]:
    """A sample with profiling counters, where there are any, and the GPUs as they are seen after it."""
    watch = Watched(Nvidia(DriverLocation()))
    await watch.hardware.set_sampling(ALL)
    task = asyncio.create_task(watch.watch())
    try:
        async with asyncio.timeout(DEADLINE), aclosing(watch.hardware.samples()) as samples:
            await anext(samples)
            return await anext(samples), watch.gpus() or ()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await watch.hardware.release()


async def test_a_gpu_tells_its_counters() -> None:
    """What it does not tell is missing by a name of NVML's. No GPU is ill by being asked."""
    sample, gpus = await second_sample()
    assert [each.uuid for each in sample.gpus] == [each.uuid for each in gpus]
    for gpu, seen in zip(sample.gpus, gpus, strict=True):
        assert not any(fault.code in ("gpu-hang", "gpu-crash", "query-failed") for fault in seen.faults)
        assert {*gpu.readings, *gpu.texts, *gpu.missing} == set(ALL.fields)
        assert set(gpu.missing.values()) <= set(NVML_ERRORS)
        assert {"DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_SM_CLOCK"} <= gpu.readings.keys()
        assert 0 < gpu.readings["DCGM_FI_DEV_GPU_TEMP"] < 120
        if not seen.compute_capability or int(seen.compute_capability.partition(".")[0]) < 9:
            assert not gpu.readings.keys() & set(GPM_METRICS)
        assert all(0 <= gpu.readings[name] <= 1 for name in RATIO_FIELDS & gpu.readings.keys())


async def test_nvidia_smi_tells_the_same() -> None:
    """Of what does not change: the limit of the power, the size of the memory, the serial number."""
    if shutil.which("nvidia-smi") is None:
        pytest.skip("needs nvidia-smi")
    query = ["nvidia-smi", "--query-gpu=uuid,power.limit,memory.total,serial", "--format=csv,noheader,nounits"]
    run = await asyncio.to_thread(subprocess.run, query, capture_output=True, text=True, check=True, timeout=60)
    said = {row[0]: [field.strip() for field in row[1:]] for row in csv.reader(run.stdout.splitlines())}
    sample, _ = await second_sample()
    for gpu in sample.gpus:
        limit, memory, serial = said[gpu.uuid]
        if "DCGM_FI_DEV_POWER_MGMT_LIMIT" in gpu.readings:
            assert gpu.readings["DCGM_FI_DEV_POWER_MGMT_LIMIT"] == pytest.approx(float(limit), abs=0.01)
        if "DCGM_FI_DEV_FB_TOTAL" in gpu.readings:
            assert gpu.readings["DCGM_FI_DEV_FB_TOTAL"] == pytest.approx(float(memory), abs=1)
        if "DCGM_FI_DEV_SERIAL" in gpu.texts:
            assert gpu.texts["DCGM_FI_DEV_SERIAL"] == serial
