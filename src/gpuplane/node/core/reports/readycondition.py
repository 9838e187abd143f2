"""Our Node's condition `gpuplane.io/GPUReady`, as a function of the snapshot: whether pods can get the GPUs here.

"True" means that there are GPUs, that kubelet reads the list of every resource, that the CDI files are on disk, and
that no GPU waits for a requested MIG layout. (A GPU that a container holds, or whose layout fails, is not waited for:
`gpuplane.io/MIGReady` tells of it.) Whether single GPUs are ill says `GPUProblem`. What waits for a new node (an
autoscaler, the Node Readiness Controller, our own startup taint) waits for this.

It does not flap when an agent starts again. While it stands by, nothing is said; and what is over in a moment, as that
a plugin registers, has to last for `GRACE` seconds before it is "False".
"""

from collections.abc import Iterator

from gpuplane.base.text import clip, format_count
from gpuplane.node.core.advertising import missing_gpus_reason, offer
from gpuplane.node.core.devicenames import describe_devices
from gpuplane.node.core.health.devicehealth import health_without_parents
from gpuplane.node.core.partitions.plans import gpus_awaiting_layout
from gpuplane.node.core.reports.readiness import not_ready_reason
from gpuplane.node.core.requests import driver_release_reason
from gpuplane.node.core.serving import standby_reason
from gpuplane.node.model.health import NODE_RECORD_KEY
from gpuplane.node.model.reasons import Reason
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.views import NodeCondition

GRACE = 40.0
"""Seconds, in which kubelet or this agent starts again. Kubernetes waits about as long before it calls a Node not ready
(kube-controller-manager, --node-monitor-grace-period)."""

NO_GPU_REASON, READY_REASON = "NoGpu", "Serving"


def ready_condition(snapshot: Snapshot) -> NodeCondition | None:
    """The condition; None while nothing can be said, so that what was said last stays."""
    if standby_reason(snapshot):
        return None
    reason = (
        missing_gpus_reason(snapshot)
        or _driver_reason(snapshot)
        or not_ready_reason(snapshot)
        or _layout_reason(snapshot)
    )
    if reason is not None:
        return NodeCondition(
            status="False",
            reason=condition_reason(reason.code),
            message=clip(reason.text),
            reason_keys=frozenset({reason.identity_key}),
            grace=GRACE if reason.kind == "waiting" else 0.0,
        )
    if not snapshot.gpus:
        return NodeCondition("False", NO_GPU_REASON, "the driver lists no GPU")
    served = "; ".join(_served_resources(snapshot))
    return NodeCondition("True", READY_REASON, clip(f"kubelet is told of {served}" if served else "no GPU is offered"))


def _driver_reason(snapshot: Snapshot) -> Reason | None:
    """Why none of the GPUs that were there at the last look can be had; None where that is not for the driver."""
    if why := driver_release_reason(snapshot):
        return Reason(kind="released", text=f"the driver is released: {why}", code="driver-released")
    node = next((each for each in health_without_parents(snapshot) if each.device == NODE_RECORD_KEY), None)
    if node is None or node.state not in ("unhealthy", "probing"):
        return None
    return Reason(kind="problem", text=node.reason, code=node.code)


def _layout_reason(snapshot: Snapshot) -> Reason | None:
    """Which GPUs wait for their MIG layouts; None if none does."""
    waiting = gpus_awaiting_layout(snapshot)
    if not waiting:
        return None
    named = describe_devices([(gpu.uuid, f"{gpu.index}") for gpu in snapshot.gpus if gpu.uuid in waiting])
    return Reason(kind="waiting", text=f"{named}: the requested MIG layout is not made yet", code="layout-changing")


def _served_resources(snapshot: Snapshot) -> Iterator[str]:
    for resource in offer(snapshot).resources:
        yield f"{format_count(len(resource.devices), 'id')} of {resource.name}"


def condition_reason(code: str) -> str:
    """The reason of a condition for a code: "PluginNotRegistered" for "plugin-not-registered"."""
    return "".join(word[:1].upper() + word[1:] for word in code.split("-")) or "Unknown"
