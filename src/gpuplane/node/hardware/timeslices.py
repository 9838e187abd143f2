"""Reconcile how long the time slices of GPUs are with what is wanted (`core.timeslices`)."""

from gpuplane.node.core import timeslices
from gpuplane.node.core.ledger import is_ledger_remembered
from gpuplane.node.hardware import Actor
from gpuplane.node.model.facts import SetTimeSlice, StatusChanged
from gpuplane.node.model.node import Node
from gpuplane.node.model.status import TIME_SLICES_PART, TimeSliceStatus


async def keep_time_slices(node: Node, actor: Actor) -> None:
    """Have the tries made that are wished for, each once; what comes of them comes back as facts."""
    begun: SetTimeSlice | None = None
    told: TimeSliceStatus | None = None
    async for snapshot in node.changes(timeslices.time_slice_status, timeslices.current_try, is_ledger_remembered):
        if (status := timeslices.time_slice_status(snapshot)) != told:
            told = status
            node.apply(StatusChanged(TIME_SLICES_PART, told))
        action = timeslices.current_try(snapshot)
        if action is not None and action != begun and is_ledger_remembered(snapshot):
            begun = action
            await actor.do(action)
