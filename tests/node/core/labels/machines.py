"""Machines of few GPUs, for tables."""

from typing import Any

from gpuplane.node.model.machine import Driver, Gpu, Machine, Mig, MigAttributes, MigDevice

A100, H100, L40S, T4 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA L40S", "Tesla T4"
KINDS = {A100: (81920, "8.0", True), H100: (81559, "9.0", True), L40S: (46068, "8.9", False), T4: (15360, "7.5", False)}
ATTRIBUTES = {  # of an A100 of 80 GB: memory, multiprocessors, slices, copy engines, decoders
    "1g.10gb": (9856, 14, 1, 1, 1, 0),
    "1g.10gb+me": (9856, 14, 1, 1, 1, 1),
    "2g.20gb": (19968, 28, 2, 2, 2, 1),
    "3g.40gb": (40192, 42, 3, 3, 3, 2),
    "1c.3g.40gb": (40192, 14, 3, 1, 3, 2),
}


def gpu(index: int, model: str = A100, **fields: Any) -> Gpu:
    """A whole GPU of a known model."""
    memory, capability, is_mig_capable = KINDS.get(model, (24564, "8.9", False))
    found = Gpu(
        index=index,
        uuid=f"GPU-{index}",
        minor=index,
        model=model,
        memory_mib=memory,
        compute_capability=capability,
        pci=f"0000:{index:02x}:00.0",
        pci_class="0x030200",
        mig=Mig() if is_mig_capable else None,
    )
    return found.but(**fields)


def cut(index: int, *profiles: str, model: str = A100) -> Gpu:
    """A GPU in MIG mode with a device of each profile."""
    devices = []
    for slot, profile in enumerate(profiles):
        memory, multiprocessors, gpu_slices, compute_slices, copy_engines, decoders = ATTRIBUTES[profile]
        is_media = "+me" in profile
        attributes = MigAttributes(
            multiprocessors=multiprocessors,
            gpu_slices=gpu_slices,
            compute_slices=compute_slices,
            copy_engines=copy_engines,
            decoders=decoders,
            jpeg_engines=int(is_media),
            optical_flow_engines=int(is_media),
        )
        device = MigDevice(
            uuid=f"MIG-{index}-{slot}",
            profile=profile,
            gpu_instance=slot + 1,
            mig_index=slot,
            memory_mib=memory,
            attributes=attributes,
        )
        devices.append(device)
    return gpu(index, model, mig=Mig(enabled=True, devices=tuple(devices)))


def machine(*gpus: Gpu, **fields: Any) -> Machine:
    """A machine of these GPUs."""
    return Machine(driver=Driver(version="570.172.08", cuda="12.8"), gpus=gpus, product="DGXA100", **fields)
