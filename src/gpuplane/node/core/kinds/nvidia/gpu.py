"""NVIDIA's GPUs as a row of the table of kinds."""

from collections.abc import Sequence

from gpuplane.node.core.kinds.kind import Kind
from gpuplane.node.core.kinds.nvidia.dra import GPU_IN_DRA
from gpuplane.node.core.kinds.nvidia.faults import NVIDIA_FAULTS
from gpuplane.node.core.kinds.nvidia.naming import assign_resource_names
from gpuplane.node.core.kinds.unitresource import UnitResource
from gpuplane.node.model.config import Settings
from gpuplane.node.model.health import NODE_RECORD_KEY
from gpuplane.node.model.machine import NVIDIA_GPU, DeviceList, Machine

GPU_PREFIX, MIG_PREFIX = "GPU-", "MIG-"
"""How the UUIDs of GPUs and MIG devices begin."""


def is_mig_uuid(id: str) -> bool:
    """Whether an id is that of a MIG device."""
    return id.startswith(MIG_PREFIX)


def gpu_uuid_in_mig_uuid(mig_uuid: str) -> str:
    """The GPU in a MIG device's UUID; "" where it is not in it. Drivers before 470 wrote MIG-GPU-<uuid>/<gi>/<ci>."""
    rest = mig_uuid.removeprefix(MIG_PREFIX)
    return rest.split("/", 1)[0] if is_mig_uuid(mig_uuid) and rest.startswith(GPU_PREFIX) else ""


def _unit_resources(machine: Machine | None, _: DeviceList, settings: Settings) -> Sequence[UnitResource]:
    return assign_resource_names(machine, settings) if machine is not None else []


def _noun(id: str, index: str) -> str:
    return "MIG device" if ":" in index or is_mig_uuid(id) else "GPU"


GPU = Kind(
    NVIDIA_GPU,
    (GPU_PREFIX, MIG_PREFIX),
    NVIDIA_FAULTS,
    _unit_resources,
    container_edits=None,
    record_key=NODE_RECORD_KEY,
    dra=GPU_IN_DRA,
    noun=_noun,
    recovers_by_probe=True,
)
