"""A scene: the configuration is edited while pods run, and the GPUs get another name."""

from gpuplane.sandbox.demo.stage import GPU, REST, TRAIN, Scene, Stage, replace_file


async def play(stage: Stage) -> Scene:
    """The pods end only after kubelet has listed them since its restart: else they would be held on for half a
    minute, because a kubelet that has just started may not have heard of them. Raises SceneFailed.
    """
    name, lists = "nvidia.com/trainer", stage.kubelet.manager.list_count
    replace_file(stage.config, f'version: v1\nresources: {{gpus: [{{pattern: "*", name: {name}}}]}}\n'.encode())
    await stage.until_shown(name, stage.count, 0)
    await stage.until_shown(GPU, 0, 0)
    withheld = await stage.agent.until_says(TRAIN, name)
    await stage.until_listed(lists)
    free = stage.count - stage.train_count
    await stage.kubelet.end(REST)
    await stage.until_shown(name, stage.count, free)
    await stage.kubelet.end(TRAIN)
    await stage.until_shown(name, stage.count, stage.count)
    lines = {
        "at once": f"{name}: {stage.count}, allocatable 0; {GPU}: 0",
        "withheld": withheld.partition(": ")[2],
        "and as the pods end": f"{name}: {stage.count}, allocatable {free}, then {stage.count}",
    }
    return Scene("The configuration is edited: the GPUs get another name", lines, {"name": name})
