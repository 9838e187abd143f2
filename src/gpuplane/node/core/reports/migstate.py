"""How the requested MIG layouts stand, as the Node object shows it: NVIDIA's label of the state, and a condition.

The label `nvidia.com/mig.config.state` is `success` when every GPU has its layout, `failed` when a GPU cannot have it
now or the request cannot be followed, else `pending`. NVIDIA's `rebooting` is never said: nobody reboots a node. Unlike
theirs, `failed` is not the end: the agent tries again.

The condition `gpuplane.io/MIGReady` is "True" when every GPU has its layout. Otherwise its reason is the code of what
is in the way, and its message names each GPU, the pods that have to end, and the next try.
"""

from collections.abc import Callable, Iterator
from typing import Literal

from gpuplane.base.text import Text, clip, join
from gpuplane.node.core.partitions.desired import requested_name
from gpuplane.node.core.partitions.progress import partitions_progress
from gpuplane.node.core.reports.readycondition import condition_reason
from gpuplane.node.core.requests import node_requests
from gpuplane.node.core.serving import standby_reason
from gpuplane.node.model.partitions import GpuProgress, PartitionsProgress, ProgressState
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import DRIVER_PART
from gpuplane.node.model.views import NodeCondition

MIG_CONDITION = "gpuplane.io/MIGReady"
MAX_MESSAGE_CHARACTERS = 1000
APPLIED_REASON, NOT_REQUESTED_REASON, CHANGING_REASON = "Applied", "NotRequested", "Changing"
WORST_FIRST: tuple[ProgressState, ...] = ("failed", "waiting", "changing")

MigState = Literal["pending", "success", "failed"]
TimeText = Callable[[float], str]
"""A moment of CLOCK_BOOTTIME → the time of day, for people."""


def is_state_label_wanted(snapshot: Snapshot) -> bool:
    """Whether the label is ours to write: layouts are requested by the Node's label, and NVIDIA's MIG manager, which
    writes the same one, does not act here."""
    return bool(requested_name(snapshot)) and not node_requests(snapshot).has_mig_manager


def state_label(snapshot: Snapshot) -> MigState | None:
    """The label's value where it is wanted; None while nothing can be said, so that what was said last stays."""
    if standby_reason(snapshot) or not is_state_label_wanted(snapshot):
        return None
    progress = partitions_progress(snapshot)
    if progress is not None:
        return mig_state(progress)
    driver = snapshot.statuses.of(DRIVER_PART)  # the GPUs are not known: in a moment, or not for long
    return "pending" if driver is not None and driver.state == "failing" else None


def mig_condition(snapshot: Snapshot, time_text: TimeText) -> NodeCondition | None:
    """The condition of a node where the Node's label is followed; None elsewhere, and while nothing can be said."""
    settings = snapshot.config.settings
    if standby_reason(snapshot) or settings is None or not settings.partitions.follow_label:
        return None
    if snapshot.machine is None or snapshot.machine.gpus is None or not snapshot.config.is_node_object_read:
        return None
    progress = partitions_progress(snapshot)
    if progress is None:
        return NodeCondition("True", NOT_REQUESTED_REASON, "no MIG layouts are requested")
    return condition_of(progress, time_text)


def mig_state(progress: PartitionsProgress) -> MigState:
    """The state of a request as the label says it."""
    states = {each.state for each in progress.gpus}
    if progress.code or "failed" in states:
        return "failed"
    return "pending" if states - {"done"} else "success"


def condition_of(progress: PartitionsProgress, time_text: TimeText) -> NodeCondition:
    """The condition for a request."""
    name = f"MIG configuration {progress.config!r}" if progress.config else "the requested MIG layouts"
    if progress.code:
        text, code = f"{name}: {progress.problem}", progress.code
        return NodeCondition("False", condition_reason(code), _message(text), frozenset({(progress.config, code)}))
    left = sorted((each for each in progress.gpus if each.state != "done"), key=_rank)
    if not left:
        count = len(progress.gpus)
        text = f"{name}: {count} GPU{'s have their layouts' if count != 1 else ' has its layout'}"
        return NodeCondition("True", APPLIED_REASON, _message(text), frozenset({(progress.config,)}))
    texts = (_gpu_text(each, time_text) for each in left)
    worst = left[0]
    reason = CHANGING_REASON if worst.state == "changing" else condition_reason(worst.code or worst.state)
    return NodeCondition(
        "False", reason, _message(f"{name}: {join('; ', texts)}"), frozenset(_causes(progress.config, left))
    )


def _rank(each: GpuProgress) -> int:
    return WORST_FIRST.index(each.state)


def _gpu_text(each: GpuProgress, time_text: TimeText) -> Text:
    return f"{each.reason}; next try {time_text(each.next_try_at)}" if each.next_try_at else each.reason


def _causes(config: str, left: list[GpuProgress]) -> Iterator[tuple[str, ...]]:
    """What the condition says, whatever the words. What is being changed now changes many times a second."""
    for each in left:
        next_try = f"{each.next_try_at or 0.0:.0f}"
        yield config, each.gpu, each.state, "" if each.state == "changing" else each.code, next_try, *each.holders


def _message(text: Text) -> str:
    return clip(text, MAX_MESSAGE_CHARACTERS)
