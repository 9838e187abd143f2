"""The registration of our DRA driver with kubelet: two sockets, of which kubelet finds one and is told of the other.

Kubelet watches the directory `plugins_registry`. For each socket there it asks what serves it (GetInfo), connects to
the service socket that it is told of, and says whether it took the plugin (NotifyRegistrationStatus). A socket that
goes is a plugin that goes. So the service socket is there first, and goes last. (pkg/kubelet/pluginmanager.)

What can be lost, and how it comes back:
- The registration socket is removed, or its directory, or that comes late: the socket is made again, and the service
  goes on meanwhile.
- The service socket is removed: both are made again.
- Kubelet refuses the plugin: it asks again by itself, at growing intervals. The status says why.
- Kubelet restarts: it reads the directory, and asks each socket that it finds.
- Another program serves this driver's name, as its socket in the directory shows: we wait, and report its process. If
  it started after us it is kubelet's plugin now, and we serve again when it has gone.

With the pod's UID in their names, the sockets of two pods never have the same path, as in an upgrade; a dead socket of
an earlier pod is removed, for kubelet would dial it for ever. No failure here ends the process.
"""

import asyncio
import logging
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import grpc

from gpuplane.base.pauses import Backoff, sleep_until_next
from gpuplane.base.text import clip
from gpuplane.base.value import Value
from gpuplane.node.core.dra.names import POD_UID
from gpuplane.node.core.serving import may_register
from gpuplane.node.kubelet.protocols import pluginregistration_pb2 as pb
from gpuplane.node.kubelet.protocols.pluginregistration_pb2_grpc import (
    RegistrationServicer,
    add_RegistrationServicer_to_server,
)
from gpuplane.node.kubelet.registration import always_may_serve
from gpuplane.node.kubelet.sockets import (
    SocketIdentity,
    SocketUnavailable,
    check_length,
    describe_server,
    is_same_socket,
    remove_dead_sockets,
    serve_at,
    socket_identity,
)
from gpuplane.node.model.facts import StatusChanged
from gpuplane.node.model.node import Node
from gpuplane.node.model.status import DRA_PLUGIN_PART, PartState, Status

REGISTRATION_DIRECTORY, PLUGIN_DIRECTORY = "plugins_registry", "plugins"  # below kubelet's directory
PLUGIN_TYPE = "DRAPlugin"
SERVICES = ("v1.DRAPlugin", "v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth")
"""What we serve. Kubelet takes the first that it knows (pkg/kubelet/cm/dra/plugin/registration.go)."""
INTERVAL = 1.0  # seconds between two checks of the sockets
BACKOFF = (0.2, 5.0)  # seconds: the first pause after the service failed, and the longest

log = logging.getLogger(__name__)

AddServices: TypeAlias = Callable[[grpc.aio.Server], object]
"""Adds the services of the plugin to a server."""


class PluginSockets(Value):
    """The paths of a driver's sockets, in kubelet's directory `root`. `pod_uid`: "" where there is one agent only.

    The names are those of Kubernetes' own helper (k8s.io/dynamic-resource-allocation/kubeletplugin/draplugin.go).
    """

    root: Path
    driver: str
    pod_uid: str = ""

    @property
    def registration(self) -> Path:
        """The socket that kubelet finds."""
        own = f"-{self.pod_uid}" if self.pod_uid else ""
        return self.root / REGISTRATION_DIRECTORY / f"{self.driver}{own}-reg.sock"

    @property
    def service(self) -> Path:
        """The socket that kubelet is told of."""
        own = f"-{self.pod_uid}" if self.pod_uid else ""
        return self.root / PLUGIN_DIRECTORY / self.driver / f"dra{own}.sock"

    @property
    def registration_names(self) -> re.Pattern[str]:
        """The names that registration sockets of this driver may have, whosever they are."""
        return re.compile(rf"{re.escape(self.driver)}(-{POD_UID.pattern})?-reg\.sock")

    @property
    def service_names(self) -> re.Pattern[str]:
        """The names that service sockets may have, whosever they are."""
        return re.compile(rf"dra(-{POD_UID.pattern})?\.sock")


class ServiceLost(Exception):
    """The service has to be made anew. The message says why."""


async def register_driver(
    node: Node,
    sockets: PluginSockets,
    add_services: AddServices,
    backoff: tuple[float, float] = BACKOFF,
    may_serve: Callable[[], bool] = always_may_serve,
) -> None:
    """Serve a DRA driver and be registered with kubelet, for ever. `may_serve`: whether we hold the lock.

    It reports the status of the DRA plugin.
    """
    driver, pauses = Driver(node, sockets, add_services, may_serve), Backoff(*backoff)
    try:
        while True:
            began = node.now()
            await driver.serve()
            if node.now() - began > backoff[1]:
                pauses.after(well=True)
            await asyncio.sleep(pauses.seconds)
            pauses.after(well=False)
    finally:
        node.apply(StatusChanged(DRA_PLUGIN_PART, None))


class Driver(RegistrationServicer):
    """One driver, as kubelet's plugin watcher sees it."""

    def __init__(
        self, node: Node, sockets: PluginSockets, add_services: AddServices, may_serve: Callable[[], bool]
    ) -> None:
        self.node, self.sockets = node, sockets
        self.add_services, self.may_serve = add_services, may_serve
        self.add_registration = partial(add_RegistrationServicer_to_server, self)

    async def GetInfo(self, request: pb.InfoRequest, context: "grpc.aio.ServicerContext[Any, Any]") -> pb.PluginInfo:
        return pb.PluginInfo(
            type=PLUGIN_TYPE,
            name=self.sockets.driver,
            endpoint=str(self.sockets.service.absolute()),
            supported_versions=SERVICES,
        )

    async def NotifyRegistrationStatus(
        self, request: pb.RegistrationStatus, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> pb.RegistrationStatusResponse:
        if request.plugin_registered:
            self._report("ok", f"kubelet has registered {self.sockets.service}")
        else:
            self._report("failing", f"kubelet refused the registration: {clip(request.error) or 'it gave no reason'}")
        return pb.RegistrationStatusResponse()

    async def serve(self) -> None:
        """Serve until the service is lost; the status says why. Raises nothing that the machine may cause."""
        try:
            self._check_turn()
            check_length(self.sockets.registration)
            service = self.sockets.service
            for directory in (service.parent.parent, service.parent):  # kubelet's own must be there
                directory.mkdir(mode=0o750, exist_ok=True)
            remove_dead_sockets(service.parent, self.sockets.service_names)
            async with serve_at(service, self.add_services) as ours:
                await self._keep_registered(ours)
        except (ServiceLost, SocketUnavailable) as why:
            self._report("waiting", str(why))
        except OSError as error:
            self._report("failing", _describe(error, self.sockets.service))

    async def _keep_registered(self, service: SocketIdentity) -> None:
        """Keep the registration socket there. Raises ServiceLost."""
        path = self.sockets.registration
        while True:
            self._check_service(service)
            try:
                if not path.parent.is_dir():
                    raise SocketUnavailable(f"kubelet is not running: there is no {path.parent}")
                remove_dead_sockets(path.parent, self.sockets.registration_names)
                self._report("waiting", f"kubelet has not registered {self.sockets.service} yet")
                async with serve_at(path, self.add_registration) as ours:
                    while is_same_socket(path, ours):
                        await sleep_until_next(INTERVAL)
                        self._check_service(service)
                self._report("waiting", f"{path} was removed")
            except SocketUnavailable as why:
                self._report("waiting", str(why))
            except OSError as error:
                self._report("failing", _describe(error, path))
            await sleep_until_next(INTERVAL)

    def _check_service(self, ours: SocketIdentity) -> None:
        """Raises ServiceLost, and SocketUnavailable if something else is at the path of the service."""
        self._check_turn()
        if not is_same_socket(self.sockets.service, ours):
            raise ServiceLost(f"{self.sockets.service} was removed")

    def _check_turn(self) -> None:
        """Raises ServiceLost if another program serves this driver, or it is not our turn."""
        if not self.may_serve():
            raise ServiceLost("this agent does not hold the lock on kubelet's directory: see the part kubelet lock")
        if not may_register(self.node.snapshot):
            raise ServiceLost("this agent is stopping: it no longer registers with kubelet")
        if other := self._other_server():
            raise ServiceLost(
                f"{other} serves the DRA driver {self.sockets.driver}: this agent takes over when that process ends"
            )

    def _other_server(self) -> str | None:
        """The process that serves another registration socket of this driver; None if there is none."""
        own, names = self.sockets.registration, self.sockets.registration_names
        try:
            found = [each for each in own.parent.iterdir() if each != own and names.fullmatch(each.name)]
        except OSError:
            return None
        for path in sorted(found):
            try:
                check_length(path)
                if socket_identity(path) is not None and (server := describe_server(path)):
                    return server
            except (SocketUnavailable, OSError) as error:
                log.debug("%s: %s", path, error)
        return None

    def _report(self, state: PartState, reason: str) -> None:
        self.node.apply(StatusChanged(DRA_PLUGIN_PART, Status(state, reason)))


def _describe(error: OSError, path: Path) -> str:
    return f"{error.filename or path}: {error.strerror or error}"
