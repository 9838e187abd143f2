"""A scene: one pod takes all the other GPUs, and another comes when none is free."""

from gpuplane.sandbox.demo.stage import GPU, Scene, Stage, check
from gpuplane.sandbox.kubelet import pod


async def play(stage: Stage) -> Scene:
    """Raises SceneFailed."""
    await stage.kubelet.run(pod("rest", gpu=stage.count - stage.train_count))
    late = pod("late", gpu=1)
    said = stage.kubelet.insufficient_resources(late)
    check(said == [f"Insufficient {GPU}"], f"the scheduler would say {said}")
    reason = await stage.until_rejected(late)
    lines = {"the scheduler would say": ", ".join(said), "kubelet would say, if the scheduler sent the pod": reason}
    return Scene("Another pod comes when no GPU is free", lines, {"reason": reason})
