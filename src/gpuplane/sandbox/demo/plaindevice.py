"""A scene: a device that is no GPU."""

from gpuplane.sandbox.demo.stage import KVM, Scene, Stage, check, pod_with, replace_file


async def play(stage: Stage) -> Scene:
    """A device node is written into the copy of the machine file, goes missing, and comes back. Raises SceneFailed."""
    name, node = KVM, "/dev/kvm"
    device = f"\ndevices: [{{id: kvm, kind: device-node, device_nodes: [{node}]%s}}]\n"
    missing = f", faults: [{{code: device-node-missing, message: {node} does not exist}}]"
    original = stage.machine.read_bytes()
    replace_file(stage.machine, original + (device % "").encode())
    await stage.until_shown(name, 1, 1)
    running = await stage.kubelet.run(pod_with("virtual", name, 1))
    nodes = [each.container_path for each in running.response().devices]
    check(nodes == [node], f"the container got {nodes}")
    await stage.kubelet.end(running.pod.key)
    replace_file(stage.machine, original + (device % missing).encode())
    await stage.until_shown(name, 1, 0)
    replace_file(stage.machine, original + (device % "").encode())
    await stage.until_shown(name, 1, 1)
    lines = {
        "the node shows": f"{name}: 1",
        f"the container of pod {running.pod.key} gets": node,
        f"while {node} does not exist": "allocatable 0, then 1 again",
    }
    return Scene("A device that is no GPU", lines, {"resource": name, "nodes": nodes})
