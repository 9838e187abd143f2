"""The embedded kubelet: device manager, DRA manager and pod-resources of kubelet 1.36, on the same sockets.

What passes here should pass on a node, so nothing is friendlier than kubelet: the calls, their order, the messages and
the files are those observed on 1.36.2, and where nothing was observed those of its source. It can also be slow, die and
misbehave (`Failures`). It does one thing that is the scheduler's: a pod that requests a resource that this node never
had is refused; kubelet alone would admit it without devices.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import grpc
import msgspec

from gpuplane.node.kubelet.protocols.deviceplugin_pb2_grpc import add_RegistrationServicer_to_server
from gpuplane.node.kubelet.protocols.podresources_pb2_grpc import add_PodResourcesListerServicer_to_server
from gpuplane.sandbox.changes import DEFAULT_TIMEOUT_SECONDS, Changes, finish_despite_cancellation
from gpuplane.sandbox.kubelet import checkpoint
from gpuplane.sandbox.kubelet.devices import Devices
from gpuplane.sandbox.kubelet.dra.manager import DraManager, DraOptions
from gpuplane.sandbox.kubelet.dra.source import ClaimSource, GivenClaims
from gpuplane.sandbox.kubelet.dra.times import KUBELET_TIMES, DraTimes
from gpuplane.sandbox.kubelet.endpoint import PRE_START_TIMEOUT, Call
from gpuplane.sandbox.kubelet.manager import DeviceManager, ManagerOptions
from gpuplane.sandbox.kubelet.podresources import PodResources
from gpuplane.sandbox.kubelet.pods import Pod, PodRejected, ResourceHealth, RunningPod, requested_resources
from gpuplane.sandbox.kubelet.registration import DIAL_TIMEOUT, Failures, Registration
from gpuplane.sandbox.kubelet.serving import prepare_socket_path, start_server
from gpuplane.sandbox.kubelet.workers import PodWorkers


class Kubelet:
    """`async with Kubelet(root) as kubelet`. `root` is kubelet's directory (/var/lib/kubelet on a node).

    `seed` decides every order that kubelet leaves open. `align_numa` sets the Topology Manager's policy to best-effort
    instead of none. `node_sync_period`: seconds by which the Node object may be late (10 on a node; 0: none). Seconds
    also: `dial_timeout` for a plugin that registers, `pre_start_timeout` for PreStartContainer, `retry_interval`
    between two tries to create a container (13 to 15 on a node). `cdi_dirs`: the directory of CDI specifications, or
    several, with the one that has priority last; without one the container runtime ignores CDI devices. `claims`: an
    API server that has the claims of pods (`ApiClaims`), or what gives them instead of one (`GivenClaims`, also where
    nothing is said). `dra_times`: how long the DRA manager waits for what.
    """

    def __init__(
        self,
        root: Path,
        *,
        seed: int = 0,
        align_numa: bool = False,
        dial_timeout: float = DIAL_TIMEOUT,
        retry_interval: float = 0.2,
        pre_start_timeout: float = PRE_START_TIMEOUT,
        node_sync_period: float = 0.0,
        cdi_dirs: Path | Sequence[Path] | None = None,
        claims: ClaimSource | None = None,
        dra_times: DraTimes = KUBELET_TIMES,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.root, self.node_sync_period = root, node_sync_period
        self.changes = Changes()
        self.workers = PodWorkers(self.changes, retry_interval, (cdi_dirs,) if isinstance(cdi_dirs, Path) else cdi_dirs)
        policy = ManagerOptions(seed, align_numa, pre_start_timeout, now)
        self.manager = DeviceManager(root / "device-plugins", self.workers.active_pods, self.changes, policy)
        options = DraOptions(claims or GivenClaims(), dra_times, seed, now)
        self.dra = DraManager(root, self._known_pods, self.changes, self.manager.record_call, options)
        self.workers.use_managers(self.manager, self.dra)
        self.registration = Registration(self.manager, dial_timeout)
        self._node_capacities: dict[str, tuple[int, int]] = {}
        self._sync_task: asyncio.Task[None] | None = None
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
    def pods(self) -> Mapping[str, RunningPod]:
        """The pods that run, by "namespace/name"."""
        return self.workers.pods

    @property
    def rejected_pods(self) -> Mapping[str, PodRejected]:
        """The pods that were rejected."""
        return self.workers.rejected_pods

    @property
    def failures(self) -> Failures:
        """The failures that are injected now."""
        return self.registration.failures

    def inject(self, **failures: Any) -> None:
        """Inject these failures, by the names of `Failures`."""
        self.registration.failures = msgspec.structs.replace(self.failures, **failures)
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
        await finish_despite_cancellation(self._start())

    async def _start(self) -> None:
        plugins, resources = self._socket_paths()
        for path in (plugins, resources):
            prepare_socket_path(path)
        for left in plugins.parent.iterdir():
            if left.name != checkpoint.CHECKPOINT_FILE_NAME and not left.is_dir():
                left.unlink(missing_ok=True)  # a plugin may take its own away meanwhile
        self.manager.load_checkpoint()
        self.dra.load_checkpoint()
        self._server = await start_server((plugins, resources), self._add_services)
        self.dra.start()
        self.workers.readmit_all()
        self._sync_task = asyncio.create_task(self._sync_node())
        self.changes.notify()

    async def stop(self) -> None:
        """End in an orderly way: the sockets are removed."""
        await self.kill()
        for path in self._socket_paths():
            path.unlink(missing_ok=True)

    async def kill(self) -> None:
        """Die: streams are cut, the sockets stay behind and refuse."""
        await finish_despite_cancellation(self._kill())

    async def _kill(self) -> None:
        server, self._server = self._server, None
        if self._sync_task is not None:
            self._sync_task.cancel()
        if server is not None:
            await server.stop(None)
        await self.workers.cancel_tasks()
        await self.dra.stop()
        await self.registration.close()

    async def restart(self) -> None:
        """Stop and start. Running pods run on."""
        await self.stop()
        await self.start()

    async def drop_streams(self) -> None:
        """Lose every stream, as by a fault of kubelet's."""
        await self.registration.drop_streams()

    def _add_services(self, server: grpc.aio.Server) -> None:
        add_RegistrationServicer_to_server(self.registration, server)
        resources = PodResources(self.manager, self.dra, self.registration, self.workers.active_pods)
        add_PodResourcesListerServicer_to_server(resources, server)

    def _socket_paths(self) -> tuple[Path, Path]:
        return self.root / "device-plugins/kubelet.sock", self.root / "pod-resources/kubelet.sock"

    # pods

    async def run(self, pod: Pod) -> RunningPod:
        """Admit a pod and start its containers. Raises PodRejected, as kubelet would say it, and ValueError for a pod
        that is there."""
        return await self.workers.run(pod)

    async def end(self, key: str, force: bool = False) -> None:
        """A pod ("namespace/name") ends. Its entry stays in the device manager's books until the next allocation needs
        it. A pod with claims ends once they are unprepared, and this waits for the first try of that. `force`: the API
        server forgets the pod at once; kubelet does the same as ever."""
        await self.workers.end(key, force)

    def crash(self, key: str, container: str = "main") -> None:
        """A container ends and is created anew, with the devices that it has."""
        self.workers.crash(key, container)

    # what is seen of it

    def capacity(self, resource: str) -> tuple[int, int]:
        """(capacity, allocatable) of a resource, as the device manager knows it now."""
        return self.manager.capacities().get(resource, (0, 0))

    def node_capacities(self) -> dict[str, tuple[int, int]]:
        """resource → (capacity, allocatable) in the Node object. A resource that was there once stays, with zeros."""
        if not self.node_sync_period:
            self._publish_capacities()
        return dict(self._node_capacities)

    def device_health(self) -> dict[str, dict[str, str]]:
        """resource → id → health, of every resource that has devices."""
        return {
            name: dict.fromkeys(known.healthy, "Healthy") | dict.fromkeys(known.unhealthy, "Unhealthy")
            for name, known in self.devices.resources.items()
            if known.healthy or known.unhealthy
        }

    def insufficient_resources(self, pod: Pod) -> list[str]:
        """What the scheduler would say of a pod: "Insufficient nvidia.com/gpu" for each resource that lacks."""
        taken: dict[str, int] = {}
        for running in self.pods.values():
            for resource, count in requested_resources(running.pod).items():
                taken[resource] = taken.get(resource, 0) + count
        node = self.node_capacities()
        return [
            f"Insufficient {resource}"
            for resource, count in requested_resources(pod).items()
            if count > node.get(resource, (0, 0))[1] - taken.get(resource, 0)
        ]

    def pod_health(self, key: str) -> dict[str, dict[str, list[tuple[str, str]]]]:
        """allocatedResourcesStatus of a pod: container → resource → (id, Healthy or Unhealthy). Init containers have
        none."""
        running = self.pods[key]
        return {
            container.name: {
                resource: [(id, self.devices.health(resource, id)) for id in ids]
                for resource, ids in self.devices.held_by(running.pod.uid, container.name).items()
            }
            for container in running.pod.containers
        }

    def claim_health(self, key: str) -> Mapping[str, Mapping[str, tuple[ResourceHealth, ...]]]:
        """allocatedResourcesStatus of a pod's claims, as of its last sync: container → "claim:NAME" → health."""
        return self.pods[key].claim_health

    def _known_pods(self) -> Collection[Pod] | None:
        return self.workers.active_pods() if self.failures.knows_pods else None

    def _publish_capacities(self) -> None:
        if self._server is not None:
            self._node_capacities = dict.fromkeys(self._node_capacities, (0, 0)) | self.manager.capacities()

    async def _sync_node(self) -> None:
        while True:
            self._publish_capacities()
            if self.node_sync_period:
                self.changes.notify()
                await asyncio.sleep(self.node_sync_period)
            else:
                await self.changes.next_change()

    # waiting

    async def until(self, ready: Callable[[], bool], deadline: float = DEFAULT_TIMEOUT_SECONDS) -> None:
        """Wait for something to become true of this kubelet. Raises TimeoutError."""
        await self.changes.until(ready, deadline)

    async def until_capacity(
        self, resource: str, capacity: int, allocatable: int, deadline: float = DEFAULT_TIMEOUT_SECONDS
    ) -> None:
        """Wait until the device manager has these figures. Raises TimeoutError, which says what it has."""
        try:
            await self.until(lambda: self.capacity(resource) == (capacity, allocatable), deadline)
        except TimeoutError:
            shown = (
                f"shows (capacity, allocatable) = {self.capacity(resource)} of {resource}, not "
                f"{(capacity, allocatable)}"
            )
            raise TimeoutError(f"after {deadline:g} s the node {shown}: {self.device_health()}") from None
