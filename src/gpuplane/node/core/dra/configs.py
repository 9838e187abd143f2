"""Which of a claim's opaque configurations is in force for a device, and what it asks for.

An entry (`kubernetes/contracts/claimconfig.py`) is for a result whose request it names, "main" or "main/sub", or for
all where it names none. Entries of classes come before those of the claim, and the last one that fits is in force (pkg
dynamic-resource-allocation, ConfigForResult). An entry for another type of device fits no GPU; one that names the
request of a GPU all the same is a mistake.
"""

from collections.abc import Iterable, Mapping

from gpuplane.kubernetes.contracts.claimconfig import GpuConfig, Interval, config_problem, read_config
from gpuplane.node.model.claims import AllocatedClaim, AllocatedDevice, OpaqueConfig
from gpuplane.node.model.config import TimeSlice

MAX_CONFIGS = 64
"""Entries of an allocation: 32 of its classes and 32 of the claim (resource.k8s.io/v1, DeviceConfigMaxSize)."""

TIME_SLICE_BY_INTERVAL: Mapping[Interval, TimeSlice] = {
    "Default": "default",
    "Short": "short",
    "Medium": "medium",
    "Long": "long",
}


class InvalidConfig(Exception):
    """A claim's configuration cannot be followed: what is wrong, where, and what to do."""


def gpu_config(claim: AllocatedClaim, device: AllocatedDevice) -> GpuConfig | None:
    """The configuration of a GPU of a claim; None where nothing is configured. Raises InvalidConfig."""
    found = None
    if len(claim.configs) > MAX_CONFIGS:
        raise InvalidConfig(f"allocation.devices.config: has {len(claim.configs)} entries; {MAX_CONFIGS} are read")
    for where, config in _in_order(claim.configs):
        if not applies(config, device):
            continue
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


def applies(config: OpaqueConfig, device: AllocatedDevice) -> bool:
    """Whether an entry is for a result: also where it names the main request of a prioritized list."""
    return not config.requests or device.request in config.requests or device.main_request in config.requests


def _in_order(configs: Iterable[OpaqueConfig]) -> list[tuple[str, OpaqueConfig]]:
    """(where it stands, entry): those of classes first."""
    places = [(f"allocation.devices.config[{i}]", each) for i, each in enumerate(configs)]
    return sorted(places, key=lambda each: not each[1].is_from_class)
