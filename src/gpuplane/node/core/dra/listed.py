"""The GPUs of the devices that kubelet lists for claims.

Kubelet names a driver, a pool and a device. The ledger knows what it promised under these names; for a promise that was
lost the name of the device tells the GPU. Devices with admin access are not held: they are beside others.
"""

from gpuplane.node.core.dra.names import DNS_LABEL, device_name
from gpuplane.node.model.config import DraSettings
from gpuplane.node.model.snapshot import Snapshot

UUID_PREFIX, NAME_PREFIX = "GPU-", "gpu-"


def held_unit(snapshot: Snapshot, claim: str, driver: str, pool: str, device: str) -> str:
    """The UUID of the GPU that a claim ("namespace/name") holds; "" for none: admin access, another driver's device, or
    one that this node does not have."""
    for promised in (snapshot.ledger.claims or {}).values():
        if (str(promised.claim), promised.driver) != (claim, driver):
            continue
        for each in promised.devices:
            if (each.allocated.pool, each.allocated.device) == (pool, device):
                return "" if each.allocated.is_admin else each.unit
    if driver != _driver(snapshot) or not pool.endswith(f"/{device}") or not DNS_LABEL.fullmatch(device):
        return ""
    if (
        snapshot.machine is None or snapshot.machine.gpus is None
    ):  # a UUID of NVIDIA is in lower case but for its prefix
        return UUID_PREFIX + device.removeprefix(NAME_PREFIX) if device.startswith(NAME_PREFIX) else ""
    return next((gpu.uuid for gpu in snapshot.gpus if device_name(gpu.uuid) == device), "")


def naming(snapshot: Snapshot) -> object:
    """What may change an answer of `held_unit` for a device that is listed already."""
    claims = (snapshot.ledger.claims or {}).values()
    admin = (claim.claim.uid for claim in claims if any(each.allocated.is_admin for each in claim.devices))
    gpus = snapshot.machine.gpus if snapshot.machine is not None else None
    uuids = None if gpus is None else tuple(each.uuid for each in gpus)
    return _driver(snapshot), uuids, frozenset(admin)


def _driver(snapshot: Snapshot) -> str:
    """The name of our driver; while there is no configuration, the one that it has by default."""
    settings = snapshot.config.settings
    return (settings.dra if settings is not None else DraSettings()).driver
