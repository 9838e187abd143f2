"""Whether the agent does its job: what /readyz answers."""

from gpuplane.core import mps
from gpuplane.core.containers.cdi import wanted as cdi
from gpuplane.core.health.diagnose import released
from gpuplane.core.resources.offer import lacking, offer
from gpuplane.core.serving import standby
from gpuplane.model.snapshot import Snapshot


def unready(snapshot: Snapshot) -> str:
    """Why the agent is not ready; "" if it is.

    It is ready while kubelet has accepted every resource and reads its list, with the MPS daemons that it is shared by
    and the CDI specifications of it on disk, and also while there is nothing to advertise and the reason is known: a
    driver that is away, or a machine without GPUs, is not cured by a restart.

    One that stands by is ready when it has all that it needs to take over: a rollout that puts it beside the old agent
    ends that one then, and no sooner.
    """
    driver = snapshot.conditions.get("driver")
    if snapshot.machine is None and (released(snapshot) or (driver is not None and driver.standing == "failing")):
        return ""
    if snapshot.machine is not None and snapshot.machine.gpus is None:
        return ""
    if standby(snapshot):
        return lacking(snapshot)
    offered = offer(snapshot)
    if offered.waiting:
        return offered.waiting
    for resource in offered.resources:
        condition = snapshot.conditions.get(f"plugin/{resource.name}")
        if condition is None or condition.standing != "ok":
            return f"{resource.name}: {condition.reason if condition else 'not registered yet'}"
    return mps.unready(snapshot) or cdi.unready(snapshot)
