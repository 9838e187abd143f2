"""Shares of a unit: the device ids by which kubelet knows them, and how many there may be."""

MAX_MEMORY_SHARES_PER_NODE = 4096
"""The most shares of memory on a node. Kubelet keeps each id in several maps and sends them all for each container."""

MAX_SHARES_PER_NODE = 32768
"""The most shares on a node. A list to kubelet has some 70 bytes for each, and gRPC takes messages of 4 MiB."""

MAX_MPS_CLIENTS, MAX_MPS_CLIENTS_BEFORE_VOLTA, VOLTA_CAPABILITY = 48, 16, 7
"""Clients of an MPS server, and the compute capability from which on there may be more (NVIDIA's MPS documentation)."""

MIB_PER_MEMORY_UNIT = {"MiB": 1, "GiB": 1024}
"""MiB in each unit of memory."""


def share_ids(unit: str, count: int) -> list[str]:
    """The device ids of a unit's shares."""
    return [f"{unit}::{n}" for n in range(count)]


def is_share(device_id: str) -> bool:
    """Whether a device id is that of a share."""
    return "::" in device_id


def unit_of(device_id: str) -> str:
    """The id of the unit that a device id means, or of which it is a share."""
    return device_id.split("::", 1)[0]
