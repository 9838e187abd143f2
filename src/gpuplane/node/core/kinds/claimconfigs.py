"""Which of a claim's opaque configurations are for a device.

An entry is for a result whose request it names, "main" or "main/sub", or for all where it names none. Entries of
classes come before those of the claim, and the last one that fits is in force (pkg dynamic-resource-allocation,
ConfigForResult).
"""

from collections.abc import Iterator

from gpuplane.node.model.claims import AllocatedClaim, AllocatedDevice, OpaqueConfig

MAX_CONFIGS = 64
"""Entries of an allocation: 32 of its classes and 32 of the claim (resource.k8s.io/v1, DeviceConfigMaxSize)."""


class InvalidConfig(Exception):
    """A claim's configuration cannot be followed: what is wrong, where, and what to do."""


def configs_for_device(claim: AllocatedClaim, device: AllocatedDevice) -> Iterator[tuple[str, OpaqueConfig]]:
    """(where it stands, entry) of each entry for a device, in order. Raises InvalidConfig where there are too many."""
    if len(claim.configs) > MAX_CONFIGS:
        raise InvalidConfig(f"allocation.devices.config: has {len(claim.configs)} entries; {MAX_CONFIGS} are read")
    places = [(f"allocation.devices.config[{i}]", each) for i, each in enumerate(claim.configs)]
    in_order = sorted(places, key=lambda each: not each[1].is_from_class)
    return (each for each in in_order if _applies(each[1], device))


def _applies(config: OpaqueConfig, device: AllocatedDevice) -> bool:
    """Whether an entry is for a result: also where it names the main request of a prioritized list."""
    return not config.requests or device.request in config.requests or device.main_request in config.requests
