"""The main job through every layer: a described machine, the real agent, real sockets."""

from pathlib import Path

import pytest

from gpuplane.sandbox.agent import Agent
from gpuplane.sandbox.kubelet import Kubelet, PodRejected, pod

MACHINE = """
driver: {version: 550.90.07, cuda: "12.4"}
gpus:
  - {index: 0, uuid: GPU-a, minor: 0, model: NVIDIA H100, numa: 0}
  - {index: 1, uuid: GPU-b, minor: 1, model: NVIDIA H100, numa: 1%s}
"""
FAULT = ", faults: [{code: gpu-lost, message: fell off the bus}]"
GPU = "nvidia.com/gpu"


async def test_register_allocate_fault_and_restart(tmp_path: Path) -> None:
    """Devices come up, a pod is admitted, a fault reaches kubelet, a restart of kubelet is survived."""
    machine = tmp_path / "machine.yaml"
    machine.write_text(MACHINE % "")
    async with (
        Kubelet(tmp_path) as kubelet,
        Agent("--machine", machine, "--kubelet-root", tmp_path, "--state-dir", tmp_path / "state") as agent,
    ):
        await kubelet.until_capacity(GPU, 2, 2)
        running = await kubelet.run(pod("train", gpu=1))

        assert running.response().envs == {"NVIDIA_VISIBLE_DEVICES": "GPU-a"}

        machine.write_text(MACHINE % FAULT)
        await kubelet.until_capacity(GPU, 2, 1)
        with pytest.raises(PodRejected, match="Requested: 1, Available: 0"):
            await kubelet.run(pod("late", gpu=1))

        await kubelet.restart()
        await kubelet.until_capacity(GPU, 2, 1)
        assert kubelet.pod_health("default/train") == {"main": {GPU: [("GPU-a", "Healthy")]}}
        assert await agent.stop() == 0
