"""The embedded kubelet: registration, device manager and pod-resources of kubelet 1.36, on the same sockets.

What passes here should pass on a node, so nothing is friendlier than kubelet: the calls, their order, the messages and
the files are those observed on 1.36.2, and where nothing was observed those of its source. It can also be slow, die and
misbehave, see `Mood`. It stands for the scheduler too, so far that a pod which asks for a resource that this node never
had is refused; kubelet alone would admit it without devices.
"""

import asyncio
import errno
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import grpc
import msgspec

from gpuplane.kubelet.protocols.deviceplugin_pb2_grpc import add_RegistrationServicer_to_server
from gpuplane.kubelet.protocols.podresources_pb2_grpc import add_PodResourcesListerServicer_to_server
from gpuplane.kubelet.sockets import LONGEST, address, owner
from gpuplane.sandbox.changes import PATIENCE, Changes, to_the_end
from gpuplane.sandbox.kubelet import checkpoint
from gpuplane.sandbox.kubelet.devices import Devices
from gpuplane.sandbox.kubelet.endpoint import PRE_START, Call
from gpuplane.sandbox.kubelet.manager import DeviceManager, Policy
from gpuplane.sandbox.kubelet.podresources import PodResources
from gpuplane.sandbox.kubelet.pods import Pod, Rejected, Running, demand
from gpuplane.sandbox.kubelet.registration import DIAL, Mood, Registration
from gpuplane.sandbox.kubelet.workers import PodWorkers


class Kubelet:
    """`async with Kubelet(root) as kubelet`. `root` is kubelet's directory (/var/lib/kubelet on a node).

    `seed` decides every order that kubelet leaves open; `numa` turns the Topology Manager's policy from none to
    best-effort; `sync` is how many seconds the Node object's figures may lag (10 on a node; 0: not at all). Seconds:
    `dial` for a plugin that registers, `pre_start` for PreStartContainer, `retry` between two tries to create a
    container (13 to 15 on a node). `cdi`: the directory of CDI's specifications, or several with the one that has
    priority last; without one the container runtime does nothing with CDI devices.
    """

    def __init__(
        self,
        root: Path,
        *,
        seed: int = 0,
        numa: bool = False,
        dial: float = DIAL,
        retry: float = 0.2,
        pre_start: float = PRE_START,
        sync: float = 0.0,
        cdi: Path | Sequence[Path] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.root, self.sync = root, sync
        self.changes = Changes()
        self.workers = PodWorkers(self.changes, retry, (cdi,) if isinstance(cdi, Path) else cdi)
        policy = Policy(seed, numa, pre_start, now)
        self.manager = DeviceManager(root / "device-plugins", self.workers.active, self.changes, policy)
        self.workers.manager = self.manager
        self.registration = Registration(self.manager, dial)
        self._node: dict[str, tuple[int, int]] = {}
        self._syncing: asyncio.Task[None] | None = None
        self._server: grpc.aio.Server | None = None

    @property
    def devices(self) -> Devices:
        """The device manager's books."""
        return self.manager.devices

    @property
    def trace(self) -> list[Call]:
        """Every call between kubelet and plugins, in order."""
        return self.manager.trace

    @property
    def pods(self) -> Mapping[str, Running]:
        """The pods that run, by "namespace/name"."""
        return self.workers.pods

    @property
    def failed(self) -> Mapping[str, Rejected]:
        """The pods that were rejected."""
        return self.workers.failed

    @property
    def mood(self) -> Mood:
        """How it misbehaves."""
        return self.registration.mood

    def feel(self, **mood: Any) -> None:
        """Change the mood."""
        self.registration.mood = msgspec.structs.replace(self.mood, **mood)
        self.changes.notify()

    # its life

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except asyncio.CancelledError:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Remove what is left in the directory but the checkpoint, read that, and serve. Raises OSError."""
        await to_the_end(self._start())

    async def _start(self) -> None:
        plugins, resources = self._sockets()
        for path in (plugins, resources):
            _make_room(path)
        for left in plugins.parent.iterdir():
            if left.name != checkpoint.NAME and not left.is_dir():
                left.unlink(missing_ok=True)  # a plugin may take its own away meanwhile
        self.manager.recall()
        self._server = await self._serve(plugins, resources)
        self.workers.take_up()
        self._syncing = asyncio.create_task(self._keep_in_sync())
        self.changes.notify()

    async def stop(self) -> None:
        """End in an orderly way: the sockets are removed."""
        await self.kill()
        for path in self._sockets():
            path.unlink(missing_ok=True)

    async def kill(self) -> None:
        """Die: streams are cut, the sockets stay behind and refuse."""
        await to_the_end(self._kill())

    async def _kill(self) -> None:
        server, self._server = self._server, None
        if self._syncing is not None:
            self._syncing.cancel()
        if server is not None:
            await server.stop(None)
        await self.workers.leave()
        await self.registration.close()

    async def restart(self) -> None:
        """Stop and start. Running pods run on."""
        await self.stop()
        await self.start()

    async def drop_streams(self) -> None:
        """Lose every stream, as by a fault of kubelet's."""
        await self.registration.drop()

    async def _serve(self, *paths: Path) -> grpc.aio.Server:
        """A server at these sockets, which appear when it serves."""
        server = grpc.aio.server()
        add_RegistrationServicer_to_server(self.registration, server)
        add_PodResourcesListerServicer_to_server(
            PodResources(self.manager, self.registration, self.workers.active), server
        )
        private = {path.with_name(f".{secrets.token_hex(3)}"): path for path in paths}
        for path in private:
            try:
                server.add_insecure_port(address(path))
            except RuntimeError:
                raise OSError(errno.EACCES, "no socket can be made here", os.fspath(path.parent)) from None
        await server.start()
        for path, public in private.items():
            path.rename(public)
        return server

    def _sockets(self) -> tuple[Path, Path]:
        return self.root / "device-plugins/kubelet.sock", self.root / "pod-resources/kubelet.sock"

    # pods

    async def run(self, pod: Pod) -> Running:
        """Admit a pod and start its containers. Raises Rejected, as kubelet would say it, and ValueError for a pod that
        is there."""
        return await self.workers.run(pod)

    async def end(self, key: str) -> None:
        """A pod ("namespace/name") ends. Its entry stays in the books until the next allocation needs it."""
        await self.workers.end(key)

    def crash(self, key: str, container: str = "main") -> None:
        """A container ends and is created anew, with the devices that it has."""
        self.workers.crash(key, container)

    # what is seen of it

    def capacity(self, resource: str) -> tuple[int, int]:
        """(capacity, allocatable) of a resource, as the device manager knows it now."""
        return self.manager.figures().get(resource, (0, 0))

    def node(self) -> dict[str, tuple[int, int]]:
        """resource → (capacity, allocatable) in the Node object. A resource that was there once stays, with zeros."""
        if not self.sync:
            self._publish()
        return dict(self._node)

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
        node = self.node()
        return [
            f"Insufficient {resource}"
            for resource, count in demand(pod).items()
            if count > node.get(resource, (0, 0))[1] - taken.get(resource, 0)
        ]

    def health(self, key: str) -> dict[str, dict[str, list[tuple[str, str]]]]:
        """allocatedResourcesStatus of a pod: container → resource → (id, Healthy or Unhealthy). Init containers have
        none."""
        running = self.pods[key]
        return {
            container.name: {
                resource: [(id, self.devices.health(resource, id)) for id in ids]
                for resource, ids in self.devices.held(running.pod.uid, container.name).items()
            }
            for container in running.pod.containers
        }

    def _publish(self) -> None:
        if self._server is not None:
            self._node = dict.fromkeys(self._node, (0, 0)) | self.manager.figures()

    async def _keep_in_sync(self) -> None:
        while True:
            self._publish()
            if self.sync:
                self.changes.notify()
                await asyncio.sleep(self.sync)
            else:
                await self.changes.next()

    # waiting

    async def until(self, ready: Callable[[], bool], deadline: float = PATIENCE) -> None:
        """Wait for something to become true of this kubelet. Raises TimeoutError."""
        await self.changes.until(ready, deadline)

    async def until_capacity(self, resource: str, capacity: int, allocatable: int, deadline: float = PATIENCE) -> None:
        """Wait until the device manager has these figures. Raises TimeoutError, which says what it has."""
        try:
            await self.until(lambda: self.capacity(resource) == (capacity, allocatable), deadline)
        except TimeoutError:
            shown = f"shows {self.capacity(resource)} of {resource}, not {(capacity, allocatable)}"
            raise TimeoutError(f"after {deadline:g} s the node {shown}: {self.view()}") from None


def _make_room(path: Path) -> None:
    """The directory of a socket that can be made. Raises OSError."""
    if len(os.fsencode(path)) > LONGEST:
        problem = f"too long for a unix socket, which has {LONGEST} bytes: use a shorter directory"
        raise OSError(errno.ENAMETOOLONG, problem, os.fspath(path))
    path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    if other := owner(path):
        raise FileExistsError(errno.EADDRINUSE, f"a kubelet runs there, {other}", os.fspath(path))
