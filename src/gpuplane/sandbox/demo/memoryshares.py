"""A scene: GPUs are shared by their memory. Its pods run until the next edit of the configuration."""

from gpuplane.sandbox.demo.stage import MEMORY, Scene, Stage, check, pod_with, replace_file, shorten_uuid


async def play(stage: Stage) -> Scene:
    """Two pods that do not fit on one GPU, and one that takes little: it goes where less is left.

    Raises SceneFailed.
    """
    replace_file(stage.config, b"version: v1\nsharing: {memory: {resources: [{name: gpu}]}}\n")
    room = {gpu.uuid: gpu.memory_mib // 1024 for gpu in stage.whole_gpus}
    total, much = sum(room.values()), 6 * min(room.values()) // 10
    await stage.until_shown(MEMORY, total, total)
    pods = [pod_with(name, MEMORY, n) for name, n in (("first", much), ("second", much), ("little", 1))]
    said = [(await stage.kubelet.run(each)).response().envs for each in pods]
    placed = [env["NVIDIA_VISIBLE_DEVICES"] for env in said]
    limits = [env["GPUPLANE_MEMORY_MIB"] for env in said]
    check(limits == [str(1024 * much)] * 2 + ["1024"], f"the containers got the memory limits {limits}")
    for uuid, env in zip(placed, said, strict=True):
        room[uuid] -= int(env["GPUPLANE_MEMORY_MIB"]) // 1024
    check(len(set(placed)) > 1 and min(room.values()) >= 0, f"{placed} have {room} left")
    large = pod_with("large", MEMORY, max(room.values()) + 1)
    check(
        not stage.kubelet.insufficient_resources(large),
        (
            "the scheduler would not send the pod to the node; the demo expects that it sends the pod, although "
            "no GPU has room"
        ),
    )
    reason = await stage.until_rejected(large)
    lines = {
        "the node shows": f"{MEMORY}: {total}, one for each GiB",
        "one GPU each": ", ".join(
            f"{each.name} on {shorten_uuid(uuid)}" for each, uuid in zip(pods, placed, strict=True)
        ),
        "told": f"GPUPLANE_MEMORY_MIB={limits[0]}, and the variables of gpushare",
        "a pod asks for more than any GPU has free": reason.partition(f"{MEMORY}: ")[2].partition(", and")[0],
    }
    return Scene("GPUs are shared by their memory", lines, {"placed": placed, "reason": reason})
