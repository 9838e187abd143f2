"""The calls that change a GPU's partitions, and what it means where NVML refuses one.

Apart from those who make the calls: the agent needs these names, and not the binding of the library.
"""

from collections.abc import Mapping

from gpuplane.node.model.partitions import (
    ChangeProblem,
    CreateComputeInstance,
    CreateGpuInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    PartitionChange,
    SetMigMode,
)

CALL_OF_CHANGE: Mapping[type[PartitionChange], str] = {
    SetMigMode: "nvmlDeviceSetMigMode",
    CreateGpuInstance: "nvmlDeviceCreateGpuInstanceWithPlacement",
    DestroyGpuInstance: "nvmlGpuInstanceDestroy",
    CreateComputeInstance: "nvmlGpuInstanceCreateComputeInstance",
    DestroyComputeInstance: "nvmlComputeInstanceDestroy",
}
"""The call that makes each change. NVML has none for a reset."""

PROBLEM_OF_ERROR: Mapping[str, ChangeProblem] = {
    "IN_USE": "in-use",
    "INSUFFICIENT_RESOURCES": "insufficient-resources",
    "NOT_SUPPORTED": "not-supported",
    "FUNCTION_NOT_FOUND": "not-supported",
    "INVALID_ARGUMENT": "not-supported",
    "NO_PERMISSION": "no-permission",
    "NOT_FOUND": "gone",
    "GPU_IS_LOST": "gone",
}
"""NVML's errors → what they mean for a change; every other one may be over the next time."""
