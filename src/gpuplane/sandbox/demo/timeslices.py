"""A scene: the configuration is edited while pods hold memory of GPUs, and GPUs have time slices."""

from gpuplane.sandbox.demo.stage import BOTH, GPU, Scene, Stage, check, replace_file, shorten_uuid
from gpuplane.sandbox.kubelet import pod

REPLICAS = 3


async def play(stage: Stage) -> Scene:
    """GPUs of which pods hold memory wait for them, the others are there at once. Raises SceneFailed."""
    sharing = f"sharing: {{timeSlicing: {{resources: [{{name: gpu, replicas: {REPLICAS}, distinctGPUs: true}}]}}}}"
    lists = stage.kubelet.manager.list_count
    replace_file(stage.config, f"version: v1\n{sharing}\n".encode())
    sharing_pods = list(stage.kubelet.pods.values())
    busy = {running.response().envs["NVIDIA_VISIBLE_DEVICES"] for running in sharing_pods}
    free = stage.count - len(busy)
    await stage.until_shown(GPU, REPLICAS * stage.count, REPLICAS * free)
    await stage.until_listed(lists)
    for running in sharing_pods:
        await stage.kubelet.end(running.pod.key)
    await stage.until_shown(GPU, REPLICAS * stage.count, REPLICAS * stage.count)
    await stage.kubelet.run(pod("both", gpu=2))
    both = stage.kubelet.pods[BOTH].response().envs["NVIDIA_VISIBLE_DEVICES"]
    check(len(set(both.split(","))) == 2, f"a pod asked for two distinct shares and got {both}")
    lines = {
        "at once": (
            f"{GPU}: {REPLICAS * stage.count}, allocatable {REPLICAS * free}: pods still hold memory of the other GPUs"
        ),
        "and as they end": f"allocatable {REPLICAS * stage.count}",
        "a pod asks for two": f"distinctGPUs: true gives it {' and '.join(map(shorten_uuid, both.split(',')))}",
    }
    return Scene("The configuration is edited: time slices instead", lines, {"distinct": both.split(",")})
