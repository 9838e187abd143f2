"""Reconcile how GPUs are partitioned with what is requested (`core.partitions`): one change after another."""

from gpuplane.node.core.ledger import is_ledger_remembered
from gpuplane.node.core.partitions.state_machine import current_change
from gpuplane.node.hardware import Actor
from gpuplane.node.model.facts import ChangePartition
from gpuplane.node.model.node import Node
from gpuplane.node.model.snapshot import Snapshot


async def keep_partitions(node: Node, actor: Actor) -> None:
    """Have the changes made that are pending, each once; what comes of them comes back as facts."""
    begun: ChangePartition | None = None
    async for snapshot in node.changes(_remembered_change):
        change = _remembered_change(snapshot)
        if change is not None and change != begun:
            begun = change
            await actor.do(change)


def _remembered_change(snapshot: Snapshot) -> ChangePartition | None:
    """The pending change, once the next agent would know of it."""
    change = current_change(snapshot)
    return change if change is not None and is_ledger_remembered(snapshot) else None
