"""Reconcile how GPUs are partitioned with what is requested (`core.partitions`): one change after another."""

from gpuplane.core.ledger import is_ledger_remembered
from gpuplane.core.partitions.progress import current_change
from gpuplane.hardware import Hardware
from gpuplane.model.facts import ChangePartition
from gpuplane.model.node import Node


async def keep_partitions(node: Node, hardware: Hardware) -> None:
    """Have the changes made that are pending, each once; what comes of them comes back as facts."""
    begun: ChangePartition | None = None
    async for snapshot in node.changes(current_change, is_ledger_remembered):
        change = current_change(snapshot)
        if change is not None and change != begun and is_ledger_remembered(snapshot):
            begun = change
            await hardware.do(change)
