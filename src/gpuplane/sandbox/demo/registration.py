"""A scene: the agent starts and registers with kubelet."""

import time

from gpuplane.sandbox.demo.stage import GPU, Scene, Stage


async def play(stage: Stage) -> Scene:
    """Raises SceneFailed."""
    began = time.monotonic()
    await stage.until_shown(GPU, stage.count, stage.count)
    took = time.monotonic() - began
    socket = stage.kubelet.manager.endpoints[GPU].socket.name
    lines = {
        "registered": f"{GPU} at socket {socket}, {took:.2f} s after the start of the process",
        "the node shows": f"{GPU}: {stage.count}",
    }
    return Scene("The agent starts and registers with kubelet", lines, {"seconds": took, "capacity": stage.count})
