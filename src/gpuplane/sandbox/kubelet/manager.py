"""The device manager: books, plugins and checkpoint together (pkg/kubelet/cm/devicemanager/manager.go).

It knows containers, not pods: kubelet tells which pods are active, and asks for one container after the other. Books
and checkpoint change here alone.
"""

import random
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import msgspec

from gpuplane import files
from gpuplane.kubelet.protocols import deviceplugin_pb2 as pb
from gpuplane.sandbox.changes import Changes
from gpuplane.sandbox.kubelet import checkpoint
from gpuplane.sandbox.kubelet.devices import Devices, Place, Refusal, shuffled
from gpuplane.sandbox.kubelet.endpoint import PRE_START, Call, Endpoint
from gpuplane.sandbox.kubelet.pods import Container, Pod, together

Answers = dict[str, pb.ContainerAllocateResponse]
"""resource → what Allocate answered."""


class Policy(msgspec.Struct, frozen=True):
    """What of a device manager can be set."""

    seed: int = 0  # of every order that kubelet leaves open
    numa: bool = False  # the Topology Manager's policy: best-effort, or none
    pre_start: float = PRE_START
    now: Callable[[], float] = time.monotonic


class Gap(msgspec.Struct, frozen=True):
    """A time in which a resource had no plugin: from the end of a stream to the next list, in seconds of `now`."""

    resource: str
    began: float
    ended: float


class DeviceManager:
    """`active` tells the pods that run or are being admitted."""

    def __init__(
        self, directory: Path, active: Callable[[], Collection[Pod]], changes: Changes, policy: Policy
    ) -> None:
        self.directory, self.changes, self.policy, self._active = directory, changes, policy, active
        self.devices, self.endpoints, self.trace = Devices(), dict[str, Endpoint](), list[Call]()
        self.lists = 0  # answers of pod-resources so far
        self.heard: Callable[[str], None] = lambda resource: None  # called with the resource of each list that comes
        self.gaps: list[Gap] = []  # those that are over
        self._gone: dict[str, float] = {}  # since when the plugins are gone
        self._random = random.Random(policy.seed)  # noqa: S311

    def recall(self) -> None:
        """After a start the registered resources are known, with no device until they register again."""
        self.endpoints.clear()
        try:
            self.devices = checkpoint.decode(files.read(self.directory / checkpoint.NAME))
        except (FileNotFoundError, checkpoint.Corrupt):
            self.devices = Devices()
        for resource in self.devices.resources:
            self.devices.disconnected(resource, self.policy.now())
        self.changes.notify()

    def enter(self, call: Call) -> None:
        """Enter a call in the trace."""
        self.trace.append(call)
        self.changes.notify()

    # what plugins say

    def connected(self, endpoint: Endpoint) -> None:
        """A plugin is registered; the newest has its resource."""
        self.endpoints[endpoint.resource] = endpoint
        self.devices.connected(endpoint.resource)
        self.changes.notify()

    def listed(self, resource: str, response: pb.ListAndWatchResponse) -> None:
        """A list came, by any stream of the resource."""
        self.devices.listed(
            resource, ((d.ID, d.health, tuple(n.ID for n in d.topology.nodes)) for d in response.devices)
        )
        if (began := self._gone.pop(resource, None)) is not None:
            self.gaps.append(Gap(resource, began, self.policy.now()))
        self.heard(resource)
        self._remember()
        self.changes.notify()

    def disconnected(self, resource: str) -> None:
        """The plugin that registered last counts as gone."""
        self.devices.disconnected(resource, self.policy.now())
        self._gone.setdefault(resource, self.policy.now())
        self.changes.notify()

    # what kubelet asks

    def figures(self) -> dict[str, tuple[int, int]]:
        """resource → (capacity, allocatable), now. Resources gone for too long go here (GetCapacity)."""
        if gone := self.devices.expire(self.policy.now()):
            for resource in gone:
                self.endpoints.pop(resource, None)
            self._remember()
        return self.devices.figures()

    def free_the_gone(self) -> None:
        """Free what pods held that are no longer active. Kubelet does so when an allocation, or a list, needs it."""
        self.devices.keep({pod.uid for pod in self._active()})

    async def allocate(self, uid: str, container: Container, reusable: dict[str, set[str]]) -> Answers:
        """One Allocate for each of a container's resources that plugins have. Raises Refusal.

        What was given before a refusal stays in the books until the next allocation finds that the pod is not active.
        """
        answers: Answers = {}
        for resource, wanted in container.requests.items():
            if not self.devices.serves(resource):
                continue
            if not answers:
                self.free_the_gone()
            ids = await self._choose(resource, wanted, reusable.get(resource, set()))
            if ids:
                answers[resource] = await self._live(resource).allocate(ids)
                self.devices.take(Place(uid, container.name, resource), ids, answers[resource])
        if answers:
            self._remember()
            self.changes.notify()
        return answers

    async def prepare(self, uid: str, container: Container) -> None:
        """PreStartContainer for each resource, where its plugin asked for it. Raises Refusal.

        After kubelet's start nobody knows what a plugin asked for until it registers: then it is not called.
        """
        for resource, ids in self.devices.held(uid, container.name).items():
            if resource not in self.devices.resources:
                raise Refusal(f"endpoint not found in cache for a registered resource: {resource}")
            if (endpoint := self.endpoints.get(resource)) and endpoint.options.pre_start_required:
                await self._live(resource).pre_start(self._in_no_order(ids))

    def answer(self, uid: str, container: str) -> pb.ContainerAllocateResponse:
        """What the plugins answered for a container when it was admitted, from the books: nobody is asked again."""
        return together(
            held.answer
            for place, held in self.devices.allocated.items()
            if (place.uid, place.container) == (uid, container)
        )

    async def _choose(self, resource: str, wanted: int, reusable: Collection[str]) -> list[str]:
        choice = self.devices.choose(resource, wanted, reusable, self._random, self.policy.numa)
        advice: Sequence[str] = ()
        if not choice.settled:
            asked = self._in_no_order((*choice.taken, *choice.open))
            advice = await self._live(resource).prefer(asked, self._in_no_order(choice.taken), wanted)
        return choice.settle(advice, self._random)

    def _live(self, resource: str) -> Endpoint:
        known = self.devices.resources.get(resource)
        if known is not None and known.stopped is not None:
            raise Refusal(f"endpoint {resource} has been stopped")
        endpoint = self.endpoints.get(resource)
        if endpoint is None:
            raise Refusal(f"unknown Device Plugin {resource}")
        return endpoint

    def _in_no_order(self, ids: Collection[str]) -> list[str]:
        return shuffled(ids, self._random)

    def _remember(self) -> None:
        aside = self.directory / f".{checkpoint.NAME}"
        aside.write_bytes(checkpoint.encode(self.devices))
        aside.replace(self.directory / checkpoint.NAME)
