"""A scene: a label of the Node partitions a GPU around a pod that holds a part of it.

It has an agent, a kubelet and an API server of its own.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from gpuplane.node.core.partitions.cards import profiles_of
from gpuplane.node.model.machine import Gpu
from gpuplane.sandbox.agent import Agent
from gpuplane.sandbox.apiserver.objects import parse_path
from gpuplane.sandbox.apiserver.server import ApiServer
from gpuplane.sandbox.demo.stage import GPU, Scene, SceneFailed, Stage
from gpuplane.sandbox.kubelet import Kubelet, pod

NODE_PATH = "/api/v1/nodes/demo"


class PartitionedGpu(msgspec.Struct, frozen=True):
    """What the scene needs of a GPU: its index, and the names of two profiles of its card."""

    index: int
    half: str  # "3g.40gb", of which it can have two
    small: str  # "1g.10gb"


def find_gpu(gpus: tuple[Gpu, ...]) -> PartitionedGpu | None:
    """A GPU that can be partitioned into halves, where all are whole; None where there is none."""
    for gpu in () if any(gpu.mig_enabled for gpu in gpus) else gpus:
        plain = {each.slices: each.name for each in reversed(profiles_of(gpu)) if not set("+-") & set(each.name)}
        small = next((each.name for each in profiles_of(gpu) if each.slices == 1), "")
        if 3 in plain and small:
            return PartitionedGpu(gpu.index, plain[3], small)
    return None


def _layouts(gpu: PartitionedGpu) -> str:
    entry = f"devices: [{gpu.index}], mig-enabled: true, mig-devices"
    return (
        "version: v1\nmig-configs:\n"
        f"  halves: [{{{entry}: {{{gpu.half}: 2}}}}]\n"
        f"  mixed: [{{{entry}: {{{gpu.half}: 1, {gpu.small}: 3}}}}]\n"
        f"  whole: [{{devices: [{gpu.index}], mig-enabled: false}}]\n"
    )


async def play(stage: Stage) -> Scene:
    """Raises SceneFailed."""
    gpu = find_gpu(stage.gpus)
    assert gpu is not None  # else the machine does not have this scene
    try:
        lines = await _partition(stage.root / "mig", stage.machine, gpu, stage.count)
    except TimeoutError as error:
        raise SceneFailed(f"the GPU was not partitioned: {error}") from None
    return Scene("A label of the Node partitions a GPU around a pod", lines, {"gpu": gpu.index})


async def _partition(root: Path, machine: Path, gpu: PartitionedGpu, whole: int) -> Mapping[str, str]:
    """What happened, as lines for people. `whole`: GPUs of the machine that are whole. Raises TimeoutError."""
    root.mkdir()
    half, small = (f"nvidia.com/mig-{name}" for name in (gpu.half, gpu.small))
    (root / "layouts.yaml").write_text(_layouts(gpu))
    (root / "config.yaml").write_text(
        f"version: v1\nflags: {{migStrategy: mixed}}\nmig: {{label: true, configFile: {root}/layouts.yaml}}\n"
    )
    async with ApiServer() as server, Kubelet(root / "k") as kubelet:
        (root / "kubeconfig").write_text(server.kubeconfig())
        _label(server, "halves")
        agent = Agent(
            "--machine", machine, "--config", root / "config.yaml", "--kubelet-root", root / "k", "--state-dir",
            root / "s", "--node-name", "demo", "--kubeconfig", root / "kubeconfig",
        )  # fmt: skip
        async with agent:
            await kubelet.until_capacity(half, 2, 2)
            await kubelet.until_capacity(GPU, whole - 1, whole - 1)
            running = await kubelet.run(pod("train", namespace="default", **{half: 1}))
            [held] = kubelet.devices.held_by(running.pod.uid, "main")[half]
            _label(server, "mixed")
            await kubelet.until_capacity(small, 3, 3)
            await kubelet.until_capacity(half, 1, 1)
            assert kubelet.device_health()[half][held] == "Healthy"
            _label(server, "whole")
            await server.until(lambda: "default/train" in _condition(server))
            said = _condition(server)
            await kubelet.end("default/train")
            await kubelet.until_capacity(GPU, whole, whole, deadline=60)
    return {
        "nvidia.com/mig.config=halves": f"{half}: 2 of GPU {gpu.index}, and {GPU}: {whole - 1}; a pod takes one",
        "nvidia.com/mig.config=mixed": f"around the pod: {half}: 1, {small}: 3",
        "nvidia.com/mig.config=whole": f"the Node says: {said}",
        "and when the pod has ended": f"{GPU}: {whole}",
    }


def _label(server: ApiServer, name: str) -> None:
    metadata = {"name": "demo", "labels": {"nvidia.com/mig.config": name}}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
    path = parse_path(NODE_PATH)
    status = server.objects.get(path).get("status") if server.objects.has(path) else None
    server.put(NODE_PATH, {**node, "status": status} if status else node)


def _condition(server: ApiServer) -> str:
    """What the Node's condition about its MIG layout says; "" where there is none."""
    conditions = server.objects.get(parse_path(NODE_PATH)).get("status", {}).get("conditions", ())
    return next((each["message"] for each in conditions if each["type"] == "gpuplane.io/MIGReady"), "")
