"""A scene: the agent stops, and a pod's container restarts."""

from gpuplane.sandbox.demo.stage import Scene, Stage, check


async def play(stage: Stage) -> Scene:
    """What containers need to restart stays. Raises SceneFailed."""
    status = await stage.agent.stop()
    check(status == 0, f"the agent ended with status {status}")
    left = sorted(path.name for path in (stage.root / "kubelet/device-plugins").glob("*nvidia*"))
    check(not left, f"the agent did not remove {left}")
    running = next(iter(stage.kubelet.pods.values()))
    before = running.created["main"]
    stage.kubelet.crash(running.pod.key)
    made = await stage.until_created(running)
    check(made == before, f"the container got {before}, and then {made}")
    lines = {
        "ended": "with status 0, its sockets removed",
        "a container restarts": "with the same devices: no request to the agent is needed",
    }
    return Scene("The agent stops", lines, {"status": status})
