"""The ResourceSlices of our driver and Node, kept as the view has them (`core/dra/slices.py`).

They are listed and watched, and written where they differ: kubelet deletes all of its node's when it starts, and a
driver's 30 seconds after it went; people edit them. Of another driver or node nothing is read or written.

- The API server is asked little: a list and a stream that lasts up to an hour, and our Node's UID, which owns them.
- What somebody changes again and again is written ever more rarely: two programs do not write in a circle.
- Before a device that a taint keeps pods away from is published first, it is asked by a dry run whether this server
  keeps taints (`core/dra/publishing.py` says what follows).
- When the agent ends, the slices stay: kubelet deletes them where no agent comes. An agent that finds DRA disabled at
  its start leaves that to kubelet, too, unless claims hold devices: it does not even ask.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from gpuplane.base.pauses import Backoff
from gpuplane.base.tasks import run_until
from gpuplane.base.text import clip, format_count, join_first_names
from gpuplane.kubernetes.claims import ApiSlice
from gpuplane.kubernetes.client.errors import ApiServerError
from gpuplane.kubernetes.client.informer import Informer
from gpuplane.kubernetes.client.retry import REFUSED_CODES, REFUSED_PAUSE, RequestPauses, jittered
from gpuplane.kubernetes.objects import ApiNode
from gpuplane.node.apiserver.events import EventKey, SentEvent, send_event
from gpuplane.node.apiserver.node import NODES_PATH
from gpuplane.node.apiserver.retry import pause
from gpuplane.node.core.dra.publishing import (
    Answer,
    Changes,
    changes,
    differing_fields,
    dropped_gates,
    manifest,
    publishable,
    slice_spec,
    withdrawn_devices,
)
from gpuplane.node.core.dra.slices import claimed_units, resource_slices
from gpuplane.node.model.facts import StatusChanged
from gpuplane.node.model.node import Node
from gpuplane.node.model.resourceslices import KeptSlice, ResourceSlice, ServerAbilities
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import SLICES_PART, SlicesStatus
from gpuplane.node.model.views import NodeEvent

if TYPE_CHECKING:
    from gpuplane.kubernetes.client.api import ApiClient, Event

SLICES_PATH = "/apis/resource.k8s.io/v1/resourceslices"
FIELD_MANAGER = "gpuplane-slices"
STREAM_LIFETIME = (2400.0, 3600.0)
"""Seconds: the shortest and the longest life of a stream. A new one costs three requests."""
MAX_PARALLEL_REQUESTS = 8
"""Requests to the API server at a time."""
GATHER_PAUSE = 0.1
"""Seconds in which changes are gathered: kubelet deletes slices one by one; and Prepare of a claim goes first."""
HEAL_PAUSES = (0.5, 60.0)
"""Seconds between two writes of what others have changed, at first and at the most; they double."""
CALM_AFTER = 600.0
"""Seconds without such a write, after which the next one comes at once again."""
NOT_SERVED_PAUSE = 600.0
"""Seconds between two questions to an API server that has no resource.k8s.io/v1."""
NOT_FOUND, CONFLICT, INVALID, FORBIDDEN = 404, 409, 422, 403
EVENT_REASON_BY_CODE = {
    "": "ResourceSlicesPublished",
    "slices-fields-dropped": "ResourceSlicesIncomplete",
    "slices-not-published": "ResourceSlicesNotPublished",
}
"""The code of the status → the reason of the Event that tells of it."""
MOST_TEXT = 600  # characters of a status
MOST_NAMES = 3  # of fields and devices that a status lists
RIGHTS_ADVICE = "; deploy/components/dra has the rights"


async def publish_slices(node: Node, name: str, kubeconfig: Path | None) -> None:
    """Keep the slices of the Node of this name, for ever; while DRA is off and no claim has a device, do nothing."""
    while True:
        await node.wait_until(_is_concerned, None)
        await _follow(node, name, kubeconfig)
        node.apply(StatusChanged(SLICES_PART, None))


def _is_concerned(snapshot: Snapshot) -> bool:
    """Whether there are slices to publish, or to keep."""
    settings = snapshot.config.settings
    return settings is not None and (settings.dra.enabled or bool(claimed_units(snapshot)))


async def _follow(node: Node, name: str, kubeconfig: Path | None) -> None:
    """Publish, until DRA is off and no slice is left. The driver's name may change."""
    publisher = _Publisher(node, name, _driver(node.snapshot))
    while not publisher.is_over(node.snapshot):
        if _driver(node.snapshot) != publisher.driver:
            publisher = _Publisher(node, name, _driver(node.snapshot))
        ended = node.wait_until(publisher.is_ended, None)
        await run_until(ended, publisher.informer(kubeconfig).run(publisher, publisher.write))


def _driver(snapshot: Snapshot) -> str:
    assert snapshot.config.settings is not None
    return snapshot.config.settings.dra.driver


class _Publisher:
    """The slices as the server has them, what was sent to it, and what it made of that."""

    def __init__(self, node: Node, name: str, driver: str) -> None:
        self.node, self.name, self.driver = node, name, driver
        self._kept: dict[str, KeptSlice] = {}
        self._answers: dict[str, Answer] = {}
        self._server = ServerAbilities()
        self._owner = ""
        self._changed = asyncio.Event()  # by others
        self._published: tuple[ResourceSlice, ...] | None = None  # all of which is as it shall be
        self._healed_at, self._healing_pauses = -CALM_AFTER, Backoff(*HEAL_PAUSES)
        self._server_name = ""
        self._told: dict[EventKey, SentEvent] = {}
        self._told_code = ""

    def is_over(self, snapshot: Snapshot) -> bool:
        """Whether DRA is off, no claim has a device, and the slices are gone."""
        view = self._view(snapshot)
        return not _is_concerned(snapshot) and (view is None or view == self._published)

    def is_ended(self, snapshot: Snapshot) -> bool:
        """Whether these are no more the slices to keep."""
        return _driver(snapshot) != self.driver or self.is_over(snapshot)

    def informer(self, kubeconfig: Path | None) -> Informer[ApiSlice]:
        """Follows our slices."""
        return Informer(
            kubeconfig,
            SLICES_PATH,
            ApiSlice,
            fields=f"spec.nodeName={self.name},spec.driver={self.driver}",
            lifetime=STREAM_LIFETIME,
            wait=partial(pause, self.node),
        )

    async def on_list(self, client: "ApiClient", objects: list[ApiSlice]) -> None:
        self._server_name, self._server = client.url, ServerAbilities()
        self._kept = {each.metadata.name: _kept(each) for each in objects if self._is_ours(each)}
        self._owner, self._published = "", None

    def on_watch_started(self, client: "ApiClient") -> None:
        """`write` says how it stands."""

    async def on_change(self, client: "ApiClient", event: "Event[ApiSlice]") -> None:
        found = event.object
        if not self._is_ours(found):
            return
        known = self._kept.get(found.metadata.name)
        if known is not None and _is_older(found, known, deleted=event.type == "DELETED"):
            return
        if event.type == "DELETED":
            self._kept.pop(found.metadata.name, None)
            self._owner = ""  # our Node may have gone, too, and be another one now
        else:
            self._kept[found.metadata.name] = _kept(found)
        self._changed.set()

    def on_failure(self, error: ApiServerError) -> float:
        if error.code == NOT_FOUND:  # it has no resource.k8s.io/v1
            needs = "ResourceSlices need resource.k8s.io/v1, which Kubernetes has since 1.34"
            self._report_failure(ApiServerError(f"{error}; {needs}", NOT_FOUND))
            self._published = ()
            return jittered(NOT_SERVED_PAUSE)
        self._report_failure(error)
        return jittered(REFUSED_PAUSE) if error.code in REFUSED_CODES else 0.0

    def _is_ours(self, found: ApiSlice) -> bool:
        return (found.spec.get("nodeName"), found.spec.get("driver")) == (self.name, self.driver)

    async def _read_owner(self, client: "ApiClient") -> None:
        """The UID of our Node. Raises ApiServerError."""
        path = f"{NODES_PATH}/{quote(self.name, safe='')}"
        self._owner = (await client.get(path, ApiNode, metadata_only=True)).metadata.uid

    async def write(self, client: "ApiClient") -> None:
        """Write what differs, whenever something does; for ever."""
        pauses = RequestPauses()
        while True:
            wanted = self._view(self.node.snapshot)
            if wanted is not None and _driver(self.node.snapshot) == self.driver:
                try:
                    await self._write_once(client, wanted)
                except ApiServerError as error:
                    self._report_failure(error)
                    await self._tell(client)
                    seconds = pauses.after_failure(error.code)
                    await pause(self.node, seconds, partial(self._is_wanted_otherwise, wanted))
                    continue
                pauses.reset()
                self._published = wanted
                self._report(wanted)
                await self._tell(client)
            await self._until_changed(wanted)
            await asyncio.sleep(GATHER_PAUSE)

    def _is_wanted_otherwise(self, wanted: tuple[ResourceSlice, ...] | None, snapshot: Snapshot) -> bool:
        return self._view(snapshot) != wanted

    def _view(self, snapshot: Snapshot) -> tuple[ResourceSlice, ...] | None:
        return resource_slices(snapshot, self.name)

    async def _until_changed(self, wanted: tuple[ResourceSlice, ...] | None) -> None:
        """Wait until the view has changed, or others have changed something."""
        await run_until(self.node.wait_until(partial(self._is_wanted_otherwise, wanted), None), self._changed.wait())

    async def _write_once(self, client: "ApiClient", wanted: tuple[ResourceSlice, ...]) -> None:
        """Raises ApiServerError."""
        self._changed.clear()
        if not self._owner:
            await self._read_owner(client)
        await self._ask_about_taints(client, wanted)
        if not self._changes(wanted).is_nothing and wanted == self._published:
            await self._pause_healing(wanted)
        while not (todo := self._changes(wanted)).is_nothing:
            server = self._server
            await self._send(client, publishable(wanted, server), todo)
            if server == self._server:
                break  # what was not done, the stream will show

    def _changes(self, wanted: tuple[ResourceSlice, ...]) -> Changes:
        return changes(publishable(wanted, self._server), self._kept, self._answers, self._owner)

    async def _pause_healing(self, wanted: tuple[ResourceSlice, ...]) -> None:
        """Before what others have changed is written again: the longer, the more often they do."""
        calm = self.node.now() - self._healed_at > CALM_AFTER
        seconds = 0.0 if calm else self._healing_pauses.seconds
        self._healing_pauses.after(well=calm)
        await self.node.wait_until(partial(self._is_wanted_otherwise, wanted), seconds)
        self._healed_at = self.node.now()

    async def _send(self, client: "ApiClient", wanted: tuple[ResourceSlice, ...], todo: Changes) -> None:
        """Deletions, then changes, then what is new. Raises the first ApiServerError, after all was tried."""
        slices = {each.name: each for each in wanted}
        await _at_once(lambda each: self._delete(client, each), todo.obsolete)
        for names in (todo.changed, todo.new):
            await _at_once(lambda name: self._apply(client, slices[name], todo.specs[name]), names)

    async def _delete(self, client: "ApiClient", obsolete: KeptSlice) -> None:
        only = {"preconditions": {"uid": obsolete.uid, "resourceVersion": obsolete.version}}
        body = {"apiVersion": "v1", "kind": "DeleteOptions", **only}
        try:
            await client.send("DELETE", f"{SLICES_PATH}/{quote(obsolete.name, safe='')}", body)
        except ApiServerError as error:
            if error.code not in (NOT_FOUND, CONFLICT):  # it has gone, or has changed: the stream says how it is
                raise
        else:
            self._kept.pop(obsolete.name, None)

    async def _apply(
        self, client: "ApiClient", wanted: ResourceSlice, spec: Mapping[str, Any], *, dry: bool = False
    ) -> None:
        path = f"{SLICES_PATH}/{quote(wanted.name, safe='')}"
        options = {"fieldManager": FIELD_MANAGER, "force": "true", **({"dryRun": "All"} if dry else {})}
        body = manifest(wanted, spec, self._owner)
        try:
            found = await client.send("PATCH", path, body, patch="apply", parameters=options, shape=ApiSlice)
        except ApiServerError as error:
            soft = any(taint.effect == "None" for device in wanted.devices for taint in device.taints)
            if error.code == INVALID and soft and self._server.takes_soft_taints:
                self._server = self._server.but(takes_soft_taints=False)  # an API server before 1.35: without them
                return
            raise
        self._learn(spec, found.spec)
        if not dry:
            self._kept[wanted.name] = _kept(found)
            self._answers[wanted.name] = Answer(spec, found.spec)

    def _learn(self, sent: Mapping[str, Any], kept: Mapping[str, Any]) -> None:
        """Whether the server keeps taints, if it can be seen by this."""
        if any(device.get("taints") for device in sent.get("devices") or ()):
            fields = differing_fields(sent, kept)
            self._server = self._server.but(keeps_taints=not any(".taints" in each for each in fields))

    async def _ask_about_taints(self, client: "ApiClient", wanted: Iterable[ResourceSlice]) -> None:
        """Have the server say, without keeping it, what it would keep of a slice, where that matters and is not known.
        Raises ApiServerError."""
        for each in wanted:
            answer = self._answers.get(each.name)
            dropped = answer is not None and differing_fields(answer.sent, answer.kept)
            for _ in range(2):  # it may refuse soft taints at first
                if self._server.keeps_taints is None and (dropped or withdrawn_devices((each,))):
                    slice = publishable((each,), self._server)[0]
                    await self._apply(client, slice, slice_spec(slice, self._kept.get(each.name), 1), dry=True)
        if self._server.keeps_taints:
            self._answers.clear()  # what it dropped before, it keeps now

    def _report(self, wanted: tuple[ResourceSlice, ...]) -> None:
        """Say how the slices are."""
        soft = self._server.takes_soft_taints
        expected = publishable(wanted, ServerAbilities(takes_soft_taints=soft))
        differing = {
            each.name: fields
            for each in expected
            if (answer := self._answers.get(each.name)) is not None  # what somebody edits meanwhile is not the server's
            and (fields := differing_fields(slice_spec(each, None, 1), answer.kept))
        }
        withdrawn = withdrawn_devices(wanted) if self._server.keeps_taints is False else ()
        differing |= {
            each.name: tuple(f"devices[{name}].taints" for name in names)
            for each in wanted
            if withdrawn and (names := withdrawn_devices((each,)))
        }
        text = f"{format_count(len(wanted), 'ResourceSlice')} of driver {self.driver} published at {self._server_name}"
        if not soft:
            text += "; without taints of effect None, which need Kubernetes 1.35"
        if differing:
            text += self._describe_dropped(differing, withdrawn)
        status = SlicesStatus(
            "failing" if differing else "ok",
            clip(text, MOST_TEXT),
            code="slices-fields-dropped" if differing else "",
            published=tuple(each.name for each in wanted),
            differing=differing,
            withdrawn=withdrawn,
        )
        self.node.apply(StatusChanged(SLICES_PART, status))

    def _describe_dropped(self, differing: Mapping[str, tuple[str, ...]], withdrawn: tuple[str, ...]) -> str:
        fields = list(dict.fromkeys(field for each in differing.values() for field in each))
        gates = dropped_gates(fields)
        text = f"; the API server did not keep {join_first_names(fields, MOST_NAMES)}"
        if gates:
            text += f": switch on its feature {' and '.join(gates)}, which Kubernetes 1.36 has on"
        if withdrawn:
            text += f"; withdrawn because a taint was not kept: {join_first_names(withdrawn, MOST_NAMES)}"
        return text

    def _report_failure(self, error: ApiServerError) -> None:
        """Say why the slices cannot be published; what is known of them stays said."""
        text = f"the ResourceSlices cannot be published: {error}{RIGHTS_ADVICE if error.code == FORBIDDEN else ''}"
        before = self.node.snapshot.statuses.of(SLICES_PART) or SlicesStatus("failing")
        status = before.but(state="failing", text=clip(text, MOST_TEXT), code="slices-not-published")
        self.node.apply(StatusChanged(SLICES_PART, status))

    async def _tell(self, client: "ApiClient") -> None:
        """Send an Event about our Node when the slices come to be wrong, or right again. One that is lost is lost."""
        status = self.node.snapshot.statuses.of(SLICES_PART)
        if status is None or status.code == self._told_code:
            return
        self._told_code = status.code
        reason = EVENT_REASON_BY_CODE[status.code]
        event = NodeEvent(
            devices=("",), type="Warning" if status.code else "Normal", reason=reason, message=status.text
        )
        with suppress(ApiServerError):
            await send_event(client, self.name, event, self._told, self.node.now())


def _kept(found: ApiSlice) -> KeptSlice:
    owners = found.metadata.owner_references or []
    uid = next((each.uid for each in owners if (each.api_version, each.kind) == ("v1", "Node")), "")
    only = uid if len(owners) == 1 else ""
    return KeptSlice(
        name=found.metadata.name,
        uid=found.metadata.uid,
        version=found.metadata.resource_version,
        owner=only,
        spec=found.spec,
    )


def _is_older(found: ApiSlice, known: KeptSlice, *, deleted: bool) -> bool:
    """Whether an event tells nothing new: the answer to our own write may come before it."""
    one, other = found.metadata.resource_version, known.version
    if not (one.isdecimal() and other.isdecimal()):
        return False
    return int(one) < int(other) or (not deleted and one == other)


async def _at_once(send: Callable[[Any], Awaitable[None]], each_of: Iterable[Any]) -> None:
    """Send several requests at a time. Raises the first error, after all were tried."""
    free = asyncio.Semaphore(MAX_PARALLEL_REQUESTS)

    async def one(each: Any) -> None:
        async with free:
            await send(each)

    for result in await asyncio.gather(*(one(each) for each in each_of), return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
