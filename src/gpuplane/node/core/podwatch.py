"""Whether the pods of this node have to be known, and what of them.

To list and watch pods is a right of its own, which RBAC cannot restrict to those of one node. So the API server is
asked for them only where a part needs them and the configuration says so.
"""

from gpuplane.base.value import Value
from gpuplane.node.model.snapshot import Snapshot


class PodWatch(Value):
    """What of the pods has to be known. `labels`: names of labels; `*` matches any run of characters."""

    labels: tuple[str, ...] = ()


def wanted_pod_watch(snapshot: Snapshot) -> PodWatch | None:
    """What all parts together need to know of the pods; None: nothing, and nobody is asked."""
    settings = snapshot.config.settings
    if settings is None or not settings.metrics.watch_pods:  # series of metrics are the only reason so far
        return None
    return PodWatch(settings.metrics.pod_labels)
