"""The embedded kubelet: registration, device manager and pod-resources of kubelet 1.36, on the same sockets.

What passes here should pass on a node, so nothing is friendlier than kubelet: the calls, their order, the messages and
the files are those observed on 1.36.2. It can also be slow, die and misbehave, see `Mood`.
"""

import asyncio
import os
import random
import re
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self, TypeAlias

import grpc
import msgspec

from gpuplane.kubelet.protocols import deviceplugin_pb2 as pb
from gpuplane.kubelet.protocols.deviceplugin_pb2_grpc import RegistrationServicer, add_RegistrationServicer_to_server
from gpuplane.kubelet.protocols.podresources_pb2_grpc import add_PodResourcesListerServicer_to_server
from gpuplane.sandbox.kubelet import checkpoint
from gpuplane.sandbox.kubelet.devices import Devices, Refusal, pick, shuffled
from gpuplane.sandbox.kubelet.endpoint import Call, Endpoint
from gpuplane.sandbox.kubelet.podresources import PodResources
from gpuplane.sandbox.kubelet.pods import Container, Pod, Rejected, Running

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

VERSION = "v1beta1"
DIAL = 10.0
"""Seconds that kubelet tries to reach a plugin that registers."""


class Mood(msgspec.Struct):
    """How this kubelet misbehaves."""

    refuses: str = ""  # Register is answered by this error
    delay: float = 0.0  # seconds before Register is answered
    opens: bool = True  # opens ListAndWatch after Register
    reads: bool = True  # reads the lists that are sent
    lists: bool = True  # answers pod-resources


class Kubelet(RegistrationServicer):
    """`async with Kubelet(root) as kubelet`. `root` is kubelet's directory (/var/lib/kubelet on a node)."""

    def __init__(
        self, root: Path, *, seed: int = 0, numa: bool = False, dial: float = DIAL, retry: float = 0.2
    ) -> None:
        self.root, self.dial, self.retry = root, dial, retry
        self.numa = numa  # the Topology Manager's policy: best-effort, or none
        self.mood, self.trace = Mood(), list[Call]()
        self.devices, self.pods = Devices(), dict[str, Running]()
        self.endpoints: dict[str, Endpoint] = {}
        self._answers: checkpoint.Answers = {}
        self._random, self._admitting = random.Random(seed), asyncio.Lock()  # noqa: S311
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._server: grpc.aio.Server | None = None

    # its life

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Remove what is left in the directory but the checkpoint, read that, and serve. Raises OSError."""
        plugins, resources = self.root / "device-plugins", self.root / "pod-resources"
        for directory in (plugins, resources):
            directory.mkdir(parents=True, exist_ok=True)
            if _answers(directory / "kubelet.sock"):
                raise FileExistsError(f"a kubelet that runs serves {directory / 'kubelet.sock'}")
            for left in directory.iterdir():
                if left.name != checkpoint.NAME and not left.is_dir():
                    left.unlink()
        self._recall()
        self._server = grpc.aio.server()
        add_RegistrationServicer_to_server(self, self._server)
        add_PodResourcesListerServicer_to_server(PodResources(self), self._server)
        private = {
            directory / f".{secrets.token_hex(3)}": directory / "kubelet.sock" for directory in (plugins, resources)
        }
        for path in private:
            self._server.add_insecure_port(f"unix:{path}")
        await self._server.start()
        for path, public in private.items():
            path.rename(public)
        self._notify()

    async def stop(self) -> None:
        """End in an orderly way: the sockets are removed."""
        await self._end()
        for directory in ("device-plugins", "pod-resources"):
            (self.root / directory / "kubelet.sock").unlink(missing_ok=True)

    async def kill(self) -> None:
        """Die: streams are cut, the sockets stay behind and refuse."""
        await self._end()

    async def restart(self) -> None:
        """Stop and start. Running pods run on."""
        await self.stop()
        await self.start()

    async def _end(self) -> None:
        server, self._server = self._server, None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for endpoint in self.endpoints.values():
            await endpoint.channel.close()
        self.endpoints.clear()
        if server is not None:
            await server.stop(None)

    def _recall(self) -> None:
        """After a start the registered resources are known, with no device until they register again."""
        try:
            self.devices, self._answers = checkpoint.decode((self._plugins / checkpoint.NAME).read_bytes())
        except (FileNotFoundError, checkpoint.Corrupt):
            self.devices, self._answers = Devices(), {}
        for known in self.devices.resources.values():
            known.stopped = time.monotonic()

    @property
    def _plugins(self) -> Path:
        return self.root / "device-plugins"

    # registration

    async def Register(self, request: pb.RegisterRequest, context: Context) -> pb.Empty:
        self.trace.append(Call("Register", request.resource_name))
        await asyncio.sleep(self.mood.delay)
        if problem := self.mood.refuses or unacceptable(request):
            await context.abort(grpc.StatusCode.UNKNOWN, problem)
        endpoint = Endpoint(request.resource_name, self._plugins / Path(request.endpoint).name, self.trace)
        try:
            await endpoint.connect(self.dial)
        except Refusal as refusal:
            await context.abort(grpc.StatusCode.UNKNOWN, str(refusal))
        self.endpoints[request.resource_name] = endpoint
        if self.mood.opens:
            self._spawn(self._follow(endpoint))
        return pb.Empty()

    async def _follow(self, endpoint: Endpoint) -> None:
        """Read a plugin's list until its stream ends; whichever it is, its end ends the resource's health."""
        self.trace.append(Call("ListAndWatch", endpoint.resource))
        stream = endpoint.plugin.ListAndWatch(pb.Empty())
        try:
            async for response in stream:
                while not self.mood.reads:
                    await self._changed.wait()
                devices = ((d.ID, d.health, tuple(n.ID for n in d.topology.nodes)) for d in response.devices)
                self.devices.listed(endpoint.resource, devices)
                known = self.devices.resources[endpoint.resource]
                if self.endpoints.get(endpoint.resource) is endpoint:
                    known.stopped = None
                self._remember()
                self._notify()
        except grpc.aio.AioRpcError:
            pass
        finally:
            stream.cancel()
            self.devices.disconnected(endpoint.resource, time.monotonic())
            self._notify()
            await endpoint.channel.close()

    async def drop_streams(self) -> None:
        """Lose every stream, as by a fault of kubelet's."""
        for endpoint in self.endpoints.values():
            await endpoint.channel.close()

    # pods

    async def run(self, pod: Pod) -> Running:
        """Admit a pod and start its containers. Raises Rejected, as kubelet would say it."""
        async with self._admitting:
            self._clean()
            running = Running(pod)
            reusable: dict[str, list[str]] = {}
            try:
                for container in pod.all():
                    running.answers[container.name] = await self._allocate(pod, container, reusable)
            except Refusal as refusal:
                self.devices.free(pod.uid)
                message = f"Allocate failed due to {refusal}, which is unexpected"
                raise Rejected("UnexpectedAdmissionError", message) from None
            finally:
                self._remember()
            self.pods[pod.key] = running
            self._notify()
        self._spawn(self._start(running))
        return running

    async def _allocate(
        self, pod: Pod, container: Container, reusable: dict[str, list[str]]
    ) -> dict[str, pb.ContainerAllocateResponse]:
        """One Allocate for each resource of a container. `reusable`: what the pod's init containers have had."""
        answers = {}
        first_run = container in pod.init and container.name not in pod.sidecars
        for resource, wanted in container.requests.items():
            if not wanted:
                continue
            if resource not in self.devices.resources:
                raise Rejected(f"OutOf{resource}", f"Node didn't have enough resource: {resource}, requested: {wanted}")
            left = reusable.setdefault(resource, [])
            ids = await self._choose(resource, wanted, left)
            answers[resource] = await self._endpoint(resource).allocate(ids)
            self.devices.take(pod.uid, container.name, resource, ids)
            self._answers[pod.uid, container.name, resource] = answers[resource]
            reusable[resource] = [*left, *ids] if first_run else [each for each in left if each not in ids]
        return answers

    async def _choose(self, resource: str, wanted: int, reusable: list[str]) -> list[str]:
        """Which ids: what can be reused, then by the plugin's advice within the NUMA nodes that fit, then any."""
        first, free = self.devices.available(resource, wanted, reusable)
        endpoint = self._endpoint(resource)
        order = shuffled(free, self._random)
        missing = wanted - len(first)
        near, far, nowhere = self.devices.affinity(
            resource, order, self.devices.hint(resource, order, missing) if self.numa else None
        )
        if 0 < missing < len(near):
            advice = await endpoint.prefer(near, first, wanted)
            return pick(first, wanted, [each for each in advice if each in near], near)
        ids = pick(first, wanted, near)
        if len(ids) < wanted:
            advice = await endpoint.prefer([*ids, *(each for each in order if each not in ids)], ids, wanted)
            ids = pick(ids, wanted, [each for each in advice if each in free], far, nowhere)
        return ids

    def _endpoint(self, resource: str) -> Endpoint:
        endpoint = self.endpoints.get(resource)
        if endpoint is None:
            raise Refusal(f"unknown Device Plugin {resource}")
        if self.devices.resources[resource].stopped is not None:
            raise Refusal(f"endpoint {resource} has been stopped")
        return endpoint

    async def _start(self, running: Running) -> None:
        """Create the containers one after the other; one that cannot be waits, and is tried again."""
        for container in running.pod.all():
            while self.pods.get(running.pod.key) is running and container.name not in running.started:
                try:
                    for resource, ids in self.devices.held(running.pod.uid, container.name).items():
                        await self._endpoint(resource).pre_start(shuffled(ids, self._random))
                except Refusal as refusal:
                    running.waiting[container.name] = f"CreateContainerConfigError: {refusal}"
                    self._notify()
                    await asyncio.sleep(self.retry)
                else:
                    running.waiting.pop(container.name, None)
                    running.started.add(container.name)
                    self._notify()

    async def end(self, key: str) -> None:
        """A pod ("namespace/name") ends. Its entry stays in the books until the next allocation needs it."""
        del self.pods[key]
        self._notify()

    def _clean(self) -> None:
        active = {running.pod.uid for running in self.pods.values()}
        for uid in self.devices.allocated.keys() - active:
            self.devices.free(uid)

    def _remember(self) -> None:
        aside = self._plugins / f".{checkpoint.NAME}"
        aside.write_bytes(checkpoint.encode(self.devices, self._answers))
        aside.replace(self._plugins / checkpoint.NAME)

    # what a node shows

    def capacity(self, resource: str) -> tuple[int, int]:
        """(capacity, allocatable) of a resource, as the device manager knows it now."""
        return self.devices.figures(time.monotonic()).get(resource, (0, 0))

    def view(self) -> dict[str, dict[str, str]]:
        """resource → id → health, of every resource that has devices."""
        return {
            name: dict.fromkeys(known.healthy, "Healthy") | dict.fromkeys(known.unhealthy, "Unhealthy")
            for name, known in self.devices.resources.items()
            if known.healthy or known.unhealthy
        }

    def insufficient(self, pod: Pod) -> list[str]:
        """What the scheduler would say of a pod: "Insufficient nvidia.com/gpu" for each resource that lacks."""
        taken: dict[str, int] = {}
        for running in self.pods.values():
            for resource, count in demand(running.pod).items():
                taken[resource] = taken.get(resource, 0) + count
        return [
            f"Insufficient {resource}"
            for resource, count in demand(pod).items()
            if count > self.capacity(resource)[1] - taken.get(resource, 0)
        ]

    def health(self, key: str) -> dict[str, dict[str, list[tuple[str, str]]]]:
        """allocatedResourcesStatus of a pod: container → resource → (id, Healthy, Unhealthy or Unknown)."""
        view = self.view()
        running = self.pods[key]
        return {
            container.name: {
                resource: [(id, view.get(resource, {}).get(id, "Unknown")) for id in ids]
                for resource, ids in self.devices.held(running.pod.uid, container.name).items()
            }
            for container in running.pod.all()
        }

    # waiting

    async def until(self, ready: Callable[[], bool], deadline: float = 10.0) -> None:
        """Wait for something to become true of this kubelet. Raises TimeoutError."""
        async with asyncio.timeout(deadline):
            while not ready():
                await self._changed.wait()

    async def until_capacity(self, resource: str, capacity: int, allocatable: int, deadline: float = 10.0) -> None:
        """Wait until the node would show these figures. Raises TimeoutError, which says what it shows."""
        try:
            await self.until(lambda: self.capacity(resource) == (capacity, allocatable), deadline)
        except TimeoutError:
            shown = f"shows {self.capacity(resource)} of {resource}, not {(capacity, allocatable)}"
            raise TimeoutError(f"after {deadline:g} s the node {shown}: {self.view()}") from None

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def feel(self, **mood: Any) -> None:
        """Change the mood."""
        self.mood = msgspec.structs.replace(self.mood, **mood)
        self._notify()

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def demand(pod: Pod) -> Mapping[str, int]:
    """What the scheduler counts for a pod: the sum of what lasts, or more where an init container needs more."""
    lasting: dict[str, int] = {}
    for container in pod.lasting():
        for resource, count in container.requests.items():
            lasting[resource] = lasting.get(resource, 0) + count
    for container in pod.init:
        for resource, count in container.requests.items():
            lasting[resource] = max(lasting.get(resource, 0), count)
    return {resource: count for resource, count in lasting.items() if count}


def unacceptable(request: pb.RegisterRequest) -> str:
    """Why kubelet refuses a registration at once; "" where it does not (plugin/v1beta1/server.go)."""
    if request.version != VERSION:
        supported = f'Supported version is ["{VERSION}"]'
        return f'requested API version "{request.version}" is not supported by kubelet. {supported}'
    domain, slash, name = request.resource_name.partition("/")
    label = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
    qualified = slash and re.fullmatch(rf"{label}(\.{label})*", domain) and len(domain) <= 253
    named = re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", name) and len(name) <= 63
    native = domain == "kubernetes.io" or domain.endswith(".kubernetes.io") or domain.startswith("requests.")
    return "" if qualified and named and not native else f'the ResourceName "{request.resource_name}" is invalid'


def _answers(path: Path) -> bool:
    """Whether somebody serves a socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(os.fspath(path)) == 0
