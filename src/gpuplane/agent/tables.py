"""The table of the choice, made anew when the links of the GPUs change.

In a thread: it may take 50 ms, and no request waits for it. A request that comes meanwhile is answered without.
"""

import asyncio

from gpuplane.core.choice.affinity import AffinityMatrix
from gpuplane.core.choice.preference import machine_affinity_matrix
from gpuplane.core.choice.tablecache import build_table
from gpuplane.model.node import Node


async def keep_tables(node: Node) -> None:
    """See that there is a table for what the GPUs of the newest snapshot are worth to each other."""
    made: AffinityMatrix = ()
    async for snapshot in node.changes(machine_affinity_matrix):
        pairs = machine_affinity_matrix(snapshot)
        if pairs != made:
            await asyncio.to_thread(build_table, pairs)
            made = pairs
