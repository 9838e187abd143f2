"""A played node: an embedded kubelet and a described machine, registered at an API server as a node is."""

import asyncio
import logging
import ssl
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from gpuplane.base import files
from gpuplane.kubernetes.client import connect
from gpuplane.kubernetes.client.api import ApiClient
from gpuplane.kubernetes.client.api import Event as ApiEvent
from gpuplane.kubernetes.client.errors import ApiServerError
from gpuplane.kubernetes.client.informer import Informer
from gpuplane.kubernetes.client.retry import RequestPauses
from gpuplane.kubernetes.objects import ObjectMetadata
from gpuplane.kubernetes.times import format_micro_time, format_time
from gpuplane.sandbox.controlplane.certificates import Authority
from gpuplane.sandbox.controlplane.network import Network
from gpuplane.sandbox.kubelet import Kubelet
from gpuplane.sandbox.kubelet.dra.times import KUBELET_TIMES, DraTimes
from gpuplane.sandbox.kubelet.pods import PodRejected
from gpuplane.sandbox.node.admission import refuse
from gpuplane.sandbox.node.api import NodeApi
from gpuplane.sandbox.node.containers import CRASH_BACKOFF
from gpuplane.sandbox.node.nodeobject import (
    LEASE_SECONDS,
    NodeFacts,
    allocatable,
    lease,
    new_node,
    node_status,
    quantities_of,
)
from gpuplane.sandbox.node.objects import Json, NodeObject, PodObject
from gpuplane.sandbox.node.ownimage import KUBELET_ROOT, HostPaths
from gpuplane.sandbox.node.pods import Pods
from gpuplane.sandbox.node.runner import Runner
from gpuplane.sandbox.node.server import KubeletServer
from gpuplane.service.restart import keep_running

STATUS_INTERVAL, STATUS_AGE = 1.0, 60.0
"""Seconds: between two looks whether the Node's status has changed, and after which it is written anew."""
LEASE_INTERVAL = LEASE_SECONDS / 4
RESTART_ANNOTATION = "gpuplane.io/restart-kubelet"
"""Of a Node: kubelet restarts whenever it has another value."""
RETRY_INTERVAL = 2.0
"""Seconds between two tries to create a container; 13 to 15 on a node."""
CDI_DIRS = ("etc/cdi", "var/run/cdi")
"""Where a container runtime looks for CDI specifications, below a node's root; the last has priority."""
log = logging.getLogger("gpuplane")


class NodeSpec(NamedTuple):
    """What a played node is. `gpus`: how many its machine has; `directory`: all that it keeps; `link`: a short path
    that will lead to kubelet's directory."""

    name: str
    gpus: int
    directory: Path
    link: Path
    kubeconfig: Path

    @property
    def machine(self) -> Path:
        """Its machine file, which people edit."""
        return self.directory / "machine.yaml"


class PlayedNode:
    """`async with PlayedNode(...).running() as node`. Raises ApiServerError and OSError where it cannot register."""

    def __init__(
        self, spec: NodeSpec, network: Network, api_url: str, authority: Authority, version: str, *,
        crash_backoff: tuple[float, float] = CRASH_BACKOFF, dra_times: DraTimes = KUBELET_TIMES,
    ) -> None:  # fmt: skip
        self.spec, self.network, self.api_url, self.version = spec, network, api_url, version
        self._authority = authority
        self.crash_backoff, self.dra_times = crash_backoff, dra_times
        self.address = network.allocate()
        self.node = NodeObject(ObjectMetadata(spec.name))
        self._restart_asked = ""

    @asynccontextmanager
    async def running(self) -> AsyncIterator["PlayedNode"]:
        """It is registered, and runs pods, until the block ends."""
        spec = self.spec
        root = spec.directory.absolute() / "root"
        paths = HostPaths(root, spec.link, spec.directory / "run", spec.machine)
        kubelet_root = root / KUBELET_ROOT.relative_to("/")
        kubelet_root.mkdir(parents=True, exist_ok=True)
        spec.link.unlink(missing_ok=True)
        spec.link.symlink_to(kubelet_root)
        async with connect(spec.kubeconfig) as client:
            api = NodeApi(client, spec.name)
            self.kubelet = Kubelet(
                spec.link, cdi_dirs=[root / each for each in CDI_DIRS], claims=api, dra_times=self.dra_times,
                retry_interval=RETRY_INTERVAL,
            )  # fmt: skip
            runner = Runner(spec.name, self.address, paths, self.network, self.api_url, api.fetch, api.make_token)
            self.pods = Pods(
                spec.name, self.address, self.kubelet, api, self.network, spec.directory / "logs", runner.start,
                runner.set_up_volumes, runner.forget, self._admit, timestamp, self.crash_backoff,
            )  # fmt: skip
            self.node = await api.register(new_node(self._facts()))
            server = KubeletServer(self.network.loopback(self.address), self._tls_context(), self.pods.runs)
            async with server.serving(), self.kubelet:
                await self._write_status(api)
                await api.renew_lease(self._lease())
                informer = Informer(
                    spec.kubeconfig, "/api/v1/pods", PodObject, fields=f"spec.nodeName={spec.name}", list_every=300.0
                )
                of_node = Informer(
                    spec.kubeconfig, "/api/v1/nodes", NodeObject, fields=f"metadata.name={spec.name}", list_every=300.0
                )
                self._restart_asked = self._asked_restart()
                work: dict[str, Callable[[], Awaitable[None]]] = {
                    "lease": lambda: self._renew_lease(api),
                    "status": lambda: self._keep_status(api),
                    "pods": lambda: informer.run(self.pods),
                    "node": lambda: of_node.run(self),
                    "statuses of pods": self.pods.write,
                }
                tasks = [asyncio.create_task(self._keep_running(name, each)) for name, each in work.items()]
                try:
                    yield self
                finally:
                    await self.pods.close()
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep_running(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        def failed(reason: str) -> None:
            log.warning("node %s: %s: %s", self.spec.name, name, reason)

        await keep_running(name, run, failed, lambda last: None)

    # its Node object, which others change too

    async def on_list(self, client: ApiClient, objects: list[NodeObject]) -> None:
        """Its labels and taints now."""
        for each in objects:
            await self._observe(each)

    def on_watch_started(self, client: ApiClient) -> None:
        """Nothing is to be done."""

    async def on_change(self, client: ApiClient, event: ApiEvent[NodeObject]) -> None:
        """Somebody has changed it."""
        await self._observe(event.object)

    def on_failure(self, error: ApiServerError) -> float:
        """It is looked at again later."""
        return 0.0

    async def _observe(self, node: NodeObject) -> None:
        self.node = node
        if (asked := self._asked_restart()) != self._restart_asked:
            self._restart_asked = asked
            await self.restart_kubelet()

    def _asked_restart(self) -> str:
        return (self.node.metadata.annotations or {}).get(RESTART_ANNOTATION, "")

    async def restart_kubelet(self, kill: bool = False) -> None:
        """Kubelet ends, or is killed, and starts again. Containers run on."""
        self.pods.serving.clear()
        await (self.kubelet.kill() if kill else self.kubelet.stop())
        await self.kubelet.start()
        with suppress(ApiServerError):  # one that somebody has deleted registers again
            self.node = await self.pods.api.register(new_node(self._facts()))
        self.pods.kubelet_restarted()

    def _tls_context(self) -> ssl.SSLContext:
        """Clients need a certificate of the cluster's authority."""
        pair = self._authority.issue_server([self.spec.name], [self.address])
        file = self.spec.directory / "kubelet.pem"
        files.replace(file, pair.certificate + pair.key)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=self._authority.certificate.decode())
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(file)
        return context

    def _admit(self, pod: PodObject, others: list[PodObject]) -> PodRejected | None:
        labels = self.node.metadata.labels or {}
        return refuse(pod, others, quantities_of(allocatable(self.spec.gpus)), labels, self.node.taints())

    def _facts(self) -> NodeFacts:
        machine_id = uuid.uuid5(uuid.NAMESPACE_DNS, self.spec.name).hex
        images = {each["image"] for run in self.pods.runs.values() for each in run.pod.containers()}
        devices = self.kubelet.node_capacities()
        return NodeFacts(self.spec.name, self.address, self.spec.gpus, self.version, machine_id, devices, images)

    def _lease(self) -> Json:
        return lease(self.spec.name, self.node.metadata.uid, format_micro_time(datetime.now(UTC)))

    async def _write_status(self, api: NodeApi) -> None:
        self.node = await api.write_node_status(node_status(self._facts(), self.node.status, timestamp()))

    async def _keep_status(self, api: NodeApi) -> None:
        """Write the Node's status when it changes, and from time to time."""
        written, seen = asyncio.get_running_loop().time(), self._facts()
        pauses = RequestPauses()
        while True:
            await asyncio.sleep(STATUS_INTERVAL)
            now, facts = asyncio.get_running_loop().time(), self._facts()
            if facts == seen and now - written < STATUS_AGE:
                continue
            try:
                await self._write_status(api)
            except ApiServerError as error:
                await asyncio.sleep(pauses.after_failure(error.code))
            else:
                pauses.reset()
                written, seen = now, facts

    async def _renew_lease(self, api: NodeApi) -> None:
        while True:
            await asyncio.sleep(LEASE_INTERVAL)
            try:
                await api.renew_lease(self._lease())
            except ApiServerError as error:
                log.debug("node %s: %s", self.spec.name, error)  # it is tried again


def timestamp() -> str:
    """Now, as the API spells it."""
    return format_time(datetime.now(UTC))
