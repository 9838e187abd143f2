"""The choice as pods get it: through kubelet, which offers what is free in no order and need not take the advice."""

from pathlib import Path

from gpuplane.sandbox.agent import Agent
from gpuplane.sandbox.kubelet import Kubelet, pod

GPU = "nvidia.com/gpu"
SHARED = f"""
version: v1
flags: {{plugin: {{sharedDevicesAllocationPolicy: packed}}}}
sharing: {{timeSlicing: {{resources: [{{name: {GPU}, replicas: 4}}]}}}}
"""


async def gpus(kubelet: Kubelet, name: str, count: int) -> set[int]:
    """The GPUs that a pod gets which asks for so many devices."""
    running = await kubelet.run(pod(name, gpu=count))
    return {int(id.split("::")[0][-1]) for id in running.response().envs["NVIDIA_VISIBLE_DEVICES"].split(",")}


async def test_pods_get_gpus_that_are_joined_and_leave_those_that_are(tmp_path: Path) -> None:
    """A DGX-1: two lanes and one PCIe switch join 2-3 and 6-7, 0-4 and 1-5 have two lanes across the sockets."""
    async with (
        Kubelet(tmp_path) as kubelet,
        Agent("--machine", "dgx1-v100", "--kubelet-root", tmp_path, "--state-dir", tmp_path / "state"),
    ):
        await kubelet.until_capacity(GPU, 8, 8)

        assert await gpus(kubelet, "one", 2) == {2, 3}
        assert await gpus(kubelet, "two", 2) == {6, 7}
        assert await gpus(kubelet, "single", 1) == {0}
        assert await gpus(kubelet, "three", 2) == {1, 5}
        await kubelet.end("default/one")
        assert await gpus(kubelet, "beside", 1) == {4}
        assert await gpus(kubelet, "again", 2) == {2, 3}


async def test_packed_shares_come_from_one_gpu_after_the_other(tmp_path: Path) -> None:
    """And a request that one GPU can serve is not split."""
    config = tmp_path / "config.yaml"
    config.write_text(SHARED)
    paths = ("--config", config, "--kubelet-root", tmp_path, "--state-dir", tmp_path / "state")
    async with Kubelet(tmp_path) as kubelet, Agent("--machine", "workstation", *paths):
        await kubelet.until_capacity(GPU, 8, 8)

        assert [await gpus(kubelet, f"p{n}", count) for n, count in enumerate((2, 1, 2, 1, 2))] == [
            {0}, {0}, {1}, {0}, {1},
        ]  # fmt: skip
