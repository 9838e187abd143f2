"""A scene: the configuration is edited, and the runtime gets GPUs as CDI devices."""

from pathlib import Path

from gpuplane.sandbox.demo.stage import BOTH, GPU, KVM, Scene, Stage, check, pod_with, replace_file, shorten_uuid
from gpuplane.sandbox.kubelet import pod
from gpuplane.sandbox.kubelet.runtime import read_registry


async def play(stage: Stage) -> Scene:
    """The specification is on disk when kubelet learns of the devices, and the runtime resolves them by it.

    Raises SceneFailed.
    """
    lists = stage.kubelet.manager.list_count
    replace_file(stage.config, b"version: v1\nflags: {plugin: {deviceListStrategy: [cdi-cri]}}\n")
    await stage.until_listed(lists)
    await stage.kubelet.end(BOTH)
    await stage.until_shown(GPU, stage.count, stage.count)
    train = await stage.kubelet.run(pod("train", gpu=stage.train_count))
    made = await stage.until_created(train)
    held = stage.kubelet.devices.held_by(train.pod.uid, "main")[GPU]
    own = {f"/dev/nvidia{gpu.minor}" for gpu in stage.whole_gpus if gpu.uuid in held}
    others = {f"/dev/nvidia{gpu.minor}" for gpu in stage.gpus} - own
    nodes = {node.path: f"{node.major}:{node.minor}" for node in made.device_nodes}
    check(own <= nodes.keys() and not others & nodes.keys(), f"the container of {held} has the nodes {nodes}")
    files = {
        defined.file.path: defined.file for defined in read_registry([stage.root / "cdi"]).devices.values()
    }.values()
    (file,) = (each for each in files if each.spec is not None and each.spec.kind.endswith("/gpu"))
    assert file.spec is not None  # it defines devices
    virtual = await stage.kubelet.run(pod_with("virtual", KVM, 1))
    (by_cdi,) = (each.name for each in virtual.response().cdi_devices)
    named = [shorten_uuid(each.name.partition("=")[2]) for each in train.response().cdi_devices]
    lines = {
        "on disk": f"{Path(file.path).name}: {len(file.spec.devices)} devices of {file.spec.kind}",
        "a pod's container gets": ", ".join(named),
        "the runtime gives it": f"{', '.join(f'{path} ({nodes[path]})' for path in sorted(own))} "
        f"and {len(nodes) - len(own)} other nodes",
        "and by CDI, too": f"{by_cdi}, for a pod that asks for {KVM}",
        "driver files and variables": f"{len(made.mounts)} files, and {', '.join(made.env)}",
    }
    data = {"file": file.path, "nodes": nodes, "mounts": len(made.mounts), "env": made.env}
    return Scene("The configuration is edited: GPUs are CDI devices", lines, data)
