"""How long the first look at the machine waits for the API server's first word about our Node.

The Node may ask to leave the driver alone, and names the container runtime and the MIG layout. What is remembered of it
stands in for a word that does not come. Where nothing is remembered, the word is worth more: containers could be told
of their devices in a way that the runtime does not read, and GPUs be given out that are about to be partitioned. The
waiting is bounded, for the node has to serve while the API server is away.
"""

from gpuplane.node.model.facts import StatusChanged
from gpuplane.node.model.node import Node
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import DRIVER_PART, DriverStatus

REMEMBERED, FIRST_EVER, FIRST_LAYOUT = 2.0, 10.0, 60.0
"""Seconds: where the last word is remembered; where nothing is; and where the Node is to say the MIG layout, too."""


async def wait_for_node_object(node: Node) -> None:
    """Return when our Node was read, or when that takes too long."""
    patience = FIRST_EVER if node.snapshot.ledger.node_requests is None else REMEMBERED
    if not await node.wait_until(_is_node_read, patience) and _is_layout_unknown(node.snapshot):
        text = f"the first look waits up to {FIRST_LAYOUT:g} s for the Node's label that names the MIG layout"
        node.apply(StatusChanged(DRIVER_PART, DriverStatus("waiting", text)))
        await node.wait_until(_is_node_read, FIRST_LAYOUT - patience)


def _is_node_read(snapshot: Snapshot) -> bool:
    return snapshot.config.is_node_object_read


def _is_layout_unknown(snapshot: Snapshot) -> bool:
    """Whether our Node is to say which MIG layout is requested, and nobody remembers what it said."""
    settings = snapshot.config.settings
    return settings is not None and settings.partitions.follow_label and snapshot.ledger.node_requests is None
