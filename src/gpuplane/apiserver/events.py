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

from gpuplane.apiserver.node import CLIENT_MODULE
from gpuplane.apiserver.retry import Backoff, timestamp
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
REPEAT_PERIOD = 600.0  # seconds
WRITE_INTERVAL = 2.0  # seconds
STORE_TIMEOUT = 2.0  # seconds that the disk is given
LONGEST_NAME = 220  # characters of the node's in an Event's, of 253
REJECTED_CODES = (400, 413, 422)  # what no repetition makes better
log = logging.getLogger("gpuplane")


EventKey = tuple[tuple[str, ...], str]
"""The devices and the reason of an Event: what happens to them again is the same Event."""


class SentEvent(Value):
    """An Event of ours: its name, how often it was told, and when last. `count` 0: it may have been."""

    name: str
    sent_at: float
    count: int = 0


async def send_events(node: Node, name: str, kubeconfig: Path | None) -> None:
    """Tell what befalls the devices of the Node of this name, for ever."""
    start = node.snapshot  # before anything was looked at
    await asyncio.to_thread(importlib.import_module, CLIENT_MODULE)
    from gpuplane.apiserver.connection import ApiServerError, connect

    last: dict[str, Standing] | None = None
    told: dict[EventKey, SentEvent] = {}
    rests = Backoff()
    async for _ in node.changes():
        while known(node.snapshot):
            now = standings(node.snapshot)
            if last is None:
                last = dict(remembered(start, node.snapshot))
            if not (fresh := list(events(last, now))):
                last = kept(last, now)
                break
            await node.until(_is_ledger_stored, STORE_TIMEOUT)
            try:
                async with connect(kubeconfig) as client:
                    for event in fresh:
                        await _send_event(client, name, event, told, node.now())
                        _mark_sent(last, now, event.devices)
            except ApiServerError as away:
                node.apply(StatusChanged(EVENTS, Status("failing", str(away))))
                await rests.wait(node, away)
            else:
                rests.reset()
                node.apply(StatusChanged(EVENTS, Status("ok", f"told of Node {name}")))
                await asyncio.sleep(WRITE_INTERVAL)


def _is_ledger_stored(snapshot: Snapshot) -> bool:
    """Whether the disk has the ledger, or cannot have it. What it has not is told again after a crash."""
    state = snapshot.status.of(STATE_DIRECTORY)
    return state is None or state.state == "failing" or is_stored(snapshot)


def _mark_sent(sent: dict[str, Standing], current: Mapping[str, Standing], devices: Iterable[str]) -> None:
    """These devices stand, for those who were told, as they do now."""
    for device in devices:
        if device in current:
            sent[device] = current[device]
        else:
            sent.pop(device, None)


async def _send_event(
    client: "AsyncClient", name: str, event: NodeEvent, sent: dict[EventKey, SentEvent], now: float
) -> None:
    """Make an Event, or count one of ours again. Raises Away; what was told before that is in `told`."""
    from gpuplane.apiserver.connection import ApiServerError, send_object

    for old in [key for key, each in sent.items() if now - each.sent_at > REPEAT_PERIOD]:
        del sent[old]
    key = event.devices, event.reason
    before = sent.get(key)
    if before is not None and before.count:
        again = {"count": before.count + 1, "lastTimestamp": timestamp(), "message": event.message}
        try:
            await send_object(client, "PATCH", f"{EVENTS_PATH}/{before.name}", again)
        except ApiServerError as away:
            if away.code not in (404, *REJECTED_CODES):
                raise
        else:
            sent[key] = before.but(count=before.count + 1, sent_at=now)
            return
    first = before if before is not None and not before.count else SentEvent(name=_new_name(name), sent_at=now)
    sent[key] = first
    try:
        await send_object(client, "POST", EVENTS_PATH, _event_body(name, first.name, event))
    except ApiServerError as away:
        if away.code in REJECTED_CODES:
            about = LogSubject(devices=tuple(filter(None, event.devices)), part=EVENTS.name)
            log.warning("an Event is dropped: %s", away, extra=about.extra)
        elif away.code != 409:  # 409: an earlier try, of which nobody knew, was heard
            raise
    sent[key] = first.but(count=1, sent_at=now)


def _new_name(node: str) -> str:
    """A name that no other Event has, made as client-go makes it (tools/record/event.go, makeEvent)."""
    return f"{node[:LONGEST_NAME].rstrip('.-')}.{time.time_ns():x}"


def _event_body(node: str, name: str, event: NodeEvent) -> dict[str, Any]:
    at = timestamp()
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
