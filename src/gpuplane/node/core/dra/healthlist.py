"""The health of the devices that claims may have, as kubelet shows it in the status of pods.

A device is unhealthy as `gpuplane inspect` says so: by its own faults, and those of its node. A GPU that only waits for
a verdict, is degraded or drained works: it is healthy, with a message. What is prepared and not seen any more is
unknown, unless its loss is a fault.
"""

from collections.abc import Iterator, Mapping
from typing import Literal

from gpuplane.base.text import clip, join
from gpuplane.base.value import Value
from gpuplane.node.core.dra.names import device_name, pool_name
from gpuplane.node.core.health.devicehealth import health_with_parents
from gpuplane.node.core.view import part_view
from gpuplane.node.model.claims import PreparedClaim
from gpuplane.node.model.health import DeviceHealth
from gpuplane.node.model.snapshot import Snapshot

HealthState = Literal["healthy", "unhealthy", "unknown"]
MAX_MESSAGE = 1024
"""Characters; kubelet cuts longer ones (pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go)."""


class ClaimDeviceHealth(Value):
    """The health of one device of a pool. `message`: why, for people; "" where there is nothing to say."""

    pool: str
    device: str
    state: HealthState
    message: str = ""


def claim_device_health(snapshot: Snapshot, node: str) -> tuple[ClaimDeviceHealth, ...] | None:
    """The health of each device of this node, sorted; None before the first look. `node`: the name of the node."""
    if snapshot.machine is None:
        return None
    return _claim_device_health.of(snapshot, health_with_parents(snapshot), snapshot.ledger.claims or {}, node)


@part_view
def _claim_device_health(
    found: tuple[DeviceHealth, ...], claims: Mapping[str, PreparedClaim], node: str
) -> tuple[ClaimDeviceHealth, ...]:
    told = {each.device: _of_device(each, name, node) for each in found if (name := device_name(each.device))}
    lost = {unit: each for unit, each in _lost_devices(claims) if unit not in told}
    return tuple(sorted((*told.values(), *lost.values()), key=lambda each: (each.pool, each.device)))


def _of_device(health: DeviceHealth, name: str, node: str) -> ClaimDeviceHealth:
    state: HealthState = "unhealthy" if health.state in ("unhealthy", "probing") else "healthy"
    return ClaimDeviceHealth(
        pool=pool_name(node, name),
        device=name,
        state=state,
        message=clip(join("; ", filter(None, (health.reason, health.advice))), MAX_MESSAGE),
    )


def _lost_devices(claims: Mapping[str, PreparedClaim]) -> Iterator[tuple[str, ClaimDeviceHealth]]:
    """The units of all prepared devices, each as one that is not seen."""
    for claim in claims.values():
        for each in claim.devices:
            yield (
                each.unit,
                ClaimDeviceHealth(
                    pool=each.allocated.pool,
                    device=each.allocated.device,
                    state="unknown",
                    message="the agent does not see this device",
                ),
            )
