"""The units of the devices that kubelet lists for claims.

Kubelet names a driver, a pool and a device. The ledger knows what it promised under these names; for a promise that was
lost the name of the device tells the unit. Devices with admin access are not held: they are beside others.
"""

from gpuplane.node.core.dra.devices import dra_devices
from gpuplane.node.core.kinds.dra import DNS_LABEL
from gpuplane.node.core.kinds.table import KINDS
from gpuplane.node.model.config import DraSettings
from gpuplane.node.model.snapshot import Snapshot


def held_unit(snapshot: Snapshot, claim: str, driver: str, pool: str, device: str) -> str:
    """The unit that a claim ("namespace/name") holds; "" for none: admin access, another driver's device, or one that
    this node does not have."""
    for promised in (snapshot.ledger.claims or {}).values():
        if (str(promised.claim), promised.driver) != (claim, driver):
            continue
        for each in promised.devices:
            if (each.allocated.pool, each.allocated.device) == (pool, device):
                return "" if each.allocated.is_admin else each.unit
    if driver != _driver(snapshot) or not pool.endswith(f"/{device}") or not DNS_LABEL.fullmatch(device):
        return ""
    devices = dra_devices(snapshot)
    if (found := devices.by_name.get(device)) is not None:
        return found.unit
    return "" if devices.is_counted(device) else _unit_by_name(device)


def _unit_by_name(device: str) -> str:
    """The unit of a device of a kind that has not been counted; "" where no kind has such names."""
    kinds = (kind.dra for kind in KINDS.values() if device.startswith(kind.dra.name_prefix))
    return next((dra.unit_by_name(device) for dra in kinds), "")


def naming(snapshot: Snapshot) -> object:
    """What may change an answer of `held_unit` for a device that is listed already."""
    claims = (snapshot.ledger.claims or {}).values()
    admin = (claim.claim.uid for claim in claims if any(each.allocated.is_admin for each in claim.devices))
    devices = dra_devices(snapshot)
    units = tuple((each.name, each.unit) for each in devices.by_name.values())
    return _driver(snapshot), units, devices.uncounted_kinds, frozenset(admin)


def _driver(snapshot: Snapshot) -> str:
    """The name of our driver; while there is no configuration, the one that it has by default."""
    settings = snapshot.config.settings
    return (settings.dra if settings is not None else DraSettings()).driver
