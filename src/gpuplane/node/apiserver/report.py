"""The conditions of our Node object, kept equal to the views of them: `GPUProblem`, `gpuplane.io/GPUReady` and, where
MIG layouts are requested by label, `gpuplane.io/MIGReady`.

A condition is written when its content changes, and again every few minutes with its newest message: the heartbeat
shows that an agent runs. If the heartbeat is older than ten minutes no agent does. They are written by one strategic
merge patch of `status`, which leaves other conditions as they are (the merge key is `type`), as kubelet's patches leave
ours. The conditions that were there before our start, or before the API server was away, are read first: the
`lastTransitionTime` of each stays while its status stays.

What a view says with a `grace` is written when it has lasted so long: until then that of before stays.
"""

import asyncio
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpuplane.base.value import Value
from gpuplane.kubernetes.client import connect
from gpuplane.kubernetes.client.errors import ApiServerError
from gpuplane.kubernetes.client.retry import RequestPauses
from gpuplane.kubernetes.objects import ApiNode
from gpuplane.node.apiserver.node import NODES_PATH
from gpuplane.node.apiserver.retry import followed_since, pause, timestamp
from gpuplane.node.core.reports.migstate import MIG_CONDITION, TimeText, mig_condition
from gpuplane.node.core.reports.nodecondition import node_condition
from gpuplane.node.core.reports.readycondition import ready_condition
from gpuplane.node.model.facts import StatusChanged
from gpuplane.node.model.node import Node
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import NODE_CONDITION_PART, Status
from gpuplane.node.model.views import NodeCondition

if TYPE_CHECKING:
    from gpuplane.kubernetes.client.api import ApiClient

PROBLEM_CONDITION, READY_CONDITION = "GPUProblem", "gpuplane.io/GPUReady"
CONDITIONS: Mapping[str, Callable[[Snapshot, TimeText], NodeCondition | None]] = {
    PROBLEM_CONDITION: lambda snapshot, _: node_condition(snapshot),
    READY_CONDITION: lambda snapshot, _: ready_condition(snapshot),
    MIG_CONDITION: mig_condition,
}
"""Type of a condition → the view that says it. It is told how moments are written for people."""
HEARTBEAT = 240.0  # seconds
WRITE_INTERVAL = 2.0  # the fewest seconds between two writes


class WrittenConditions(Value):
    """What the API server has: type → (the condition, since when it has its status); and since when our Node was
    watched then."""

    by_type: Mapping[str, tuple[NodeCondition, str]] = {}
    followed_since: float | None = None


class _Patience:
    """Since when each condition says what has to last before it is written."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._since: dict[str, tuple[NodeCondition, float]] = {}

    def settled(self, snapshot: Snapshot, now: float) -> tuple[dict[str, NodeCondition], float]:
        """(the conditions that may be written, seconds until the next one may)."""
        settled, left = dict[str, NodeCondition](), HEARTBEAT
        for type, derive in CONDITIONS.items():
            said = derive(snapshot, self._time_text)
            if said is None or not said.grace:
                self._since.pop(type, None)
            else:
                first, since = self._since.get(type, (said, now))
                since = since if first.status == said.status else now
                self._since[type] = said, since
                if now < since + said.grace:
                    left = min(left, since + said.grace - now)
                    continue
            if said is not None:
                settled[type] = said
        return settled, left

    def _time_text(self, moment: float) -> str:
        """A moment of the node's clock as a time of day. It counts from the wall clock that there is now."""
        return timestamp(moment - self._now())


async def report_conditions(node: Node, name: str, kubeconfig: Path | None) -> None:
    """Keep the conditions of this Node object up to date, for ever."""
    written: WrittenConditions | None = None
    patience, pauses, next_beat = _Patience(node.now), RequestPauses(), 0.0
    while True:
        now = node.now()
        current, left = patience.settled(node.snapshot, now)
        if not _is_due(written, current, node.snapshot) and not (current and now >= next_beat):
            wake_at = min(now + left, max(next_beat, now) if current else math.inf)
            await node.wait_until(partial(_is_new, patience, node.now, written, wake_at), max(0.0, wake_at - now))
            continue
        link = followed_since(node.snapshot)
        held = None if written is None or _was_interrupted(written, node.snapshot) else written
        try:
            async with connect(kubeconfig) as client:
                since = await _write_conditions(client, name, current, held)
        except ApiServerError as error:
            written = None
            node.apply(StatusChanged(NODE_CONDITION_PART, Status("failing", str(error))))
            await pause(node, pauses.after_failure(error.code))
        else:
            kept = held.by_type if held is not None else {}
            by_type = {**kept, **{type: (said, since[type]) for type, said in current.items()}}
            written = WrittenConditions(by_type=by_type, followed_since=link)
            pauses.reset()
            next_beat = node.now() + HEARTBEAT
            text = f"{' and '.join(current)} of Node {name} {'is' if len(current) == 1 else 'are'} up to date"
            node.apply(StatusChanged(NODE_CONDITION_PART, Status("ok", text)))
            await asyncio.sleep(WRITE_INTERVAL)


def _is_due(written: WrittenConditions | None, current: Mapping[str, NodeCondition], snapshot: Snapshot) -> bool:
    """Whether there is something to write."""
    return bool(current) and (
        _differs(written, current) or (written is not None and _was_interrupted(written, snapshot))
    )


def _is_new(
    patience: _Patience, now: Callable[[], float], written: WrittenConditions | None, wake_at: float, snapshot: Snapshot
) -> bool:
    """Whether there is something to write, or to wait for that ends before `wake_at`."""
    current, left = patience.settled(snapshot, now())
    return _is_due(written, current, snapshot) or now() + left < wake_at - 1e-3


def _differs(written: WrittenConditions | None, current: Mapping[str, NodeCondition]) -> bool:
    return written is None or any(
        type not in written.by_type or not said.same_as(written.by_type[type][0]) for type, said in current.items()
    )


def _was_interrupted(written: WrittenConditions, snapshot: Snapshot) -> bool:
    """Whether the API server has been away since, or our Node object was created again."""
    link = followed_since(snapshot)
    return None not in (link, written.followed_since) and link != written.followed_since


async def _write_conditions(
    client: "ApiClient", name: str, current: Mapping[str, NodeCondition], written: WrittenConditions | None
) -> Mapping[str, str]:
    """Write conditions; returns since when each has its status. Raises ApiServerError."""
    before: Mapping[str, tuple[str, str]]
    before = {type: (said.status, since) for type, (said, since) in written.by_type.items()} if written else {}
    if current.keys() - before.keys():
        before = {**await _read_conditions(client, name), **before}
    at = timestamp()
    since = {
        type: before[type][1] if type in before and before[type][0] == said.status and before[type][1] else at
        for type, said in current.items()
    }
    bodies = [
        {
            "type": type,
            "status": said.status,
            "reason": said.reason,
            "message": said.message,
            "lastHeartbeatTime": at,
            "lastTransitionTime": since[type],
        }
        for type, said in current.items()
    ]
    await client.send("PATCH", f"{NODES_PATH}/{name}/status", {"status": {"conditions": bodies}})
    return since


async def _read_conditions(client: "ApiClient", name: str) -> Mapping[str, tuple[str, str]]:
    """Type → (status, since when) of the conditions that the API server has. Raises ApiServerError."""
    status = (await client.get(f"{NODES_PATH}/{name}", ApiNode)).status
    return {each.type: (each.status, each.last_transition_time or "") for each in status.conditions or ()}
