"""What our Node says of the MIG layout that its label requests: the label of NVIDIA's MIG manager, and a condition.

The label `nvidia.com/mig.config.state` is what users of that manager watch: `pending`, `success` or `failed`. Its
fourth value, `rebooting`, we never write: nobody reboots the node. The condition `gpuplane.io/MIGReady` has the reason.
"""

from typing import Literal

from gpuplane.core.partitions.desired import requested_name
from gpuplane.core.partitions.standing import partitions_progress
from gpuplane.core.reports.readycondition import condition_reason
from gpuplane.core.serving import standby_reason
from gpuplane.core.text import clip, format_count
from gpuplane.model.partitions import GpuProgress, PartitionsProgress
from gpuplane.model.snapshot import Snapshot
from gpuplane.model.text import join
from gpuplane.model.views import NodeCondition

STATE_LABEL = "nvidia.com/mig.config.state"
MigState = Literal["pending", "success", "failed"]

APPLIED_REASON, NOT_REQUESTED_REASON, CHANGING_REASON = "Applied", "NotRequested", "Changing"
MOST_GPUS = 4
"""GPUs whose reasons a condition has."""


def mig_state(snapshot: Snapshot) -> MigState | None:
    """The value of the label; None where no label requests a layout, or too little is known."""
    progress = partitions_progress(snapshot) if requested_name(snapshot) else None
    return None if progress is None else _state(progress)


def _state(progress: PartitionsProgress) -> MigState:
    states = {each.state for each in progress.gpus}
    if progress.problem or "failed" in states:
        return "failed"
    return "success" if states <= {"done"} else "pending"


def mig_condition(snapshot: Snapshot) -> NodeCondition | None:
    """The condition; None while nothing can be said, or nobody can request anything."""
    settings = snapshot.config.settings
    if standby_reason(snapshot) or settings is None:
        return None
    progress = partitions_progress(snapshot)
    if progress is None:
        is_known = snapshot.machine is not None and snapshot.machine.gpus is not None
        is_followed = settings.partitions.follow_label and is_known
        return NodeCondition("True", NOT_REQUESTED_REASON, "no MIG layout is requested") if is_followed else None
    if progress.problem:
        return _false(progress.code, clip(progress.problem), frozenset({(progress.code, progress.config)}))
    open_gpus = [each for each in progress.gpus if each.state != "done"]
    if not open_gpus:
        message = f"MIG configuration {progress.config}: {format_count(len(progress.gpus), 'GPU')} as requested"
        return NodeCondition("True", APPLIED_REASON, message, frozenset({(progress.config,)}))
    worst = min(open_gpus, key=lambda each: ("failed", "waiting", "changing").index(each.state))
    more = len(open_gpus) - MOST_GPUS
    rest = f"; and {format_count(more, 'more GPU')}" if more > 0 else ""
    text = join("; ", (_describe(each) for each in open_gpus[:MOST_GPUS]))
    keys = frozenset((each.gpu, each.state, each.code, *each.holders) for each in open_gpus)
    code = CHANGING_REASON if worst.state == "changing" else worst.code
    return _false(code, clip(f"MIG configuration {progress.config}: {text}{rest}"), keys)


def _false(code: str, message: str, keys: frozenset[tuple[str, ...]]) -> NodeCondition:
    return NodeCondition("False", condition_reason(code), message, keys)


def _describe(progress: GpuProgress) -> str:
    again = "; the agent tries again by itself" if progress.next_try_at is not None else ""
    return f"{progress.reason}{again}"
