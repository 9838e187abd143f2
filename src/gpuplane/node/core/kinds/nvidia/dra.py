"""Whole GPUs in Dynamic Resource Allocation.

A device is named after the GPU's UUID: a reboot may give the GPU another index and minor number, and a replaced card is
another device. A GPU in MIG mode cannot be given out as a whole.
"""

from collections import Counter
from collections.abc import Sequence

from gpuplane.node.core.kinds.attributes import NO_CAPACITY
from gpuplane.node.core.kinds.dra import DNS_LABEL, DraDevice, KindInDra
from gpuplane.node.core.kinds.nvidia.attributes import absent_gpu_attributes, gpu_attributes, gpu_capacity
from gpuplane.node.core.kinds.nvidia.claimconfigs import configure_gpu
from gpuplane.node.core.kinds.nvidia.xids import xid_number
from gpuplane.node.model.machine import DeviceList, Driver, Gpu, Machine
from gpuplane.node.model.reasons import Reason

UUID_PREFIX, NAME_PREFIX = "GPU-", "gpu-"


def gpu_device_name(uuid: str) -> str:
    """A GPU's name in its pool: "gpu-8d0e…"; "" where its UUID makes no name."""
    name = uuid.lower()
    return name if uuid.startswith(UUID_PREFIX) and DNS_LABEL.fullmatch(name) else ""


def _devices(machine: Machine | None, _: DeviceList) -> Sequence[DraDevice] | None:
    if machine is None or machine.gpus is None:
        return None
    count = Counter(gpu.uuid for gpu in machine.gpus)
    return tuple(_device(gpu, machine.driver, is_duplicate=count[gpu.uuid] > 1) for gpu in machine.gpus)


def _device(gpu: Gpu, driver: Driver | None, *, is_duplicate: bool) -> DraDevice:
    in_mig_mode = Reason(kind="problem", text=f"GPU {gpu.uuid} is in MIG mode", code="mig-mode")
    duplicate = Reason(kind="problem", text="another GPU has the same UUID", code="duplicate-uuid")
    return DraDevice(
        unit=gpu.uuid,
        name=gpu_device_name(gpu.uuid),
        attributes=gpu_attributes(driver, gpu),
        capacity=gpu_capacity(gpu),
        parts=tuple(each.uuid for each in gpu.mig_devices),
        not_claimable=in_mig_mode if gpu.mig_enabled else None,
        problem=duplicate if is_duplicate else None,
    )


def _absent_device(uuid: str) -> DraDevice:
    return DraDevice(uuid, gpu_device_name(uuid), absent_gpu_attributes(uuid), NO_CAPACITY)


def _fault_taint(code: str) -> tuple[str, str] | None:
    """NVIDIA's, where its driver has one for the cause (dra-driver-nvidia-gpu 0.5, device_health.go)."""
    if (number := xid_number(code)) is not None:
        return "xid", f"{number}"
    return ("gpu-lost", "") if code == "gpu-lost" else None


def _unit_by_name(name: str) -> str:
    """A UUID of NVIDIA is in lower case but for its prefix."""
    return f"{UUID_PREFIX}{name.removeprefix(NAME_PREFIX)}"


GPU_IN_DRA = KindInDra(
    NAME_PREFIX,
    gpu_device_name,
    _unit_by_name,
    _devices,
    _absent_device,
    configure_gpu,
    fault_taint=_fault_taint,
    is_awaited=True,
)
