"""GPUs as a look shows them, for tests of partitions."""

from collections.abc import Mapping

from gpuplane.model.machine import Gpu, Mig, MigDevice

A100_40, A100_80, H100, A30 = "0x20B010DE", "0x20B210DE", "0x233010DE", "0x20B710DE"
DISPLAY = "0x1FB010DE"  # a T1000, which has no MIG


def a_gpu(
    index: int, pci_id: str = H100, devices: Mapping[str, int] | None = None, *, mig: bool = True, board: str = ""
) -> Gpu:
    """A GPU. `devices`: profile → how many MIG devices, in MIG mode; None for a GPU outside it. `mig`: it has MIG."""
    names = [name for name, count in (devices or {}).items() for _ in range(count)]
    migs = tuple(MigDevice(uuid=f"MIG-{index}-{i}", profile=name, gpu_instance=i) for i, name in enumerate(names))
    return Gpu(
        index=index,
        uuid=f"GPU-{index}",
        model="NVIDIA GPU",
        pci_id=pci_id,
        pci_subsystem=board,
        mig=Mig(enabled=devices is not None, devices=migs) if mig else None,
    )
