"""UUIDs of a Node's own, where several Nodes have one machine file.

A UUID is that of one GPU in the world: dashboards, recording rules and claims tell the GPUs of a cluster apart by it.
"""

import uuid

from gpuplane.node.model.machine import Gpu, MachineFile

UUID_NAMESPACE = uuid.UUID("0c9a4f57-3d5e-4a2b-8b1e-6f0d9c2e7a44")


def uuid_of_node(described: str, node_name: str) -> str:
    """The UUID that a GPU or MIG device of a machine file has on a Node: the same each time."""
    prefix, dash, _ = described.partition("-")
    return f"{prefix}-{uuid.uuid5(UUID_NAMESPACE, f'{node_name}/{described}')}" if dash else described


def with_uuids_of_node(file: MachineFile, node_name: str) -> MachineFile:
    """The machine with other UUIDs of its GPUs and MIG devices: they follow from the Node's name and the file's."""

    def own(described: str) -> str:
        return uuid_of_node(described, node_name)

    def own_gpu(gpu: Gpu) -> Gpu:
        devices = tuple(each.but(uuid=own(each.uuid)) for each in gpu.mig_devices)
        return gpu.but(uuid=own(gpu.uuid), mig=gpu.mig and gpu.mig.but(devices=devices))

    load = tuple(each.but(mig=own(each.mig)) for each in file.load)
    return file.but(gpus=file.gpus and tuple(map(own_gpu, file.gpus)), load=load)
