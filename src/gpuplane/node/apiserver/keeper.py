"""How something in the API server is kept as a view wants it: written when that changes, and checked now and then.

- It is written at most every `WRITE_INTERVAL` seconds, or `URGENT_INTERVAL` where others wait for it; and by `write`
  only where it differs from what is there.
- Every `CHECK_INTERVAL` seconds, and when our Node was watched anew or made again, it is looked at whether somebody has
  changed it. So two programs that both want a field write it every few minutes, and not in a circle.
- Where the configuration wants nothing of it, what we have written before is removed, once.
"""

import asyncio
import math
import random
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from gpuplane.base.text import clip
from gpuplane.kubernetes.client import connect
from gpuplane.kubernetes.client.errors import ApiServerError
from gpuplane.kubernetes.client.retry import RequestPauses
from gpuplane.node.apiserver.retry import followed_since, pause
from gpuplane.node.model.config import NodeSettings, Settings
from gpuplane.node.model.facts import StatusChanged
from gpuplane.node.model.node import Node
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import MIG_STATE_PART, NODE_METADATA_PART, Part, Status

if TYPE_CHECKING:
    from gpuplane.kubernetes.client.api import ApiClient

WRITE_INTERVAL = 5.0  # the fewest seconds between two writes
URGENT_INTERVAL = 0.5  # the same, where others wait for it
CHECK_INTERVAL = 300.0  # seconds between two looks at what others have made of it
FORBIDDEN = 403
T = TypeVar("T")


class Kept(Protocol[T]):
    """One thing to keep. `rights`: the component of deploy/ that gives them. `was_ours`: whether an agent before this
    one may have written it, so that it has to be looked at where it is not wanted. `is_urgent`: others wait for it."""

    part: Part[Status]
    rights: str
    was_ours: bool
    is_urgent: bool

    def is_wanted(self, snapshot: Snapshot) -> bool:
        """Whether it is wanted at all, by a snapshot with settings: cheap, and asked of each one."""

    def inputs(self, snapshot: Snapshot) -> object:
        """What `derive` depends on: cheap, and compared with each snapshot."""

    async def derive(self, snapshot: Snapshot) -> T | None:
        """How it has to be; None while that is not known: then nothing is written and nothing removed."""

    async def write(self, client: "ApiClient", wanted: T) -> str:
        """Make it so; returns how it is, for people. Raises ApiServerError."""

    async def remove(self, client: "ApiClient") -> None:
        """Take away what we have written there. Raises ApiServerError."""


async def keep(node: Node, kept: Kept[T], kubeconfig: Path | None) -> None:
    """Keep it so, for ever."""
    pauses, memory = RequestPauses(), _Memory(kept)
    while True:
        await node.wait_until(memory.is_over, memory.seconds_left(node.now()))
        snapshot = node.snapshot
        if (settings := _node_settings(snapshot)) is None:
            continue
        is_wanted = kept.is_wanted(snapshot)
        wanted = await kept.derive(snapshot) if is_wanted else None
        if not memory.is_due(snapshot, wanted, is_wanted, node.now()):
            continue
        status = None
        try:
            async with connect(kubeconfig) as client:
                if wanted is not None:
                    status = Status("ok", clip(await kept.write(client, wanted)))
                else:
                    await kept.remove(client)
        except ApiServerError as error:
            memory.forget()
            reason = f"{error}; {kept.rights} has the rights" if error.code == FORBIDDEN else str(error)
            node.apply(StatusChanged(kept.part, Status("failing", reason)))
            await pause(
                node, pauses.after_failure(error.code), partial(_is_wanted_otherwise, kept, settings, is_wanted)
            )
        else:
            pauses.reset()
            memory.note(snapshot, wanted, node.now())
            node.apply(StatusChanged(kept.part, status))
            await asyncio.sleep(min(URGENT_INTERVAL, WRITE_INTERVAL) if kept.is_urgent else WRITE_INTERVAL)


async def report_without_node_name(node: Node) -> None:
    """Say whether the configuration wants something of the API server, which this agent does not use; for ever."""
    seen: Settings | None = None
    while True:
        await node.wait_until(lambda snapshot, seen=seen: snapshot.config.settings not in (None, seen), None)  # type: ignore[misc]
        seen = node.snapshot.config.settings
        assert seen is not None
        wants = seen.node.labels in ("node", "node-feature") or seen.node.annotation or seen.node.startup_taint
        text = "node.labels, node.annotation and node.startupTaint need --node-name, and it is not set"
        node.apply(StatusChanged(NODE_METADATA_PART, Status("failing", text) if wants else None))
        text = "mig.label needs --node-name, and it is not set: the agent does not see the label"
        node.apply(StatusChanged(MIG_STATE_PART, Status("failing", text) if seen.partitions.follow_label else None))


class _Memory(Generic[T]):
    """What was written last, and what has to happen before there is something to do again."""

    def __init__(self, kept: Kept[T]) -> None:
        self._kept = kept
        self._inputs: object = None
        self._is_known = not kept.was_ours  # whether it is known what we have there
        self._last: T | None = None
        self._link: float | None = None
        self._check_at = math.inf

    def is_over(self, snapshot: Snapshot) -> bool:
        """Whether something has changed that it depends on."""
        return self._inputs != self._inputs_of(snapshot) or self._is_interrupted(snapshot)

    def seconds_left(self, now: float) -> float | None:
        """Until it is looked at what others have made of it."""
        return None if self._check_at == math.inf else max(0.0, self._check_at - now)

    def is_due(self, snapshot: Snapshot, wanted: T | None, is_wanted: bool, now: float) -> bool:
        """Whether there is something to do with this snapshot."""
        self._inputs = self._inputs_of(snapshot)
        if self._is_interrupted(snapshot) or now >= self._check_at:
            self.forget()
            self._inputs = self._inputs_of(snapshot)
        if is_wanted and wanted is None:
            return False
        return not self._is_known or wanted != self._last

    def forget(self) -> None:
        """It is not known what is there."""
        self._is_known, self._inputs, self._check_at = False, None, math.inf

    def note(self, snapshot: Snapshot, wanted: T | None, now: float) -> None:
        """It is as wanted; None: there is nothing of ours."""
        self._is_known, self._last = True, wanted
        self._link = followed_since(snapshot)
        jitter = random.uniform(0.8, 1.2)  # noqa: S311 (spreads load; no secret)
        self._check_at = now + CHECK_INTERVAL * jitter if wanted is not None else math.inf

    def _is_interrupted(self, snapshot: Snapshot) -> bool:
        """Whether our Node was not watched all the time since: it may have been made again."""
        return self._is_known and self._last is not None and followed_since(snapshot) not in (None, self._link)

    def _inputs_of(self, snapshot: Snapshot) -> object:
        settings = _node_settings(snapshot)
        if settings is None or not self._kept.is_wanted(snapshot):
            return settings
        return settings, self._kept.inputs(snapshot)


def _is_wanted_otherwise(kept: Kept[T], settings: NodeSettings, was_wanted: bool, snapshot: Snapshot) -> bool:
    """Whether the configuration of our Node has changed, or whether it is wanted at all."""
    return _node_settings(snapshot) != settings or kept.is_wanted(snapshot) != was_wanted


def node_settings(snapshot: Snapshot) -> NodeSettings:
    """What a snapshot with settings has of our Node."""
    assert snapshot.config.settings is not None
    return snapshot.config.settings.node


def _node_settings(snapshot: Snapshot) -> NodeSettings | None:
    return snapshot.config.settings.node if snapshot.config.settings is not None else None
