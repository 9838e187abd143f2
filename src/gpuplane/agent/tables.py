"""The table of the choice, made anew when the links of the GPUs change.

In a thread: it may take 50 ms, and no request waits for it. A request that comes meanwhile is answered without.
"""

import asyncio

from gpuplane.core.choice.prefer import pairs_of
from gpuplane.core.choice.tables import prepare
from gpuplane.core.choice.topology import Worths
from gpuplane.model.node import Node


async def keep_tables(node: Node) -> None:
    """See that there is a table for what the GPUs of the newest snapshot are worth to each other."""
    made: Worths = ()
    async for snapshot in node.changes():
        pairs = pairs_of(snapshot)
        if pairs != made:
            await asyncio.to_thread(prepare, pairs)
            made = pairs
