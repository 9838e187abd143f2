"""The condition `GPUProblem` of our Node object, kept equal to the view of it.

It is written when it says something else than what was written last, and again every few minutes, then in its newest
words: its heartbeat says that somebody looks. Whoever reads one older than ten minutes knows that nobody does. It is
written by a strategic merge patch of `status`, which leaves the conditions of others alone (the merge key is `type`),
as kubelet's patches leave ours. What stood there before our start, or before the API server was away, is read first:
the time of its last transition is that of its status, not ours.
"""

import asyncio
import importlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gpuplane.apiserver.node import CLIENT, NODES
from gpuplane.apiserver.retry import Rests, followed, stamp
from gpuplane.core.reports.nodecondition import condition
from gpuplane.model.facts import StatusChanged
from gpuplane.model.node import Node
from gpuplane.model.snapshot import Snapshot
from gpuplane.model.status import NODE_CONDITION, Status
from gpuplane.model.value import Value
from gpuplane.model.views import NodeCondition

if TYPE_CHECKING:
    from httpx2 import AsyncClient

TYPE = "GPUProblem"
HEARTBEAT = 240.0  # seconds
PACE = 2.0  # seconds between two writes at the least


class Written(Value):
    """What the API server has: the condition, since when its status stands, and the link it was written over."""

    condition: NodeCondition
    since: str
    link: float | None


class _Condition(msgspec.Struct):
    type: str
    status: str = ""
    lastTransitionTime: str | None = None  # noqa: N815 (the wire's name)


class _Status(msgspec.Struct):
    conditions: list[_Condition] | None = None


class _Node(msgspec.Struct):
    status: _Status | None = None


async def report_problems(node: Node, name: str, kubeconfig: Path | None) -> None:
    """Keep the condition of the Node object of this name, for ever."""
    await asyncio.to_thread(importlib.import_module, CLIENT)
    from gpuplane.apiserver.connection import Away, connect

    written: Written | None = None
    rests = Rests()
    while True:
        await node.until(partial(_due, written), HEARTBEAT)
        now = condition(node.snapshot)
        if now is None:
            continue
        link = followed(node.snapshot)
        held = None if written is None or _gap(written, node.snapshot) else written
        try:
            async with connect(kubeconfig) as client:
                written = Written(condition=now, since=await _write(client, name, now, held), link=link)
        except Away as away:
            written = None
            node.apply(StatusChanged(NODE_CONDITION, Status("failing", str(away))))
            await rests.after(node, away)
        else:
            rests.well()
            node.apply(StatusChanged(NODE_CONDITION, Status("ok", f"{TYPE} of Node {name} is kept")))
            await asyncio.sleep(PACE)


def _due(written: Written | None, snapshot: Snapshot) -> bool:
    now = condition(snapshot)
    if now is None:
        return False
    return written is None or not now.same_as(written.condition) or _gap(written, snapshot)


def _gap(written: Written, snapshot: Snapshot) -> bool:
    """Whether the API server was away since, or our Node object was made anew."""
    link = followed(snapshot)
    return None not in (link, written.link) and link != written.link


async def _write(client: "AsyncClient", name: str, now: NodeCondition, held: Written | None) -> str:
    """Write the condition; since when its status stands. Raises Away."""
    from gpuplane.apiserver.connection import sent

    status, since = (held.condition.status, held.since) if held is not None else await _standing(client, name)
    at = stamp()
    if status != now.status or not since:
        since = at
    body = {
        "type": TYPE,
        "status": now.status,
        "reason": now.reason,
        "message": now.message,
        "lastHeartbeatTime": at,
        "lastTransitionTime": since,
    }
    await sent(client, "PATCH", f"{NODES}/{name}/status", {"status": {"conditions": [body]}})
    return since


async def _standing(client: "AsyncClient", name: str) -> tuple[str, str]:
    """(status, since when) of the condition as the API server has it; empty where there is none. Raises Away."""
    from gpuplane.apiserver.connection import found

    status = (await found(client, f"{NODES}/{name}", _Node)).status or _Status()
    ours = next((each for each in status.conditions or () if each.type == TYPE), _Condition(TYPE))
    return ours.status, ours.lastTransitionTime or ""
