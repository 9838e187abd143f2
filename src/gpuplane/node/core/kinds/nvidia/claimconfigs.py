"""What a claim's opaque configuration asks for a GPU (`kubernetes/contracts/claimconfig.py`).

An entry for another type of device fits no GPU; one that names the request of a GPU all the same is a mistake.
"""

from collections.abc import Mapping

from gpuplane.kubernetes.contracts.claimconfig import GpuConfig, Interval, config_problem, read_config
from gpuplane.node.core.kinds.claimconfigs import InvalidConfig, configs_for_device
from gpuplane.node.model.claims import AllocatedClaim, AllocatedDevice, PreparedDevice
from gpuplane.node.model.config import TimeSlice

TIME_SLICE_BY_INTERVAL: Mapping[Interval, TimeSlice] = {
    "Default": "default",
    "Short": "short",
    "Medium": "medium",
    "Long": "long",
}


def configure_gpu(device: PreparedDevice, claim: AllocatedClaim) -> PreparedDevice:
    """The GPU with the time slices that the claim asks for; admin access changes nothing. Raises InvalidConfig."""
    length = time_slice(gpu_config(claim, device.allocated))
    return device if length is None or device.allocated.is_admin else device.but(time_slice=length)


def gpu_config(claim: AllocatedClaim, device: AllocatedDevice) -> GpuConfig | None:
    """The configuration of a GPU of a claim; None where nothing is configured. Raises InvalidConfig."""
    found = None
    for where, config in configs_for_device(claim, device):
        read = read_config(config.parameters)
        if read.other_kind:
            if config.requests:
                raise InvalidConfig(
                    f"{where}: {read.other_kind} is not for a full GPU, which request {device.request} got"
                )
            continue
        if problem := config_problem(config.parameters, where):
            raise InvalidConfig(problem)
        found = read.config
    return found


def time_slice(config: GpuConfig | None) -> TimeSlice | None:
    """The length of time slices that a configuration asks for; None for none."""
    if config is None or config.sharing is None or config.sharing.time_slicing_config is None:
        return None
    interval = config.sharing.time_slicing_config.interval
    return None if interval is None else TIME_SLICE_BY_INTERVAL[interval]
