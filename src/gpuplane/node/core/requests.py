"""What people request of the node: by the command line, which is in the ledger, or on our Node object."""

from typing import Literal

from gpuplane.base.text import Text
from gpuplane.node.model.config import NodeObjectRequests
from gpuplane.node.model.snapshot import Snapshot

NO_REQUESTS = NodeObjectRequests()


def node_requests(snapshot: Snapshot) -> NodeObjectRequests:
    """What our Node object requests.

    Until the API server answers, its last answer holds: a restart must not open the driver during its upgrade.
    """
    return snapshot.ledger.node_requests or NO_REQUESTS


def read_node_requests(snapshot: Snapshot) -> NodeObjectRequests | None:
    """What our Node object requests; None until the API server has answered this agent."""
    return node_requests(snapshot) if snapshot.config.is_node_object_read else None


def driver_release_reason(snapshot: Snapshot) -> Text:
    """Why the driver has to be released now: requested here, or on our Node object; "" if it need not be."""
    release = snapshot.ledger.release
    return release.reason if release is not None else node_requests(snapshot).driver_release_reason


def driver_release_requester(snapshot: Snapshot) -> Literal["", "operator", "node"]:
    """Who requests now that the driver is released: an operator here, or our Node object; "" for nobody."""
    if snapshot.ledger.release is not None:
        return "operator"
    return "node" if node_requests(snapshot).driver_release_reason else ""
