"""A scene: the machine as its file describes it."""

from gpuplane.node.model.machine import Gpu
from gpuplane.sandbox.demo.stage import Scene, Stage


def show(stage: Stage) -> Scene:
    """Nothing runs yet."""
    driver = stage.described.driver
    models = {gpu.model: sum(each.model == gpu.model for each in stage.gpus) for gpu in stage.gpus}
    lines = {model: f"{count} × {_memory(stage.gpus, model)}" for model, count in models.items()}
    if driver:
        lines["driver"] = f"{driver.version}, CUDA {driver.cuda}"
    lines["topology"] = _topology(stage.gpus)
    return Scene(f"A machine, described in {stage.name}", lines, {"models": models})


def _memory(gpus: tuple[Gpu, ...], model: str) -> str:
    sizes = {gpu.memory_mib for gpu in gpus if gpu.model == model}
    return " or ".join(f"{size / 1024:.0f} GiB" for size in sorted(sizes))


def _topology(gpus: tuple[Gpu, ...]) -> str:
    nodes = {gpu.numa for gpu in gpus if gpu.numa is not None}
    numa = f"{len(nodes)} NUMA node{'s' if len(nodes) != 1 else ''}"
    if all(any(link.peer == "nvswitch" for link in gpu.links) for gpu in gpus):
        return f"{gpus[0].links[0].nvlink_count} NVLinks of each GPU to NVSwitches, {numa}"
    return f"{'NVLink' if any(gpu.links for gpu in gpus) else 'PCIe'} between GPUs, {numa}"
