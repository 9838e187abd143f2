"""A scene: a GPU that the first pod does not hold falls off the bus, in a copy of the machine file."""

from gpuplane.sandbox.demo.stage import GPU, TRAIN, Scene, Stage, replace_file


async def play(stage: Stage) -> Scene:
    """Raises SceneFailed."""
    held = stage.kubelet.devices.held_by(stage.kubelet.pods[TRAIN].pod.uid, "main")[GPU]
    victim = next(gpu for gpu in stage.whole_gpus if gpu.uuid not in held)
    original = stage.machine.read_bytes()
    failure = f"\nfailures: [{{effect: error, gpu: {victim.index}, error: GPU_IS_LOST}}]\n"
    replace_file(stage.machine, original + failure.encode())
    await stage.until_shown(GPU, stage.count, stage.count - 1)
    replace_file(stage.machine, original)
    await stage.until_shown(GPU, stage.count, stage.count)
    lines = {
        "lost": f"GPU {victim.index}, {victim.uuid}",
        "the node shows": f"{GPU}: {stage.count}, allocatable {stage.count - 1}; the others are served",
        "and when it is back": f"allocatable {stage.count}, without a restart",
    }
    return Scene("A GPU falls off the bus, and comes back", lines, {"gpu": victim.uuid})
