"""The condition `GPUProblem` of our Node object, kept equal to the view of it.

It is written when its content changes, and again every few minutes with its newest message: the heartbeat shows that an
agent runs. If the heartbeat is older than ten minutes no agent does. It is written by a strategic merge patch of
`status`, which leaves other conditions as they are (the merge key is `type`), as kubelet's patches leave ours. The
condition that was there before our start, or before the API server was away, is read first: its `lastTransitionTime`
stays while its status stays.
"""

import asyncio
import importlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gpuplane.apiserver.node import CLIENT_MODULE, NODES_PATH
from gpuplane.apiserver.retry import Backoff, followed_since, timestamp
from gpuplane.core.reports.nodecondition import node_condition
from gpuplane.model.facts import StatusChanged
from gpuplane.model.node import Node
from gpuplane.model.snapshot import Snapshot
from gpuplane.model.status import NODE_CONDITION, Status
from gpuplane.model.value import Value
from gpuplane.model.views import NodeCondition

if TYPE_CHECKING:
    from httpx2 import AsyncClient

CONDITION_TYPE = "GPUProblem"
HEARTBEAT = 240.0  # seconds
WRITE_INTERVAL = 2.0  # the fewest seconds between two writes


class WrittenCondition(Value):
    """The condition that the API server has, since when it has its status, and since when our Node was watched then."""

    condition: NodeCondition
    since: str
    followed_since: float | None


class _Condition(msgspec.Struct):
    type: str
    status: str = ""
    lastTransitionTime: str | None = None  # noqa: N815 (the wire's name)


class _Status(msgspec.Struct):
    conditions: list[_Condition] | None = None


class _Node(msgspec.Struct):
    status: _Status | None = None


async def report_problems(node: Node, name: str, kubeconfig: Path | None) -> None:
    """Keep the condition of this Node object up to date, for ever."""
    await asyncio.to_thread(importlib.import_module, CLIENT_MODULE)
    from gpuplane.apiserver.connection import ApiServerError, connect

    written: WrittenCondition | None = None
    rests = Backoff()
    while True:
        await node.wait_until(partial(_is_due, written), HEARTBEAT)
        now = node_condition(node.snapshot)
        if now is None:
            continue
        link = followed_since(node.snapshot)
        held = None if written is None or _was_interrupted(written, node.snapshot) else written
        try:
            async with connect(kubeconfig) as client:
                written = WrittenCondition(
                    condition=now, since=await _write_condition(client, name, now, held), followed_since=link
                )
        except ApiServerError as error:
            written = None
            node.apply(StatusChanged(NODE_CONDITION, Status("failing", str(error))))
            await rests.wait(node, error)
        else:
            rests.reset()
            node.apply(StatusChanged(NODE_CONDITION, Status("ok", f"{CONDITION_TYPE} of Node {name} is up to date")))
            await asyncio.sleep(WRITE_INTERVAL)


def _is_due(written: WrittenCondition | None, snapshot: Snapshot) -> bool:
    now = node_condition(snapshot)
    if now is None:
        return False
    return written is None or not now.same_as(written.condition) or _was_interrupted(written, snapshot)


def _was_interrupted(written: WrittenCondition, snapshot: Snapshot) -> bool:
    """Whether the API server has been away since, or our Node object was created again."""
    link = followed_since(snapshot)
    return None not in (link, written.followed_since) and link != written.followed_since


async def _write_condition(
    client: "AsyncClient", name: str, current: NodeCondition, written: WrittenCondition | None
) -> str:
    """Write the condition; returns since when it has its status. Raises Away."""
    from gpuplane.apiserver.connection import send_object

    status, since = (
        (written.condition.status, written.since) if written is not None else await _read_condition(client, name)
    )
    at = timestamp()
    if status != current.status or not since:
        since = at
    body = {
        "type": CONDITION_TYPE,
        "status": current.status,
        "reason": current.reason,
        "message": current.message,
        "lastHeartbeatTime": at,
        "lastTransitionTime": since,
    }
    await send_object(client, "PATCH", f"{NODES_PATH}/{name}/status", {"status": {"conditions": [body]}})
    return since


async def _read_condition(client: "AsyncClient", name: str) -> tuple[str, str]:
    """(status, since when) of the condition as the API server has it; empty where there is none. Raises Away."""
    from gpuplane.apiserver.connection import get_object

    status = (await get_object(client, f"{NODES_PATH}/{name}", _Node)).status or _Status()
    ours = next((each for each in status.conditions or () if each.type == CONDITION_TYPE), _Condition(CONDITION_TYPE))
    return ours.status, ours.lastTransitionTime or ""
