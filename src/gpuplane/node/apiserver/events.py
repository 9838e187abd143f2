"""Events about our Node object: what has happened to its devices, each change once.

The state that was last sent is kept here, and an Event is a difference between it and the present state. So a change
that was undone while the API server was away makes no Event, and a restart repeats none: the ledger says what was sent
before. (Events that an agent could not send before it died are lost; the condition `GPUProblem` shows the state.)

A device that comes and goes does not flood the API server: what happens to the same device for the same reason within
`REPEAT_PERIOD` counts the same Event up, and Events are written at most every `WRITE_INTERVAL` seconds.

As kubelet's (pkg/kubelet/kubelet.go, nodeRef), our Events name the Node by its name as `uid` too, which is how
`kubectl describe node` finds them; those of an object without a namespace live in `default`.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuplane.base.logsubject import LogSubject
from gpuplane.base.value import Value
from gpuplane.kubernetes.client import connect
from gpuplane.kubernetes.client.errors import ApiServerError
from gpuplane.kubernetes.client.retry import RequestPauses
from gpuplane.node.apiserver.retry import pause, timestamp
from gpuplane.node.core.ledger import is_ledger_stored
from gpuplane.node.core.reports.nodecondition import is_machine_and_config_settled
from gpuplane.node.core.reports.nodeevents import (
    DeviceEventState,
    event_states,
    event_states_before_restart,
    keep_last_state_while_waiting,
    node_events,
)
from gpuplane.node.model.facts import StatusChanged
from gpuplane.node.model.node import Node
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import EVENTS_PART, STATE_DIRECTORY_PART, Status
from gpuplane.node.model.views import NodeEvent

if TYPE_CHECKING:
    from gpuplane.kubernetes.client.api import ApiClient

EVENTS_PATH = "/api/v1/namespaces/default/events"
COMPONENT = "gpuplane"
REPEAT_PERIOD = 600.0  # seconds
WRITE_INTERVAL = 2.0  # seconds
STORE_TIMEOUT = 2.0  # seconds in which the ledger has to be stored
LONGEST_NAME = 220  # characters of the Node's name in an Event's name, of 253
REJECTED_CODES = (400, 413, 422)  # a repetition would be refused too
log = logging.getLogger("gpuplane")


EventKey = tuple[tuple[str, ...], str]
"""The devices and the reason of an Event. What happens to them again counts the same Event up."""


class SentEvent(Value):
    """An Event of ours: its name, when it was sent last, and how often. `count` 0: it may have been sent."""

    name: str
    sent_at: float
    count: int = 0


async def send_events(node: Node, name: str, kubeconfig: Path | None) -> None:
    """Send Events about the devices of this Node, for ever."""
    start = node.snapshot  # before anything was observed
    last: dict[str, DeviceEventState] | None = None
    told: dict[EventKey, SentEvent] = {}
    pauses = RequestPauses()
    async for _ in node.changes(is_machine_and_config_settled, event_states):
        while is_machine_and_config_settled(node.snapshot):
            now = event_states(node.snapshot)
            if last is None:
                last = dict(event_states_before_restart(start, node.snapshot))
            if not (fresh := list(node_events(last, now))):
                last = keep_last_state_while_waiting(last, now)
                break
            await node.wait_until(_is_ledger_stored, STORE_TIMEOUT)
            try:
                async with connect(kubeconfig) as client:
                    for event in fresh:
                        await send_event(client, name, event, told, node.now())
                        _mark_sent(last, now, event.devices)
            except ApiServerError as error:
                node.apply(StatusChanged(EVENTS_PART, Status("failing", str(error))))
                await pause(node, pauses.after_failure(error.code))
            else:
                pauses.reset()
                node.apply(StatusChanged(EVENTS_PART, Status("ok", f"Events of Node {name} are sent")))
                await asyncio.sleep(WRITE_INTERVAL)


def _is_ledger_stored(snapshot: Snapshot) -> bool:
    """Whether the ledger is stored, or cannot be. What is not stored would be sent again after a crash."""
    state = snapshot.statuses.of(STATE_DIRECTORY_PART)
    return state is None or state.state == "failing" or is_ledger_stored(snapshot)


def _mark_sent(
    sent: dict[str, DeviceEventState], current: Mapping[str, DeviceEventState], devices: Iterable[str]
) -> None:
    """Note that the present state of these devices was sent."""
    for device in devices:
        if device in current:
            sent[device] = current[device]
        else:
            sent.pop(device, None)


async def send_event(
    client: "ApiClient", name: str, event: NodeEvent, sent: dict[EventKey, SentEvent], now: float
) -> None:
    """Create an Event, or count one of ours up. Raises ApiServerError; what was sent before that is in `sent`."""
    for old in [key for key, each in sent.items() if now - each.sent_at > REPEAT_PERIOD]:
        del sent[old]
    key = event.devices, event.reason
    before = sent.get(key)
    if before is not None and before.count:
        again = {"count": before.count + 1, "lastTimestamp": timestamp(), "message": event.message}
        try:
            await client.send("PATCH", f"{EVENTS_PATH}/{before.name}", again)
        except ApiServerError as error:
            if error.code not in (404, *REJECTED_CODES):
                raise
        else:
            sent[key] = before.but(count=before.count + 1, sent_at=now)
            return
    first = before if before is not None and not before.count else SentEvent(name=_new_name(name), sent_at=now)
    sent[key] = first
    try:
        await client.send("POST", EVENTS_PATH, _event_body(name, first.name, event))
    except ApiServerError as error:
        if error.code in REJECTED_CODES:
            about = LogSubject(devices=tuple(filter(None, event.devices)), part=EVENTS_PART.name)
            log.warning("an Event was refused and is dropped: %s", error, extra=about.extra)
        elif error.code != 409:  # 409: an earlier try had succeeded
            raise
    sent[key] = first.but(count=1, sent_at=now)


def _new_name(node: str) -> str:
    """A name that no other Event has, built as client-go does (tools/record/event.go, makeEvent)."""
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
