"""The offer: what this node advertises, as a function of the snapshot.

Machine and settings say which units there are and under which names; health and what containers hold say which of
them may be given out now. A unit that may not is still listed, unhealthy, with the reason: capacity stays the truth.
"""

from gpuplane.core import health
from gpuplane.core.resources.held import withheld
from gpuplane.core.resources.names import named
from gpuplane.core.view import view
from gpuplane.model.snapshot import Snapshot
from gpuplane.model.views import Offer


@view
def offer(snapshot: Snapshot) -> Offer:
    """What to tell kubelet. `waiting` is set, and nothing else, while too little is known to say anything."""
    waiting = _waiting(snapshot)
    machine, settings = snapshot.machine, snapshot.config.settings
    if waiting or machine is None or settings is None:
        return Offer(waiting=waiting)
    resources, left = named(machine, settings)
    troubles = {gpu.uuid: health.trouble(snapshot, gpu) for gpu in machine.gpus or ()}
    held = withheld(resources, snapshot.allocations or ())
    return Offer(
        resources=tuple(
            resource.but(
                devices=tuple(
                    device.but(trouble=troubles[device.unit.gpu] or held.get((resource.name, device.id), ""))
                    for device in resource.devices
                )
            )
            for resource in resources
        ),
        left=left,
    )


def _waiting(snapshot: Snapshot) -> str:
    driver, config = snapshot.conditions.get("driver"), snapshot.conditions.get("config")
    if snapshot.machine is None:
        return "the machine has not been looked at yet" + (f": {driver.reason}" if driver else "")
    if snapshot.machine.gpus is None:
        return "; ".join(f"{fault.code}: {fault.message}" for fault in snapshot.machine.faults)
    if snapshot.config.settings is None:
        return "there is no good configuration yet" + (f": {config.reason}" if config else "")
    if snapshot.allocations is None:
        return "kubelet has not said yet what containers hold"
    return ""
