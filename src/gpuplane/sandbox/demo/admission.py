"""A scene: a pod asks for GPUs. It runs until the configuration is edited."""

from gpuplane.sandbox.demo.stage import GPU, Scene, Stage, check
from gpuplane.sandbox.kubelet import pod


async def play(stage: Stage) -> Scene:
    """Raises SceneFailed."""
    train = pod("train", gpu=stage.train_count)
    running = await stage.kubelet.run(train)
    held = stage.kubelet.devices.held_by(train.uid, "main")[GPU]
    env = dict(running.response().envs)
    check(env == {"NVIDIA_VISIBLE_DEVICES": ",".join(held)}, f"the container got {env}")
    lines = {"admitted": train.key} | {f"its container gets {name}": value for name, value in env.items()}
    number = "one" if stage.train_count == 1 else "two"
    return Scene(f"A pod asks for {number}: {GPU}: {stage.train_count}", lines, {"env": env})
