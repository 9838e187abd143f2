"""A scene: kubelet restarts, and a pod keeps its devices."""

import time

from gpuplane.sandbox.demo.stage import GPU, TRAIN, Scene, Stage, check
from gpuplane.sandbox.kubelet import Kubelet


async def play(stage: Stage) -> Scene:
    """Raises SceneFailed."""
    held = stage.kubelet.devices.held_by(stage.kubelet.pods[TRAIN].pod.uid, "main")[GPU]
    before, began = _count_allocations(stage.kubelet), time.monotonic()
    await stage.kubelet.restart()
    await stage.until_shown(GPU, stage.count, stage.count)
    took = time.monotonic() - began
    again = _count_allocations(stage.kubelet) - before
    check(again == 0, f"Allocate was called {again} times for pods that ran")
    health = stage.kubelet.pod_health(TRAIN)["main"][GPU]
    check(health == [(id, "Healthy") for id in held], f"the pod's devices are {health}")
    lines = {
        "registered again": f"{took:.2f} s later, by the same process",
        f"pod {TRAIN}": "keeps running with its GPUs",
    }
    return Scene("Kubelet restarts", lines, {"seconds": took})


def _count_allocations(kubelet: Kubelet) -> int:
    return sum(call.method == "Allocate" for call in kubelet.trace)
