"""The device manager: books, plugins and checkpoint together (pkg/kubelet/cm/devicemanager/manager.go).

It knows containers, not pods: kubelet tells which pods are active, and asks for one container after the other. Books
and checkpoint change here alone.
"""

import random
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import msgspec

from gpuplane.base import files
from gpuplane.node.kubelet.protocols import deviceplugin_pb2 as pb
from gpuplane.sandbox.changes import Changes
from gpuplane.sandbox.kubelet import checkpoint
from gpuplane.sandbox.kubelet.devices import AllocationKey, Devices, KubeletError, shuffled
from gpuplane.sandbox.kubelet.endpoint import PRE_START_TIMEOUT, Call, Endpoint
from gpuplane.sandbox.kubelet.pods import Container, Pod, merge_responses

MAX_TRACE = 100_000
"""Calls that are remembered: half of them are forgotten then."""
Responses = dict[str, pb.ContainerAllocateResponse]
"""resource → what Allocate answered."""


class ManagerOptions(msgspec.Struct, frozen=True):
    """What of a device manager can be set."""

    seed: int = 0  # of every order that kubelet leaves open
    align_numa: bool = False  # the Topology Manager's policy: best-effort, or none
    pre_start_timeout: float = PRE_START_TIMEOUT
    now: Callable[[], float] = time.monotonic


class PluginGap(msgspec.Struct, frozen=True):
    """A time in which a resource had no plugin: from the end of a stream to the next list, in seconds of `now`."""

    resource: str
    started_at: float
    ended_at: float


class DeviceManager:
    """`active` tells the pods that run or are being admitted."""

    def __init__(
        self, directory: Path, active: Callable[[], Collection[Pod]], changes: Changes, options: ManagerOptions
    ) -> None:
        self.directory, self.changes, self.options, self._active = directory, changes, options, active
        self.devices, self.endpoints, self.trace = Devices(), dict[str, Endpoint](), list[Call]()
        self.list_count = 0  # answers of pod-resources so far
        self.on_list: Callable[[str], None] = lambda resource: None  # called with the resource of each list that comes
        self.gaps: list[PluginGap] = []  # those that are over
        self._gone_since: dict[str, float] = {}  # since when the plugins are gone
        self._random = random.Random(options.seed)  # noqa: S311

    def load_checkpoint(self) -> None:
        """After a start the registered resources are known, with no device until they register again."""
        self.endpoints.clear()
        try:
            self.devices = checkpoint.decode(files.read(self.directory / checkpoint.CHECKPOINT_FILE_NAME))
        except (FileNotFoundError, checkpoint.CorruptCheckpoint):
            self.devices = Devices()
        for resource in self.devices.resources:
            self.devices.mark_disconnected(resource, self.options.now())
        self.changes.notify()

    def record_call(self, call: Call) -> None:
        """Enter a call in the trace."""
        if len(self.trace) >= MAX_TRACE:
            del self.trace[: MAX_TRACE // 2]
        self.trace.append(call)
        self.changes.notify()

    # what plugins say

    def plugin_connected(self, endpoint: Endpoint) -> None:
        """A plugin is registered; the newest has its resource."""
        self.endpoints[endpoint.resource] = endpoint
        self.devices.mark_connected(endpoint.resource)
        self.changes.notify()

    def list_received(self, resource: str, response: pb.ListAndWatchResponse) -> None:
        """A list came, by any stream of the resource."""
        self.devices.update_list(
            resource, ((d.ID, d.health, tuple(n.ID for n in d.topology.nodes)) for d in response.devices)
        )
        if (began := self._gone_since.pop(resource, None)) is not None:
            self.gaps.append(PluginGap(resource, began, self.options.now()))
        self.on_list(resource)
        self._write_checkpoint()
        self.changes.notify()

    def plugin_disconnected(self, resource: str) -> None:
        """The plugin that registered last counts as gone."""
        self.devices.mark_disconnected(resource, self.options.now())
        self._gone_since.setdefault(resource, self.options.now())
        self.changes.notify()

    # what kubelet asks

    def capacities(self) -> dict[str, tuple[int, int]]:
        """resource → (capacity, allocatable), now. Resources gone for too long go here (GetCapacity)."""
        if gone := self.devices.remove_expired(self.options.now()):
            for resource in gone:
                self.endpoints.pop(resource, None)
            self._write_checkpoint()
        return self.devices.capacities()

    def free_ended_pods(self) -> None:
        """Free what pods held that are no longer active. Kubelet does so when an allocation, or a list, needs it."""
        self.devices.free_others({pod.uid for pod in self._active()})

    async def allocate(self, uid: str, container: Container, reusable: dict[str, set[str]]) -> Responses:
        """One Allocate for each of a container's resources that plugins have. Raises KubeletError.

        What was given before a refusal stays in the books until the next allocation finds that the pod is not active.
        """
        answers: Responses = {}
        for resource, wanted in container.requests.items():
            if not self.devices.is_plugin_resource(resource):
                continue
            if not answers:
                self.free_ended_pods()
            ids = await self._choose(resource, wanted, reusable.get(resource, set()))
            if ids:
                answers[resource] = await self._live_endpoint(resource).allocate(ids)
                self.devices.record_allocation(AllocationKey(uid, container.name, resource), ids, answers[resource])
        if answers:
            self._write_checkpoint()
            self.changes.notify()
        return answers

    async def pre_start(self, uid: str, container: Container) -> None:
        """PreStartContainer for each resource, where its plugin asked for it. Raises KubeletError.

        After kubelet's start nobody knows what a plugin asked for until it registers: then it is not called.
        """
        for resource, ids in self.devices.held_by(uid, container.name).items():
            if resource not in self.devices.resources:
                raise KubeletError(f"endpoint not found in cache for a registered resource: {resource}")
            if (endpoint := self.endpoints.get(resource)) and endpoint.options.pre_start_required:
                await self._live_endpoint(resource).pre_start(self._shuffled(ids))

    def response_for(self, uid: str, container: str) -> pb.ContainerAllocateResponse:
        """What the plugins answered for a container when it was admitted, from the books: nobody is asked again."""
        return merge_responses(
            held.response
            for place, held in self.devices.allocated.items()
            if (place.uid, place.container) == (uid, container)
        )

    async def _choose(self, resource: str, wanted: int, reusable: Collection[str]) -> list[str]:
        choice = self.devices.choose(resource, wanted, reusable, self._random, self.options.align_numa)
        advice: Sequence[str] = ()
        if not choice.is_complete:
            asked = self._shuffled((*choice.taken, *choice.candidates))
            advice = await self._live_endpoint(resource).get_preferred_allocation(
                asked, self._shuffled(choice.taken), wanted
            )
        return choice.complete(advice, self._random)

    def _live_endpoint(self, resource: str) -> Endpoint:
        known = self.devices.resources.get(resource)
        if known is not None and known.stopped_at is not None:
            raise KubeletError(f"endpoint {resource} has been stopped")
        endpoint = self.endpoints.get(resource)
        if endpoint is None:
            raise KubeletError(f"unknown Device Plugin {resource}")
        return endpoint

    def _shuffled(self, ids: Collection[str]) -> list[str]:
        return shuffled(ids, self._random)

    def _write_checkpoint(self) -> None:
        aside = self.directory / f".{checkpoint.CHECKPOINT_FILE_NAME}"
        aside.write_bytes(checkpoint.encode(self.devices))
        aside.replace(self.directory / checkpoint.CHECKPOINT_FILE_NAME)
