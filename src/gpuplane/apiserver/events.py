"""Events about our Node object: what has befallen its devices, each thing once.

What was told last is remembered here, and an Event is the difference to what stands now. So a change that came and went
while the API server was away is not told, and neither is anything after a restart: the ledger of before says what was
told. (An agent that dies while the API server is away takes the untold with it; the condition `GPUProblem` tells.)

A device that comes and goes makes no flood: what happened to the same device for the same reason within `AGAIN` is the
same Event, whose count and last time go up, and nothing is written within `PACE` of the last.

As kubelet's (pkg/kubelet/kubelet.go, nodeRef), our Events name the Node by its name as `uid` too, which is how
`kubectl describe node` finds them; those of an object without a namespace live in `default`.
"""

import asyncio
import importlib
import logging
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuplane.apiserver.node import CLIENT
from gpuplane.apiserver.retry import Rests, stamp
from gpuplane.core.ledger import is_stored
from gpuplane.core.reports.nodecondition import known
from gpuplane.core.reports.nodeevents import Standing, events, kept, remembered, standings
from gpuplane.model.facts import StatusChanged
from gpuplane.model.node import Node
from gpuplane.model.snapshot import Snapshot
from gpuplane.model.status import EVENTS, STATE_DIRECTORY, Status
from gpuplane.model.value import Value
from gpuplane.model.views import LogSubject, NodeEvent

if TYPE_CHECKING:
    from httpx2 import AsyncClient

EVENTS_PATH = "/api/v1/namespaces/default/events"
COMPONENT = "gpuplane"
AGAIN = 600.0  # seconds
PACE = 2.0  # seconds
KEEPING = 2.0  # seconds that the disk is given
LONGEST_NAME = 220  # characters of the node's in an Event's, of 253
REJECTED = (400, 413, 422)  # what no repetition makes better
log = logging.getLogger("gpuplane")


Key = tuple[tuple[str, ...], str]
"""The devices and the reason of an Event: what happens to them again is the same Event."""


class Told(Value):
    """An Event of ours: its name, how often it was told, and when last. `count` 0: it may have been."""

    name: str
    at: float
    count: int = 0


async def tell_events(node: Node, name: str, kubeconfig: Path | None) -> None:
    """Tell what befalls the devices of the Node of this name, for ever."""
    start = node.snapshot  # before anything was looked at
    await asyncio.to_thread(importlib.import_module, CLIENT)
    from gpuplane.apiserver.connection import Away, connect

    last: dict[str, Standing] | None = None
    told: dict[Key, Told] = {}
    rests = Rests()
    async for _ in node.changes():
        while known(node.snapshot):
            now = standings(node.snapshot)
            if last is None:
                last = dict(remembered(start, node.snapshot))
            if not (fresh := list(events(last, now))):
                last = kept(last, now)
                break
            await node.until(_kept, KEEPING)
            try:
                async with connect(kubeconfig) as client:
                    for event in fresh:
                        await _tell(client, name, event, told, node.now())
                        _settle(last, now, event.devices)
            except Away as away:
                node.apply(StatusChanged(EVENTS, Status("failing", str(away))))
                await rests.after(node, away)
            else:
                rests.well()
                node.apply(StatusChanged(EVENTS, Status("ok", f"told of Node {name}")))
                await asyncio.sleep(PACE)


def _kept(snapshot: Snapshot) -> bool:
    """Whether the disk has the ledger, or cannot have it. What it has not is told again after a crash."""
    state = snapshot.status.of(STATE_DIRECTORY)
    return state is None or state.state == "failing" or is_stored(snapshot)


def _settle(last: dict[str, Standing], now: Mapping[str, Standing], devices: Iterable[str]) -> None:
    """These devices stand, for those who were told, as they do now."""
    for device in devices:
        if device in now:
            last[device] = now[device]
        else:
            last.pop(device, None)


async def _tell(client: "AsyncClient", name: str, event: NodeEvent, told: dict[Key, Told], now: float) -> None:
    """Make an Event, or count one of ours again. Raises Away; what was told before that is in `told`."""
    from gpuplane.apiserver.connection import Away, sent

    for old in [key for key, each in told.items() if now - each.at > AGAIN]:
        del told[old]
    key = event.devices, event.reason
    before = told.get(key)
    if before is not None and before.count:
        again = {"count": before.count + 1, "lastTimestamp": stamp(), "message": event.message}
        try:
            await sent(client, "PATCH", f"{EVENTS_PATH}/{before.name}", again)
        except Away as away:
            if away.code not in (404, *REJECTED):
                raise
        else:
            told[key] = before.but(count=before.count + 1, at=now)
            return
    first = before if before is not None and not before.count else Told(name=_name(name), at=now)
    told[key] = first
    try:
        await sent(client, "POST", EVENTS_PATH, _body(name, first.name, event))
    except Away as away:
        if away.code in REJECTED:
            about = LogSubject(devices=tuple(filter(None, event.devices)), part=EVENTS.name)
            log.warning("an Event is dropped: %s", away, extra=about.extra)
        elif away.code != 409:  # 409: an earlier try, of which nobody knew, was heard
            raise
    told[key] = first.but(count=1, at=now)


def _name(node: str) -> str:
    """A name that no other Event has, made as client-go makes it (tools/record/event.go, makeEvent)."""
    return f"{node[:LONGEST_NAME].rstrip('.-')}.{time.time_ns():x}"


def _body(node: str, name: str, event: NodeEvent) -> dict[str, Any]:
    at = stamp()
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": "default"},
        "involvedObject": {"kind": "Node", "name": node, "uid": node},
        "type": event.type,
        "reason": event.reason,
        "message": event.message,
        "source": {"component": COMPONENT, "host": node},
        "reportingComponent": COMPONENT,
        "reportingInstance": node,
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }
