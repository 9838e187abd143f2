"""Whether the agent does its job: what /readyz answers."""

from gpuplane.base.text import distinct, join
from gpuplane.node.core import mps
from gpuplane.node.core.advertising import (
    has_plain_devices,
    missing_gpus_reason,
    missing_information_reason,
    offer,
    offer_waiting_reason,
)
from gpuplane.node.core.availability import availability, plugin_not_registered_reason
from gpuplane.node.core.containers.cdi import desiredspecs as cdi
from gpuplane.node.core.devicenames import describe_devices
from gpuplane.node.core.reports.nodecondition import condition_reason_name
from gpuplane.node.core.requests import driver_release_reason
from gpuplane.node.core.serving import standby_reason
from gpuplane.node.model.reasons import Reason
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import DRIVER_PART


def not_ready_reason(snapshot: Snapshot) -> Reason | None:
    """Why the agent is not ready; None if it is.

    It is ready while kubelet has accepted every resource and reads its list, with the MPS daemons that it is shared by
    and the CDI specifications of it on disk, and also while there is nothing to advertise and the reason is known: a
    driver that is away, a machine without GPUs, or one whose GPUs are all ill or drained is not cured by a restart, and
    must not hold up a rollout.

    It is not ready where no device of a resource is given out because of what an agent is set up with: no libcuda where
    it looks for one, say. A rollout that brings such a mistake to the first node then stops there.

    One that stands by is ready when it has all that it needs to take over: a rollout that puts it beside the old agent
    ends that one then, and no sooner.
    """
    driver = snapshot.statuses.of(DRIVER_PART)
    gpus_are_away = (
        bool(driver_release_reason(snapshot) or (driver is not None and driver.state == "failing"))
        if snapshot.machine is None
        else snapshot.machine.gpus is None
    )
    if gpus_are_away and not has_plain_devices(snapshot):
        return None
    if standby_reason(snapshot):
        return missing_information_reason(snapshot)
    if waiting := offer_waiting_reason(snapshot) or (None if gpus_are_away else missing_gpus_reason(snapshot)):
        return waiting
    for resource in offer(snapshot).resources:
        if why := plugin_not_registered_reason(snapshot, resource.name):
            return why
    return (
        mps.not_ready_reason(snapshot) or cdi.cdi_write_failed_reason(snapshot) or _unusable_resource_reason(snapshot)
    )


def _unusable_resource_reason(snapshot: Snapshot) -> Reason | None:
    """Of which resource nothing is given out, though health and people have nothing against some of it, and why."""
    found = availability(snapshot)
    for resource in offer(snapshot).resources:
        devices = [each for each in found if each.resource == resource.name]
        barred = [
            each for each in devices if {condition_reason_name(reason) for reason in each.reasons} == {"GPUUnavailable"}
        ]
        if barred and all(each.reasons for each in devices):
            why = join("; ", distinct(reason.text for each in barred for reason in each.reasons))
            named = describe_devices([(each.device, each.index) for each in barred])
            text = f"{resource.name}: no device is given out: {named}: {why}"
            return Reason(kind="problem", text=text, code="no-device-available")
    return None
