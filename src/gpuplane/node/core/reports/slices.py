"""The ResourceSlices of a node as people and programs read them: what is published, and what the server kept."""

from gpuplane.node.core.dra.slices import resource_slices
from gpuplane.node.model.inspection import VERSION, SliceShown, SlicesShown, SliceState, TaintShown
from gpuplane.node.model.resourceslices import ResourceSlice
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import SLICES_PART, SlicesStatus


def report_slices(snapshot: Snapshot, node: str, *, is_published: bool) -> SlicesShown:
    """The slices of the node of this name. `is_published`: an agent publishes them."""
    status = snapshot.statuses.of(SLICES_PART) or SlicesStatus("waiting")
    slices = resource_slices(snapshot, node) or ()
    settings = snapshot.config.settings
    return SlicesShown(
        version=VERSION,
        node=node,
        driver=settings.dra.driver if settings is not None else "",
        state=status.state if is_published else "",
        code=status.code,
        reason=status.text,
        slices=tuple(_slice(each, status, is_published) for each in slices),
    )


def _slice(slice: ResourceSlice, status: SlicesStatus, is_published: bool) -> SliceShown:
    [device] = slice.devices
    uuid, index = device.attributes["uuid"].string or "", device.attributes["index"].integer
    return SliceShown(
        name=slice.name,
        pool=slice.pool,
        device=device.name,
        uuid=uuid,
        index=f"{index}" if index is not None and index >= 0 else "",
        state=_state(slice, status) if is_published else "described",
        allocated=device.name in slice.allocated,
        taints=tuple(TaintShown(each.key, each.value, each.effect) for each in device.taints),
        differing=status.differing.get(slice.name, ()),
    )


def _state(slice: ResourceSlice, status: SlicesStatus) -> SliceState:
    if any(each.name in status.withdrawn for each in slice.devices):
        return "withdrawn"
    if slice.name in status.differing:
        return "incomplete"
    return "published" if slice.name in status.published else "waiting"
