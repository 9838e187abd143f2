"""The main job through every layer: a described machine, the real agent, real sockets."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpuplane.sandbox.kubelet import Kubelet, Rejected

MACHINE = """
driver: {version: 550.90.07, cuda: "12.4"}
gpus:
  - {index: 0, uuid: GPU-a, minor: 0, model: NVIDIA H100, numa: 0}
  - {index: 1, uuid: GPU-b, minor: 1, model: NVIDIA H100, numa: 1%s}
"""
FAULT = ", faults: [{code: gpu-lost, message: fell off the bus}]"


@asynccontextmanager
async def agent(*arguments: object) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "from gpuplane.cli import main; main()", "agent", *map(str, arguments)
    )
    try:
        yield process
    finally:
        process.terminate()
        assert await process.wait() == 0


async def test_register_allocate_fault_and_restart(tmp_path: Path) -> None:
    """Devices come up, a pod is admitted, a fault reaches kubelet, a restart of kubelet is survived."""
    machine = tmp_path / "machine.yaml"
    machine.write_text(MACHINE % "")
    async with agent("--machine", machine, "--kubelet-root", tmp_path, "--state-dir", tmp_path / "state"):
        async with Kubelet(tmp_path) as kubelet:
            await kubelet.until_capacity("nvidia.com/gpu", 2, 2)
            got = await kubelet.admit("default/train", "nvidia.com/gpu", 1)

            assert got.envs == {"NVIDIA_VISIBLE_DEVICES": "GPU-a"}

            machine.write_text(MACHINE % FAULT)
            await kubelet.until_capacity("nvidia.com/gpu", 2, 1)
            with pytest.raises(Rejected):
                await kubelet.admit("default/late", "nvidia.com/gpu", 1)
        async with Kubelet(tmp_path) as kubelet:
            await kubelet.until_capacity("nvidia.com/gpu", 2, 1)
