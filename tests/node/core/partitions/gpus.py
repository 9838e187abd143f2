"""GPUs as a look shows them, for tests of partitions."""

from collections.abc import Mapping

from gpuplane.node.model.machine import Gpu, Mig, MigDevice
from gpuplane.node.model.partitions import ComputeInstance, GpuInstance, GpuInstanceProfile

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


SLICES = {"1g.10gb": (19, 1, 1, 7), "1g.10gb+me": (20, 1, 1, 1), "1g.20gb": (15, 1, 2, 4), "2g.20gb": (14, 2, 2, 3),
          "3g.40gb": (9, 3, 4, 2), "4g.40gb": (5, 4, 4, 1), "7g.80gb": (0, 7, 8, 1)}  # fmt: skip
"""Profiles of an A100 80GB: id, compute slices, memory slices, most (NVIDIA's MIG guide)."""
STARTS = {"1g.10gb": range(7), "1g.10gb+me": range(7), "1g.20gb": (0, 2, 4, 6), "2g.20gb": (0, 2, 4), "3g.40gb": (0, 4),
          "4g.40gb": (0,), "7g.80gb": (0,)}  # fmt: skip
PROFILES = tuple(
    GpuInstanceProfile(
        id=number, name=name, slices=slices, size=size, starts=tuple(STARTS[name]), count=count, memory_mib=9856 * size
    )
    for name, (number, slices, size, count) in SLICES.items()
)


def an_a100(index: int, *instances: tuple[str, int, tuple[int, ...]], enabled: bool = True) -> Gpu:
    """An A100 80GB with GPU instances: profile, first memory slice, slices of its compute instances."""
    found = tuple(
        GpuInstance(
            id=i + 1,
            profile=SLICES[name][0],
            start=start,
            size=SLICES[name][2],
            compute_instances=tuple(ComputeInstance(id=j, slices=each) for j, each in enumerate(sizes)),
        )
        for i, (name, start, sizes) in enumerate(instances)
    )
    devices: dict[str, int] = {}
    for name, _, sizes in instances:
        for size in sizes:
            each = name if size == SLICES[name][1] else f"{size}c.{name}"
            devices[each] = devices.get(each, 0) + 1
    gpu = a_gpu(index, A100_80, devices if enabled else None)
    assert gpu.mig is not None
    return gpu.but(mig=gpu.mig.but(profiles=PROFILES, instances=found))
